"""Which layer dropped which token of one text, and what the model then decided."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thresher.config import PruneConfig
from thresher.core.cost import relative_flops
from thresher.core.heads import Head
from thresher.core.scores import queries_in_words
from thresher.engine.of_tokens import Computed, TextEntity, answers_in, in_words, tagged_in
from thresher.engine.predictions import answers, numbers
from thresher.errors import DataError
from thresher.evaluation.quality import encoded_inputs
from thresher.models.attach import encoder_shape, gates_of, length_in_training, prune_
from thresher.models.checkpoint import Checkpoint, load_dense
from thresher.models.heads import head_of, outputs_in, set_head_
from thresher.models.manifest import dense_threshold
from thresher.models.predict import evaluating
from thresher.tasks.encode import collate
from thresher.tasks.metrics import cosines
from thresher.tasks.task import Example
from thresher.text import is_blank

ALL_TOKENS = queries_in_words(1)


@dataclass(frozen=True)
class Explanation:
    """dropped_at[i] is the layer (counted from 1) that dropped token i, or None if it survived all of them.

    pieces[i] is token i for people: as text, with a space in front where a word begins.
    For a regression `label` is empty and `probability` None; `value` holds the prediction. A reranker has a
    `score`. Of several labels, `labels` are those of at least one half, with their probabilities, the likeliest
    first. An `embedding` is (width,); `cosine` is to what the same weights give with nothing dropped.

    An `answer` is a text of the context, from `start` to before `end`, or empty; `margin` is by how much no answer
    scores higher. `entities` are those of a text. Either is of all `windows`, the tokens are of one: that with the
    answer, or the first. `queries` says whose attention the tokens were judged by.
    """

    tokens: list[str]
    dropped_at: list[int | None]
    kept_per_layer: list[int]
    layers: int
    label: str
    probability: float | None
    value: float | None
    relative_flops: float
    truncated: bool
    pieces: list[str]
    score: float | None = None
    labels: dict[str, float] | None = None
    cosine: float | None = None
    embedding: tuple[float, ...] | None = field(default=None, repr=False)
    answer: str | None = None
    start: int | None = None
    end: int | None = None
    margin: float | None = None
    entities: tuple[TextEntity, ...] | None = None
    windows: int = 1
    queries: str = ALL_TOKENS

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it, without what this head does not have, and without the vector."""
        found = asdict(self)
        special = ("score", "labels", "cosine", "answer", "start", "end", "margin", "entities")
        absent = [name for name in special if found[name] is None]
        return {name: value for name, value in found.items() if name not in (*absent, "embedding")}

    def cosine_to(self, other: "Explanation") -> float:
        """How near the embeddings of two models are."""
        return _cosine(self.embedding or (), other.embedding or ())

    def decision(self, dense: "Explanation | None" = None) -> str:
        """What the model decides, for people. An embedding decides nothing: it is as near as this to the dense model's,
        or without one to its own with nothing dropped."""
        if self.answer is not None:
            return f"'{self.answer}'" if self.answer else "no answer"
        if self.entities is not None:
            return ", ".join(f"{one.label} '{one.text}'" for one in self.entities) or "no entity"
        if self.value is not None:
            return f"value {self.value:.3f}"
        if self.score is not None:
            return f"score {self.score:.3f}"
        if self.labels is not None:
            return ", ".join(f"{name} ({100 * value:.1f}%)" for name, value in self.labels.items()) or "no label"
        if self.embedding is not None:
            return f"cosine {self.cosine if dense is None else self.cosine_to(dense):.4f}"
        return f"{self.label} ({100 * (self.probability or 0):.1f}%)"


def unpruned(folder: Path, run: Checkpoint | None = None) -> tuple[Any, Any]:
    """A dense model, with gates that keep everything, and its tokenizer. `run`: the one that was made from it, which
    says what its outputs mean, and knows its null threshold: the run's own is another."""
    model, tokenizer = load_dense(folder, whole=True)
    head = None if run is None else head_of(run.model)
    if head is not None and run is not None and head.means != "embedding":
        set_head_(model, replace(head, null_threshold=dense_threshold(run.manifest)))
    prune_(model, PruneConfig(collapse_last=False))
    gates = gates_of(model)
    gates.set_thresholds([0.0] * len(gates.thresholds))
    return model, tokenizer


@torch.inference_mode()
def explain(
    model: Any, tokenizer: Any, text: str, pair: str | None = None, *, max_length: int | None = None
) -> Explanation:
    """Run one text (or pair) through hard pruning and report every decision.

    It is truncated to `max_length` tokens, or where texts were in training, or else to what the model can take; of a
    reranker's pair the document is. An embedding's text begins with the model's default prompt.
    """
    if is_blank(text) or (pair is not None and is_blank(pair)):
        raise DataError("the text is empty; give at least one word")
    head = head_of(model)
    if head.means == "score" and pair is None:
        raise DataError("a reranker scores a document for a query; give both, the query first")
    if head.means == "span" and pair is None:
        raise DataError("a question is answered from a context; give both, the question first")
    if head.means in ("embedding", "tags") and pair is not None:
        kind = "an embedding is" if head.means == "embedding" else "tags are"
        raise DataError(f"{kind} of one text, but two were given; explain each on its own")
    if max_length is None:
        max_length = length_in_training(model)
    data = encoded_inputs(model, tokenizer, [Example(text=text, pair=pair, label=0)], max_length=max_length)
    batch = collate(data.rows, pad_id=tokenizer.pad_token_id)
    device = next(model.parameters()).device
    inputs = {name: value.to(device) for name, value in batch.items() if name != "labels"}
    with evaluating(model, "hard") as gates:
        logits = outputs_in(model(**inputs)).float().cpu()
        trace = gates.trace
    with evaluating(model, "off"):
        whole = outputs_in(model(**inputs))[0].float().cpu() if head.means == "embedding" else None
    assert trace is not None  # the forward pass above leaves one
    lengths, kept = trace.lengths().cpu(), trace.kept().cpu()
    names = [str(model.config.id2label[index]) for index in range(model.config.num_labels)]
    shown = 0  # the sequence whose tokens are shown
    if data.windows is None:
        decision = _decision(head, names, logits[0], whole)
    else:
        windows = in_words(data.windows, [text], head.words)
        flat = logits[batch["attention_mask"].bool()].numpy()
        found = Computed(windows, flat, kept.numpy().astype(np.int32), {})
        decision, shown = _of_tokens(head, names, found, text if pair is None else pair)
    # (layers + 1, tokens), but for the layers that dropped tokens rejoin: who comes back was dropped all the same.
    alive = torch.stack(trace.alive[: trace.whole_from + 1])[:, shown, : int(lengths[shown])].cpu()
    deciding = len(alive) - 1
    survived = alive.long().sum(dim=0) - 1  # how many layers each token came out of
    tokens = tokenizer.convert_ids_to_tokens(data.rows[shown].input_ids)
    return Explanation(
        tokens=tokens,
        dropped_at=[None if count == deciding else int(count) + 1 for count in survived.tolist()],
        kept_per_layer=kept[shown].tolist(),
        layers=len(trace.alive) - 1,
        **decision,
        relative_flops=float(relative_flops(encoder_shape(model), lengths, kept)),
        truncated=data.truncated > 0,
        pieces=readable(tokenizer, tokens),
        queries=queries_in_words(gates.config.score_queries),
    )


def _of_tokens(head: Head, names: Sequence[str], found: Computed, text: str) -> tuple[dict[str, Any], int]:
    """What an Explanation says of outputs for every token, and the window it shows."""
    nothing: dict[str, Any] = {"label": "", "probability": None, "value": None, "windows": len(found.windows)}
    if head.means == "tags":
        (tagged,) = tagged_in(found, [text], names)
        return {**nothing, "entities": tagged.entities}, 0
    (answer,) = answers_in(found, [text], null_threshold=head.threshold)
    margin = None if answer.score is None or answer.null_score is None else answer.null_score - answer.score
    said = {"answer": answer.text, "start": answer.start, "end": answer.end, "margin": margin}
    return {**nothing, **said}, 0 if answer.start is None else found.window_with(answer.start)


def _decision(head: Head, names: Sequence[str], logits: Tensor, whole: Tensor | None) -> dict[str, Any]:
    """What an Explanation says of outputs (outputs,), by what they mean. whole: an embedding with nothing dropped."""
    nothing: dict[str, Any] = {"label": "", "probability": None, "value": None}
    if head.means == "value":
        return {**nothing, "value": float(logits[0])}
    if head.means == "score":
        return {**nothing, "score": float(numbers(head, logits[None].numpy())[0])}
    if head.means == "labels":
        (found,) = answers(head, names, logits[None].numpy())
        return {**nothing, "labels": {name: found["probabilities"][name] for name in found["labels"]}}
    if whole is not None:
        vector = tuple(logits.tolist())
        return {**nothing, "cosine": _cosine(vector, whole.tolist()), "embedding": vector}
    probabilities = torch.softmax(logits, dim=-1)
    best = int(probabilities.argmax())
    return {**nothing, "label": names[best], "probability": float(probabilities[best])}


def _cosine(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return float(cosines(np.array([ours]), np.array([theirs]))[0])


def readable(tokenizer: Any, tokens: Sequence[str]) -> list[str]:
    """The tokens as text, with a space in front where a word begins, whatever marks the tokenizer writes them with.

    ␣ stands for a token of spaces, and � for one that is a part of a character.
    """
    edges = {token for token in tokenizer.all_special_tokens if token != tokenizer.unk_token}
    pieces: list[str] = []
    for before, token in pairwise(["", *tokens]):
        text = f" {token}" if token in edges else _after_a_letter(tokenizer, token)
        begins = text[:1].isspace() or before in edges  # the first token of a text need not say that it begins a word
        pieces.append(" " * begins + (text.strip() or "␣"))
    return pieces


def _after_a_letter(tokenizer: Any, token: str) -> str:
    """What a token adds to a text: its decoder joins, cuts or decodes bytes, but drops spaces at a text's beginning."""
    text: str = tokenizer.convert_tokens_to_string(["a", token])
    if text == f"a {token}":  # also what a tokenizer without a decoder says
        return token.removeprefix("##") if token.startswith("##") else f" {token}"
    return text.removeprefix("a")
