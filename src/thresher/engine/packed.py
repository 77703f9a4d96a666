"""The packed layer loop: every layer works on the tokens that the layers before it kept."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from thresher.core.gates import threshold_leaving
from thresher.core.plan import PruningPlan
from thresher.engine.backends.base import Backend
from thresher.engine.cores import at_the_same_time, budget_of, in_order, shares_of
from thresher.engine.executor import AnySize, Ids, Output, Types, batch_of, description
from thresher.engine.inputs import emptied, protected_rows
from thresher.engine.ragged import Ragged, idle_rows
from thresher.errors import ModelError
from thresher.tokenizing.tokens import Tokens


@dataclass(frozen=True)
class PackedTexts:
    """Token ids end to end, longest text first, with each text's number in the input; types: (total,) or None."""

    ids: Ragged
    types: Tensor | None


class LeftBehind:
    """The last known state of every token, for heads that read them all, at the rows of the packed input."""

    def __init__(self, hidden: Tensor) -> None:
        """hidden: (total, width), the input of the first layer."""
        self.states = torch.empty_like(hidden)
        self.rows = torch.arange(len(hidden), device=hidden.device)  # where each live token was at first

    def drop(self, hidden: Tensor, keep: Tensor) -> None:
        """Tokens that are not kept leave the state with which they entered. hidden: (rows, width), keep: (total,)."""
        gone = (~keep).nonzero().squeeze(-1)
        self.states.index_copy_(0, self.rows[gone], hidden.index_select(0, gone))

    def go_on(self, rows: Tensor) -> None:
        """These of the live rows go on, in this order. (fewer,)."""
        self.rows = self.rows[rows]

    def end(self, hidden: Tensor) -> Tensor:
        """All states (total, width), when a layer is done with those that are left."""
        self.states.index_copy_(0, self.rows, hidden[: len(self.rows)])
        return self.states

    def rejoined(self, hidden: Tensor) -> Tensor:
        """All states (total, width) to go on with: nobody is left behind any more."""
        found, self.states = self.end(hidden), torch.empty_like(self.states)
        self.rows = torch.arange(len(found), device=found.device)
        return found


class PackedExecutor(AnySize):
    """One model on packed batches, pruned or dense; the backend computes, this loop drops."""

    in_flight, by_length = 1, True  # all cores work on one batch, and attention is fastest on equal lengths
    on_cores = True
    window = 1024

    def __init__(self, backend: Backend, plan: PruningPlan | None = None) -> None:
        """`plan`: another than the backend's, with first tokens alone from the same layer on."""
        self.backend, self.plan = backend, plan or backend.plan
        if self.plan.alone != backend.plan.alone:
            raise ModelError(
                f"weights were converted for first tokens alone from layer {backend.plan.alone} on, not from "
                f"{self.plan.alone} on; load the model again for this plan"
            )
        self.shape, self.tables, self.dtype, self.device = backend.shape, backend.tables, backend.dtype, backend.device

    @property
    def token_budget(self) -> int:
        return budget_of(torch.get_num_threads())

    def describe(self) -> dict[str, Any]:
        return description(self, backend=self.backend.name)

    def with_plan(self, plan: PruningPlan) -> "PackedExecutor":
        """The same converted weights with another plan; a ModelError where they do not fit it."""
        return PackedExecutor(self.backend, plan)

    def pack(self, input_ids: Ids, token_types: Types = None) -> PackedTexts:
        given = batch_of(input_ids, token_types)
        order = np.argsort(-given.lengths, kind="stable")
        tokens = given.take(order)
        self.tables.check(int(tokens.lengths[0]), tokens.ids, tokens.types)
        ids = Ragged(
            values=torch.from_numpy(tokens.ids.astype(np.int64)),
            cu_seqlens=torch.from_numpy(tokens.starts),
            positions=torch.from_numpy(np.arange(tokens.total) - np.repeat(tokens.starts[:-1], tokens.lengths)),
            sequences=torch.from_numpy(order),
        )
        types = None if tokens.types is None else torch.from_numpy(tokens.types.astype(np.int64))
        return PackedTexts(ids.to(self.device), None if types is None else types.to(self.device))

    def launch(self, packed: PackedTexts) -> PackedTexts:
        """Whoever finishes it computes it: there is no other processor to do so meanwhile."""
        return packed

    def finish(self, begun: PackedTexts) -> Output:
        cores = torch.get_num_threads() if self.backend.core_each else 1
        shares = shares_of(begun.ids, cores) if cores > 1 else []
        if not shares:
            return self._run(begun, list(self.plan.thresholds))
        parts = [PackedTexts(each.ids, None if begun.types is None else begun.types[each.rows]) for each in shares]
        found = at_the_same_time(lambda part: self._run(part, list(self.plan.thresholds)), parts, cores)
        numbers = [each.numbers for each in shares]
        # Of heads that read tokens, all of a text's are neighbours in the order of the input.
        places = [token_rows(begun.ids, each) for each in numbers] if self.plan.reads == "tokens" else numbers
        return Output(
            outputs=in_order([each.outputs for each in found], places),
            kept=in_order([each.kept for each in found], numbers),
        )

    def run(self, packed: PackedTexts) -> Output:
        return self.finish(self.launch(packed))

    def check_alive(self) -> None:
        """A processor that fails does not go on."""

    def compute(self, input_ids: Ids, token_types: Types = None) -> Output:
        return self.run(self.pack(input_ids, token_types))

    def warm_up(self, batches: Sequence[Tokens]) -> None:
        for tokens in batches:
            self.compute(tokens)

    def trial(self, packed: PackedTexts, thresholds: Sequence[float]) -> Output:
        """The same with other thresholds, once: to look for good ones without converting weights for each try."""
        return self._run(packed, list(thresholds))

    def fit(self, shares: Sequence[float], packed: PackedTexts) -> list[float]:
        """The thresholds, found layer by layer, that leave these shares of the batch's unprotected tokens.

        A layer whose output nobody needs beside first tokens keeps none: its threshold is infinite.
        """
        if self.plan.alone < self.shape.layers - 1:
            raise ModelError("thresholds are fitted from the dense model: start with none that is infinite")
        thresholds = [math.inf] * self.shape.layers
        self._run(packed, thresholds, shares=shares)
        return thresholds

    def trace(self, packed: PackedTexts) -> tuple[Output, list[list[int | None]]]:
        """The outputs, and for every token of every text the layer, counted from 1, that dropped it, or None."""
        seen: list[Ragged] = []
        output = self._run(packed, list(self.plan.thresholds), seen=seen)
        order = packed.ids.sequences.tolist()
        lengths = dict(zip(order, packed.ids.lengths.tolist(), strict=True))
        dropped: list[list[int | None]] = [[None] * lengths[text] for text in range(len(order))]
        for layer, live in reversed(list(enumerate(seen, start=1))):
            places, starts = live.positions.tolist(), live.cu_seqlens.tolist()
            for run, text in enumerate(live.sequences.tolist()):
                alive = set(places[starts[run] : starts[run + 1]])
                dropped[text] = [at if place in alive else layer for place, at in enumerate(dropped[text])]
        if not self.plan.restores:  # only first tokens come out of the layer `alone`
            for text in dropped:
                text[1:] = [self.plan.alone + 1 if at is None else at for at in text[1:]]
        return output, dropped

    @torch.inference_mode()
    def states(self, packed: PackedTexts) -> Tensor:
        """Every token's last known state, (total, width) in the order of the input; of a plan whose head reads all."""
        hidden = self.backend.embed(packed.ids, packed.types)
        left = LeftBehind(hidden)
        hidden, _, _ = self._layers(hidden, packed.ids, list(self.plan.thresholds), shares=None, left=left)
        found = left.end(hidden)
        ordered = torch.empty_like(found)
        ordered[token_places(packed.ids)] = found
        return ordered.float().cpu()

    @torch.inference_mode()
    def _run(
        self,
        packed: PackedTexts,
        thresholds: list[float],
        *,
        shares: Sequence[float] | None = None,
        seen: list[Ragged] | None = None,
    ) -> Output:
        """With `shares`, thresholds are written on the way; with `seen`, what every layer passes on."""
        live = packed.ids
        hidden = self.backend.embed(live, packed.types)
        left = LeftBehind(hidden) if self.plan.restores else None
        hidden, live, kept = self._layers(hidden, live, thresholds, shares=shares, left=left, seen=seen)
        if left is None:
            read, places = self.backend.final(self._of_first_tokens(hidden, live)), live.sequences
        else:
            read, places = self.backend.final(left.end(hidden)), token_places(packed.ids)
            if self.plan.reads == "mean":
                read, places = mean_states(read, packed.ids), packed.ids.sequences
        result = self.backend.head(read)
        outputs = torch.empty_like(result)
        outputs[places] = result
        return Output(outputs=outputs.cpu(), kept=kept.cpu())

    def _layers(
        self,
        hidden: Tensor,
        live: Ragged,
        thresholds: list[float],
        *,
        shares: Sequence[float] | None,
        left: LeftBehind | None,
        seen: list[Ragged] | None = None,
    ) -> tuple[Tensor, Ragged, Tensor]:
        """The layers that see more than first tokens: states, what is live, and kept counts in input order."""
        protected = protected_rows(live, self.plan)
        unprotected = 0 if shares is None else int((~protected).sum())
        # Idle rows after the live ones: products then have few different shapes.
        hidden = F.pad(hidden, (0, 0, 0, idle_rows(len(hidden), self.backend.row_step)))
        kept = torch.ones(len(live.sequences), self.shape.layers, dtype=torch.long, device=self.device)
        texts = live
        for index in range(self.plan.alone):
            whole = index >= self.plan.whole_from
            if index == self.plan.whole_from and left is not None and live is not texts:
                hidden, live = left.rejoined(hidden), texts
                hidden = F.pad(hidden, (0, 0, 0, idle_rows(len(hidden), self.backend.row_step)))
            if whole:
                thresholds[index] = 0.0
            scored = not whole and (shares is not None or thresholds[index] > 0)
            context, scores = self.backend.attend(index, hidden, live, scored=scored)
            beside = self.backend.convolve(index, hidden, live)
            if scores is not None:
                scores = self._in_scale(scores, live)
                if shares is not None:
                    found = threshold_leaving(shares[index], scores[~protected], of=unprotected)
                    thresholds[index] = max(0.0, found)
                keep = (scores > thresholds[index]) | protected | (thresholds[index] <= 0)
                if not bool(keep.all()):
                    if left is not None:
                        left.drop(hidden, keep)
                    try:
                        live, rows = live.compact(keep, longest_first=self.backend.longest_first)
                    except ValueError as error:
                        raise emptied(self.plan) from error
                    if left is not None:
                        left.go_on(rows)
                    protected, rows = protected[rows], self._whole_steps(rows)
                    context, hidden = context.index_select(0, rows), hidden.index_select(0, rows)
                    beside = None if beside is None else beside.index_select(0, rows)
            kept[live.sequences, index] = live.lengths
            if seen is not None:
                seen.append(live)
            hidden = self.backend.finish(index, context, hidden)
            hidden = hidden if beside is None else self.backend.join(index, hidden, beside)
        return hidden, live, kept

    def _of_first_tokens(self, hidden: Tensor, live: Ragged) -> Tensor:
        """The layers that pass on first tokens only: (batch, width)."""
        alone, first = self.plan.alone, self._whole_steps(live.first)
        context = self.backend.attend_first(alone, hidden, live)
        context = F.pad(context, (0, 0, 0, len(first) - len(context)))
        beside = self.backend.convolve(alone, hidden, live)
        hidden = self.backend.finish(alone, context, hidden.index_select(0, first))
        hidden = hidden if beside is None else self.backend.join(alone, hidden, beside.index_select(0, first))
        for index in range(alone + 1, self.shape.layers):
            hidden = self.backend.finish(index, self.backend.attend_alone(index, hidden), hidden)
        return hidden[: len(live.first)]

    def _whole_steps(self, rows: Tensor) -> Tensor:
        """The rows to gather, and the first row again for the idle ones."""
        return F.pad(rows, (0, idle_rows(len(rows), self.backend.row_step)))

    def _in_scale(self, scores: Tensor, live: Ragged) -> Tensor:
        if self.plan.scale == "relative":
            return scores
        return scores / torch.repeat_interleave(live.lengths, live.lengths)


def token_places(texts: Ragged) -> Tensor:
    """(total,) where each token stands when all texts lie end to end in the order of the input."""
    lengths = torch.empty_like(texts.lengths)
    lengths[texts.sequences] = texts.lengths
    starts = lengths.cumsum(0) - lengths
    return torch.repeat_interleave(starts[texts.sequences], texts.lengths) + texts.positions


def token_rows(texts: Ragged, numbers: Tensor) -> Tensor:
    """Where the tokens of these inputs stand when all texts lie end to end in the order of the input."""
    lengths = torch.empty_like(texts.lengths)
    lengths[texts.sequences] = texts.lengths
    ends = lengths.cumsum(0)
    return torch.cat([torch.arange(int(ends[each] - lengths[each]), int(ends[each])) for each in numbers])


def mean_states(states: Tensor, texts: Ragged) -> Tensor:
    """The mean of every text's states, summed in float32 or better: (total, width) -> (batch, width)."""
    states = states.to(torch.promote_types(states.dtype, torch.float32))
    owner = torch.repeat_interleave(texts.lengths)
    sums = states.new_zeros(len(texts.lengths), states.shape[1]).index_add_(0, owner, states)
    return sums / texts.lengths[:, None]
