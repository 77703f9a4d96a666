"""What follows from a head for a run: settings of pruning, unless a user says otherwise, and what texts begin with."""

from dataclasses import replace
from typing import Any

from thresher.core.heads import MEANINGS, Head
from thresher.errors import ConfigError, ModelError
from thresher.models.heads import head_of, set_head_
from thresher.models.registry import family_of
from thresher.models.stored import Stored, keep_stored_


def prune_defaults(head: Head, tokenizer: Any) -> dict[str, Any]:
    """Settings of PruneConfig that a head needs: those that differ from a classifier's.

    A reranker keeps its query, and question answering its question, which end at the tokenizer's separator. A head that
    reads more than the first token needs the others in the last layer too.
    """
    found: dict[str, Any] = {}
    if head.protects != Head().protects:
        found["protect"] = head.protects
        if {"separators", "first_segment"} & set(head.protects):
            found["separator_id"] = separator_of(tokenizer)
    if not head.collapses:
        found["collapse_last"] = False
    return found


def separator_of(tokenizer: Any) -> int:
    """The token id that ends a segment."""
    found: int | None = tokenizer.sep_token_id
    if found is None:
        raise ModelError("the tokenizer has no separator token, so separators and segments cannot be protected")
    return found


def longest_read(model: Any, tokenizer: Any, length: int | None, head: Head | None = None) -> int | None:
    """The longest text in tokens where training or a user has set `length`; None leaves it to the model's positions.
    `head`: where it is another than the model says.

    Rerankers and embedders read no more than their folder says: so they were made, and so sentence-transformers reads
    with them, the pruned ones too.
    """
    bound = (head or head_of(model)).means in ("score", "embedding")
    own: int | None = getattr(tokenizer, "model_max_length", None) if bound else None
    return min((each for each in (own, length) if each is not None), default=None)


def positions_of(model: Any, length: int | None) -> int:
    """The most tokens that a model reads of a text: as many as it was made for, or, where training or a user has set
    `length`, as many as it can be given."""
    parts = family_of(model).embeddings(model.base_model)
    return parts.positions if length is not None or parts.usual is None else min(parts.usual, parts.positions)


def mean_by_(model: Any, means: str) -> None:
    """Make the model's outputs mean what the rows say, in place, or refuse.

    One number may be a value or a reranker's score: a model's folder seldom says which. Everything else is decided by
    how the head was made.
    """
    head = head_of(model)
    if head.means == means:
        return
    if {head.means, means} != {"value", "score"}:
        head_way = "train a new head (thresher prune --finetune always)"
        other = "an embedding model" if means == "embedding" else head_way
        raise ModelError(
            f"the outputs of {type(model).__name__} are {WORDS[head.means]}, and the rows are for {WORDS[means]}; give "
            f"rows of the model's kind, or {other}"
        )
    found = Head(reads=head.reads, means=means)
    if means == "score":
        # The folder that is written says it, too: what it is opened with next must not have to be told again.
        keep_stored_(model, Stored(found, activation=found.activation))
    else:
        set_head_(model, found)


def declared(head: Head, means: str | None) -> Head:
    """The head of a model whose user says what it `means`: of one number, that it is a reranker's score. As in
    sentence-transformers it goes through a sigmoid, where the folder says nothing else."""
    if means not in (None, *MEANINGS):
        raise ConfigError(f"means = {means!r} is not one of: {', '.join(MEANINGS)}; leave it out if a folder says it")
    if means in (None, head.means):
        return head
    if (head.means, means) != ("value", "score"):
        raise ModelError(
            f"the model's outputs are {WORDS[head.means]}, and were declared {WORDS[str(means)]}; leave that out"
        )
    return Head(reads=head.reads, means="score")


def divide_as_trained_(model: Any, *, tags_words: bool) -> None:
    """Let a model that is trained on tags of words read strings in such words, in place."""
    head = head_of(model)
    if tags_words and head.means == "tags":
        set_head_(model, replace(head, words="text"))


WORDS = {
    "classes": "one class of several",
    "labels": "several labels a row",
    "value": "a number",
    "score": "a reranker's score",
    "embedding": "an embedding",
    "span": "the span of an answer",
    "tags": "one class for each token",
}


def prompt_of(model: Any) -> str:
    """What stands before every text unless a user says otherwise."""
    head = head_of(model)
    return "" if head.default_prompt is None else head.prompts[head.default_prompt]
