"""Live rows inside the graph: packed end to end, and inside attention on a grid as wide as the longest live text.

Forms with the same members: `Batch` for texts of different lengths, `OneText`, which needs no grid, and `Stepped`, one
text with idle rows. `lead` is how many dimensions stand before those of one text.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from thresher.engine.graphs.graph import Graph

LOWEST = float(np.finfo(np.float32).min)


class Live(Protocol):
    """Which rows are live, as the layers ask for them."""

    lead: int
    counts: str  # (batch,) int64: tokens of each text

    @property
    def places(self) -> str:
        """(n,) the places of a text, 0 to n - 1, for the longest live text."""

    @property
    def first(self) -> str:
        """(batch,) the row of each text's first token."""

    @property
    def mask(self) -> str | None:
        """(batch, 1, 1, n) float: 0 for live places and the lowest number for others; None where all are live."""

    def masked(self, seen: str) -> str:
        """(batch, queries, n) booleans -> (batch, 1, queries, n): 0 for what is seen and live, otherwise as `mask`."""

    def grid(self, values: str) -> str:
        """(total, ...) -> (batch, n, ...)."""

    def packed(self, values: str) -> str:
        """(batch x n, ...) -> (total, ...)."""

    def cleared(self, values: str) -> str:
        """(total, width) -> (batch, n, width), zeros where nothing is live."""

    def received(self, probabilities: str, counted: str | None) -> str:
        """Attention from live queries, (batch, heads, n, n) -> (batch, heads, n); counted: (batch, n) numbers by which
        their attention counts, or None: all of it does."""

    def mean(self, values: str) -> str:
        """Over live places: (batch, n) -> (batch, 1)."""

    def by_count(self, values: str) -> str:
        """(batch, n) divided by the number of live tokens."""

    def alive_and(self, keep: str) -> str:
        """(batch, n) or (n,) booleans, false where nothing is live."""

    def rows_at(self, chosen: str) -> str:
        """The packed rows at these places of the flattened grid: (fewer,) -> (fewer,)."""

    def filled(self, chosen: str) -> str:
        """Places of the flattened grid, and those of idle rows behind them where there are any."""

    def after(self, keep: str, chosen: str) -> "Live":
        """What is live when only `keep` stays, which is at the places `chosen` of the flattened grid."""


@dataclass(frozen=True)
class Rows:
    """What is known of live rows, packed: (total, ...) each; None where nobody asks.

    protected: booleans; positions: places in the original text; origin: rows of the packed input.
    """

    live: Live
    hidden: str
    protected: str | None = None
    positions: str | None = None
    origin: str | None = None


def true_places(graph: Graph, flags: str) -> str:
    """Where booleans of any shape are true, as places of the flattened array: (count,) int64."""
    flat = graph.node("Reshape", flags, graph.whole(-1))
    return str(graph.node("Reshape", graph.node("NonZero", flat), graph.whole(-1)))


class Batch:
    """Texts of different lengths."""

    lead = 1

    def __init__(self, graph: Graph, *, counts: str, total: str) -> None:
        """counts: (batch,) int64; total: (1,) int64, their sum."""
        self.graph, self.counts, self.total = graph, counts, total

    @cached_property
    def places(self) -> str:
        longest = self.graph.node("ReduceMax", self.counts, keepdims=0)
        return str(self.graph.node("Range", self.graph.one_whole(0), longest, self.graph.one_whole(1)))

    @cached_property
    def first(self) -> str:
        return str(self.graph.node("CumSum", self.counts, self.graph.one_whole(0), exclusive=1))

    @cached_property
    def column(self) -> str:
        """(batch, 1) counts."""
        return str(self.graph.node("Unsqueeze", self.counts, self.graph.whole(1)))

    @cached_property
    def alive(self) -> str:
        """(batch, n) booleans."""
        return str(self.graph.node("Less", self.places, self.column))

    @cached_property
    def numbers(self) -> str:
        """(batch, n) 1 where a token is live, otherwise 0."""
        return str(self.graph.node("Cast", self.alive, to=1))

    @cached_property
    def rows(self) -> str:
        """(batch, n) the row of each place; where nothing is live, that of some other token."""
        graph = self.graph
        begin = graph.node("Unsqueeze", self.first, graph.whole(1))
        last = graph.node("Sub", self.total, graph.whole(1))
        return str(graph.node("Min", graph.node("Add", begin, self.places), last))

    @cached_property
    def mask(self) -> str | None:
        graph = self.graph
        flags = graph.node("Where", self.alive, graph.number(0.0), graph.number(LOWEST))
        return str(graph.node("Unsqueeze", flags, graph.whole(1, 2)))

    def masked(self, seen: str) -> str:
        graph = self.graph
        seen = graph.node("And", seen, graph.node("Unsqueeze", self.alive, graph.whole(1)))
        flags = graph.node("Where", seen, graph.number(0.0), graph.number(LOWEST))
        return str(graph.node("Unsqueeze", flags, graph.whole(1)))

    @cached_property
    def live_places(self) -> str:
        return true_places(self.graph, self.alive)

    def grid(self, values: str) -> str:
        return str(self.graph.node("Gather", values, self.rows, axis=0))

    def packed(self, values: str) -> str:
        return str(self.graph.node("Gather", values, self.live_places, axis=0))

    def cleared(self, values: str) -> str:
        alive = self.graph.node("Unsqueeze", self.alive, self.graph.whole(2))
        return str(self.graph.node("Where", alive, self.grid(values), self.graph.number(0.0)))

    def received(self, probabilities: str, counted: str | None) -> str:
        weights = self.numbers if counted is None else self.graph.node("Mul", self.numbers, counted)
        weights = self.graph.node("Unsqueeze", weights, self.graph.whole(1, 2))
        sums = self.graph.node("MatMul", weights, probabilities)
        return str(self.graph.node("Squeeze", sums, self.graph.whole(2)))

    def mean(self, values: str) -> str:
        live = self.graph.node("Mul", values, self.numbers)
        total = self.graph.node("ReduceSum", live, self.graph.whole(-1), keepdims=1)
        return self.by_count(total)

    def by_count(self, values: str) -> str:
        return str(self.graph.node("Div", values, self.graph.node("Cast", self.column, to=1)))

    def alive_and(self, keep: str) -> str:
        return str(self.graph.node("And", self.alive, keep))

    def rows_at(self, chosen: str) -> str:
        flat = self.graph.node("Reshape", self.rows, self.graph.whole(-1))
        return str(self.graph.node("Gather", flat, chosen, axis=0))

    def filled(self, chosen: str) -> str:
        return chosen

    def after(self, keep: str, chosen: str) -> "Batch":
        graph = self.graph
        counts = graph.node("ReduceSum", graph.node("Cast", keep, to=7), graph.whole(1), keepdims=0)
        return Batch(graph, counts=counts, total=graph.node("Shape", chosen))


class OneText:
    """A single text: its rows are the packed rows, and all are live."""

    lead = 0

    def __init__(self, graph: Graph, *, counts: str) -> None:
        """counts: (1,) int64, the live tokens."""
        self.graph, self.counts = graph, counts

    @cached_property
    def mask(self) -> str | None:
        return None

    @cached_property
    def places(self) -> str:
        longest = self.graph.node("Squeeze", self.counts, self.graph.whole(0))
        return str(self.graph.node("Range", self.graph.one_whole(0), longest, self.graph.one_whole(1)))

    @property
    def first(self) -> str:
        return self.graph.whole(0)

    def masked(self, seen: str) -> str:
        return str(self.graph.node("Where", seen, self.graph.number(0.0), self.graph.number(LOWEST)))

    def grid(self, values: str) -> str:
        return values

    def packed(self, values: str) -> str:
        return values

    def cleared(self, values: str) -> str:
        return str(self.graph.node("Unsqueeze", values, self.graph.whole(0)))

    def received(self, probabilities: str, counted: str | None) -> str:
        if counted is None:
            return str(self.graph.node("ReduceSum", probabilities, self.graph.whole(-2), keepdims=0))
        return self._from(self.graph.node("Unsqueeze", counted, self.graph.whole(0)), probabilities)

    def _from(self, weights: str, probabilities: str) -> str:
        """(1, n) x (heads, n, n) -> (heads, n)."""
        sums = self.graph.node("MatMul", weights, probabilities)
        return str(self.graph.node("Squeeze", sums, self.graph.whole(-2)))

    def mean(self, values: str) -> str:
        return str(self.graph.node("ReduceMean", values, self.graph.whole(-1), keepdims=1))

    def by_count(self, values: str) -> str:
        return str(self.graph.node("Div", values, self.graph.node("Cast", self.counts, to=1)))

    def alive_and(self, keep: str) -> str:
        return keep

    def rows_at(self, chosen: str) -> str:
        return chosen

    def filled(self, chosen: str) -> str:
        return chosen

    def after(self, keep: str, chosen: str) -> "OneText":
        return OneText(self.graph, counts=self.graph.node("Shape", chosen))


class Stepped(OneText):
    """A single text whose number of rows is a multiple of a step, so that shapes repeat: idle rows, which are copies of
    the first token's, stand behind the live ones."""

    def __init__(self, graph: Graph, *, counts: str, size: str, step: int) -> None:
        """counts: (1,) int64, the live tokens; size: (1,) int64, the rows."""
        super().__init__(graph, counts=counts)
        self.size, self.step = size, step

    @cached_property
    def places(self) -> str:
        longest = self.graph.node("Squeeze", self.size, self.graph.whole(0))
        return str(self.graph.node("Range", self.graph.one_whole(0), longest, self.graph.one_whole(1)))

    @cached_property
    def alive(self) -> str:
        """(n,) booleans."""
        return str(self.graph.node("Less", self.places, self.counts))

    @cached_property
    def numbers(self) -> str:
        """(1, n) 1 where a token is live, otherwise 0."""
        return str(self.graph.node("Unsqueeze", self.graph.node("Cast", self.alive, to=1), self.graph.whole(0)))

    @cached_property
    def mask(self) -> str | None:
        return str(self.graph.node("Where", self.alive, self.graph.number(0.0), self.graph.number(LOWEST)))

    def masked(self, seen: str) -> str:
        return super().masked(str(self.graph.node("And", seen, self.alive)))

    def cleared(self, values: str) -> str:
        alive = self.graph.node("Unsqueeze", self.alive, self.graph.whole(1))
        return super().cleared(str(self.graph.node("Where", alive, values, self.graph.number(0.0))))

    def received(self, probabilities: str, counted: str | None) -> str:
        weights = self.numbers if counted is None else self.graph.node("Mul", self.numbers, counted)
        return self._from(weights, probabilities)

    def mean(self, values: str) -> str:
        live = self.graph.node("Mul", values, self.graph.node("Squeeze", self.numbers, self.graph.whole(0)))
        return self.by_count(str(self.graph.node("ReduceSum", live, self.graph.whole(-1), keepdims=1)))

    def alive_and(self, keep: str) -> str:
        return str(self.graph.node("And", self.alive, keep))

    def filled(self, chosen: str) -> str:
        return filled(self.graph, chosen, self.step)

    def after(self, keep: str, chosen: str) -> "Stepped":
        graph = self.graph
        counts = graph.node("ReduceSum", graph.node("Cast", keep, to=7), graph.whole(0), keepdims=1)
        return Stepped(graph, counts=counts, size=graph.node("Shape", chosen), step=self.step)


def back_in_order(graph: Graph, origins: str, total: str) -> str:
    """(total,) for each row of the input, where in `origins` it is; total: (1,) their number."""
    _, order = graph.node("TopK", origins, total, axis=0, largest=0, sorted=1, outputs=2)
    return str(order)


def filled(graph: Graph, chosen: str, step: int) -> str:
    """(count,) places, and as many times the first one as a multiple of `step` needs."""
    more = graph.node("Mod", graph.node("Neg", graph.node("Shape", chosen)), graph.whole(step))
    return str(graph.node("Pad", chosen, graph.node("Concat", graph.whole(0), more, axis=0)))
