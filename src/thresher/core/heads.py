"""What a head reads of the encoder's last states, and what its outputs mean.

A head that reads first tokens lets the last layer keep nothing else. One that reads all tokens, or their mean, gets
every token's last known state: a token dropped in a layer leaves behind the state with which it entered that layer. So
every token has its outputs, in its own place, dropped or not.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

READS = ("first", "mean", "tokens")
# classes: one of several; labels: any of several; value: a number; score: how well two texts fit (a reranker's logit);
# embedding: the vector itself. Of every token, span: how well an answer starts and how well it ends there, two outputs;
# tags: one class of several.
MEANINGS = ("classes", "labels", "value", "score", "embedding", "span", "tags")
OF_TOKENS = ("span", "tags")
ACTIVATIONS = ("sigmoid", "identity")  # from a reranker's logit to its score
WORDS = ("tokenizer", "text")


@dataclass(frozen=True, kw_only=True)
class Head:
    """`reads`: the first token's state, the mean of all states, or every state. `means`: what the outputs are.

    The rest is for embeddings: scaled to length 1 or not, cut to the first `width` numbers (Matryoshka), and the
    prompts that stand before texts, by name, with the name of the one used unless another is asked for. Of a span: a
    question has no answer where the null score exceeds the best span's by more than `null_threshold`; None: not known.
    Of a score: `activation`, sigmoid for one between 0 and 1, identity where the logit itself is the score.
    Of tags: `words` of a string are the tokenizer's own, or those of the text, as models trained here learn them.
    """

    reads: str = "first"
    means: str = "classes"
    normalised: bool = False
    width: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    null_threshold: float | None = None
    activation: str = "sigmoid"
    words: str = "tokenizer"

    def __post_init__(self) -> None:
        given = (("reads", READS), ("means", MEANINGS), ("activation", ACTIVATIONS), ("words", WORDS))
        for name, known in given:
            if (value := getattr(self, name)) not in known:
                raise ValueError(f"{name} = {value!r} is not one of: {', '.join(known)}")
        if self.activation != "sigmoid" and self.means != "score":
            raise ValueError(f"activation = '{self.activation}' is of scores only, and this head means {self.means}")
        if (self.reads == "tokens") != (self.means in OF_TOKENS):
            raise ValueError(f"reads = '{self.reads}' does not go with means = '{self.means}'; tokens: span or tags")
        if self.null_threshold is not None and (self.means != "span" or not math.isfinite(self.null_threshold)):
            raise ValueError(f"null_threshold = {self.null_threshold} must be a finite number, and is of spans only")
        if self.width is not None and (isinstance(self.width, bool) or self.width < 1):
            raise ValueError(f"width = {self.width!r} must be a whole number of at least 1")
        if self.default_prompt is not None and self.default_prompt not in self.prompts:
            raise ValueError(f"default_prompt = {self.default_prompt!r} is not one of: {', '.join(self.prompts)}")

    @property
    def collapses(self) -> bool:
        """Whether the last layer may keep first tokens only: nobody reads the others."""
        return self.reads == "first"

    @property
    def restores(self) -> bool:
        """Whether dropped tokens are read, by the states they leave behind."""
        return self.reads != "first"

    @property
    def rejoins(self) -> bool:
        """Whether dropped tokens take part again in the last layers unless a user says otherwise. An embedding that is
        the mean of all tokens gains much; tags of a small model gained nothing, and answers are not measured."""
        return self.restores and self.means == "embedding"

    @property
    def protects(self) -> tuple[str, ...]:
        """Groups of tokens that stay unless a user says otherwise: a query, or a question, is read to the end."""
        return ("first", "first_segment") if self.means in ("score", "span") else ("first",)

    @property
    def threshold(self) -> float:
        """The null threshold that answers are given by: 0, as everywhere, where no other is known."""
        return self.null_threshold or 0.0

    def to_dict(self) -> dict[str, Any]:
        found = {**asdict(self), "prompts": dict(self.prompts)}
        # Older versions read heads without these.
        usual = {"null_threshold": None, "activation": "sigmoid", "words": "tokenizer"}
        return {name: value for name, value in found.items() if name not in usual or value != usual[name]}

    @classmethod
    def from_dict(cls, saved: Any) -> "Head":
        """What `to_dict` wrote; ValueError for anything else."""
        known = {item.name for item in fields(cls)}
        if not isinstance(saved, dict) or not set(saved) <= known:
            raise ValueError(f"a head is described by {', '.join(sorted(known))}, not by {saved!r}")
        prompts = saved.get("prompts", {})
        if not isinstance(prompts, dict) or not all(isinstance(text, str) for pair in prompts.items() for text in pair):
            raise ValueError(f"prompts = {prompts!r} must be texts by their names")
        if not isinstance(saved.get("normalised", False), bool):
            raise ValueError(f"normalised = {saved['normalised']!r} must be true or false")
        if not isinstance(saved.get("width"), int | None) or not isinstance(saved.get("default_prompt"), str | None):
            raise ValueError(
                f"width = {saved.get('width')!r}, default_prompt = {saved.get('default_prompt')!r}: wrong types"
            )
        threshold = saved.get("null_threshold")
        if isinstance(threshold, bool) or not isinstance(threshold, int | float | None):
            raise ValueError(f"null_threshold = {threshold!r} must be a number")
        return cls(**saved)
