"""What both layer loops, on packed CPU batches and on the GPU, ask of texts."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from thresher.core.gates import protected_tokens
from thresher.core.plan import PruningPlan
from thresher.engine.ragged import Ragged
from thresher.engine.weights import Weights
from thresher.errors import ModelError
from thresher.tokenizing.read import NOTHING
from thresher.tokenizing.tokens import Problem, Tokens


@dataclass(frozen=True)
class Tables:
    """How many rows the embedding tables have; what lies outside would be read from other memory."""

    words: int
    positions: int
    types: int | None  # None: the model has no token types, and reads none

    @staticmethod
    def of(weights: Weights) -> "Tables":
        types = None if weights.token_type is None else len(weights.token_type)
        return Tables(words=len(weights.word), positions=weights.positions, types=types)

    def problem(self, ids: Any, types: Any = None) -> str | None:
        """Why texts cannot be computed, if they cannot. ids, types: (total,), a tensor or an array; types may be one
        number for all."""
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self.words:
            found = low if low < 0 else high
            return f"token id {found} is outside the model's vocabulary of {self.words}; take the model's own tokenizer"
        if types is None or self.types is None or isinstance(types, int):
            return None
        low, high = int(types.min()), int(types.max())
        if low < 0 or high >= self.types:
            return f"token type {low if low < 0 else high} is not one of the model's {self.types}; leave types out"
        return None

    def check(self, longest: int, ids: Any, types: Any = None) -> None:
        """Refuse a batch that cannot be computed."""
        if longest > self.positions:
            raise ModelError(f"{longest} tokens are more than the model's {self.positions} positions; truncate them")
        problem = self.problem(ids, types)
        if problem is not None:
            raise ModelError(problem)


def tokens_of_ids(rows: list[list[int]], *, limit: int, words: int) -> Tokens:
    """Texts that are token ids already; what has more than `limit` is cut at its end. words: of the vocabulary."""
    ids = [row[:limit] for row in rows]
    outside = {
        number: Problem("table", f"token id {wrong[0]} is outside the model's vocabulary")
        for number, row in enumerate(ids)
        if (wrong := [one for one in row if not 0 <= one < words])
    }
    found = Tokens.of([[] if number in outside else row for number, row in enumerate(ids)])
    found.truncated[:] = [len(row) > limit for row in rows]
    empty = {number: NOTHING for number, row in enumerate(ids) if not row}
    return replace(found, problems={**outside, **empty})


def emptied(plan: PruningPlan) -> ModelError:
    """What is said where a text has no protected token, which only token ids without the usual ones have, and no other
    is left of it."""
    return ModelError(
        f"a text lost all its tokens, of which protect = {list(plan.protect)} names none; retrain with protect = first"
    )


def protected_rows(ids: Ragged, plan: PruningPlan) -> Tensor:
    """(total,) tokens that no threshold may drop, by the same rule as the attached model's."""
    if plan.protect == ("first",):
        flags = torch.zeros(len(ids.values), dtype=torch.bool, device=ids.values.device)
        flags[ids.first] = True
        return flags
    # One padded grid for the one rule: text by text it would take longer than a GPU takes for the whole batch.
    lengths = ids.lengths
    places = torch.repeat_interleave(lengths), ids.positions.long()
    grid = ids.values.new_zeros(len(lengths), int(lengths.max()))
    grid[places] = ids.values
    alive = torch.zeros_like(grid, dtype=torch.bool)
    alive[places] = True
    return protected_tokens(plan.protect, alive=alive, input_ids=grid, separator_id=plan.separator_id)[places]
