"""Settings of pruning that follow from a head, unless a user says otherwise."""

from typing import Any

from thresher.core.heads import Head
from thresher.errors import ModelError


def prune_defaults(head: Head, tokenizer: Any) -> dict[str, Any]:
    """Settings of PruneConfig that a head needs: those that differ from a classifier's.

    A reranker keeps its query, which ends at the tokenizer's separator. A head that reads more than the first token
    needs the others in the last layer too.
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
