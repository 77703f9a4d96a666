"""What follows from a head for a run: settings of pruning, unless a user says otherwise, and what texts begin with."""

from dataclasses import replace
from typing import Any

from thresher.core.heads import Head
from thresher.errors import ModelError
from thresher.models.heads import head_of, set_head_


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


def longest_read(model: Any, tokenizer: Any, length: int | None) -> int | None:
    """The longest text in tokens where training or a user has set `length`; None leaves it to the model's positions.

    Rerankers and embedders read no more than their folder says: so they were made, and so sentence-transformers reads
    with them, the pruned ones too.
    """
    bound = head_of(model).means in ("score", "embedding")
    own: int | None = getattr(tokenizer, "model_max_length", None) if bound else None
    return min((each for each in (own, length) if each is not None), default=None)


def mean_by_(model: Any, means: str) -> None:
    """Make the model's outputs mean what the rows say, in place, or refuse.

    One number may be a value or a reranker's score: a model's folder seldom says which. Everything else is decided by
    how the head was made.
    """
    head = head_of(model)
    if head.means == means:
        return
    if {head.means, means} != {"value", "score"}:
        raise ModelError(
            f"the outputs of {type(model).__name__} are {WORDS[head.means]}, and the rows are for {WORDS[means]}; give "
            "rows of the model's kind, or train a new head (thresher prune --finetune always)"
        )
    set_head_(model, replace(head, means=means))


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
