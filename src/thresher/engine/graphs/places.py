"""Where tokens are, as nodes: rotations, windows, biases and embeddings of distances, always by original positions."""

from collections.abc import Callable, Hashable

import torch

from thresher.core.layer import LayerSpec
from thresher.core.places import Relative, turns
from thresher.core.plan import PruningPlan
from thresher.engine.graphs.graph import Graph
from thresher.engine.graphs.rows import Rows
from thresher.engine.weights import Layer, Weights


def needs_positions(weights: Weights, plan: PruningPlan) -> bool:
    """Whether attention or scores ask where tokens were, beside what the embeddings say."""
    by_place = any(spec.positions != "table" or spec.window is not None for spec in weights.specs)
    return by_place or plan.score_queries != 1


class Places:
    """What is the same for several layers is made once, until something is dropped."""

    def __init__(self, graph: Graph, weights: Weights, *, counts: str, score_queries: int) -> None:
        """counts: (batch,) tokens of the texts, before anything is dropped."""
        self.graph, self.weights, self.counts, self.score_queries = graph, weights, counts, score_queries
        self._made: dict[Hashable, str] = {}

    def turned(self, spec: LayerSpec, values: str, rows: Rows) -> str:
        """Queries or keys, or both, turned by the rows' positions: (total, parts x width)."""
        if spec.rotary_base is None:
            return values
        graph, width, base = self.graph, spec.head_width, spec.rotary_base
        cosines, sines = turns(torch.arange(self.weights.positions), base=base, width=width)
        sines = torch.cat([-sines[:, : width // 2], sines[:, width // 2 :]], dim=1)  # the sign of the half that changes
        cosine = self._once((rows.live, base, "cosines"), lambda: self._rows_of("cosines", cosines, base, rows))
        sine = self._once((rows.live, base, "sines"), lambda: self._rows_of("sines", sines, base, rows))
        heads = graph.node("Reshape", values, graph.whole(0, -1, width))
        low, high = graph.node("Split", heads, axis=-1, num_outputs=2, outputs=2)
        swapped = graph.node("Concat", high, low, axis=-1)
        found = graph.node("Add", graph.node("Mul", heads, cosine), graph.node("Mul", swapped, sine))
        return str(graph.node("Reshape", found, graph.node("Shape", values)))

    def bias(self, layer: Layer, rows: Rows, query: str, key: str, *, name: str, first: bool = False) -> str | None:
        """What is added to logits, the mask of live keys in it: (batch, heads, queries, n), or what broadcasts to it.

        query: (batch, heads, queries, head width), key: (batch, heads, head width, n); first: queries are of first
        tokens only, which are at position 0.
        """
        graph, live, spec = self.graph, rows.live, layer.spec
        mask = live.mask
        if spec.window is not None:
            window = spec.window
            mask = self._once((live, "window", window, first), lambda: self._window(rows, window, first))
        if layer.relative is not None:
            terms = self._terms(layer.relative, spec, rows, query, key, name=name, first=first)
            return terms if mask is None else str(graph.node("Add", terms, mask))
        if self.weights.distance_bias is not None:
            return self._once((live, "bias", first), lambda: self._from_table(rows, first))
        return mask

    def counted(self, rows: Rows) -> str | None:
        """(batch, n) how much each query's attention counts, 1 on average over live ones; None where all count alike.
        See `counted_queries`."""
        if self.score_queries == 1:
            return None
        return self._once((rows.live, "counted"), lambda: self._counted(rows))

    def _counted(self, rows: Rows) -> str:
        graph, at = self.graph, rows.live.grid(_positions(rows))
        if self.score_queries > 1:
            at = graph.node("Mod", at, graph.one_whole(self.score_queries))
        flags = graph.node("Cast", graph.node("Equal", at, graph.one_whole(0)), to=1)
        return str(graph.node("Div", flags, rows.live.mean(flags)))

    def _distance(self, rows: Rows, first: bool) -> str:
        """(batch, queries, n) of keys from queries."""

        def make() -> str:
            at = rows.live.grid(_positions(rows))
            keys = self.graph.node("Unsqueeze", at, self.graph.whole(-2))
            if first:
                return str(keys)
            return str(self.graph.node("Sub", keys, self.graph.node("Unsqueeze", at, self.graph.whole(-1))))

        return self._once((rows.live, "distance", first), make)

    def _rows_of(self, name: str, table: torch.Tensor, base: float, rows: Rows) -> str:
        """(total, 1, head width), for all heads."""
        stored = self.graph.vector(table, name=f"{name}_{base:g}")
        found = self.graph.node("Gather", stored, _positions(rows), axis=0)
        return str(self.graph.node("Unsqueeze", found, self.graph.whole(1)))

    def _window(self, rows: Rows, window: int, first: bool) -> str:
        """(batch, 1, queries, n) the mask of keys that are near enough."""
        distance = self.graph.node("Abs", self._distance(rows, first))
        return rows.live.masked(self.graph.node("LessOrEqual", distance, self.graph.one_whole(window)))

    def _from_table(self, rows: Rows, first: bool) -> str:
        """(batch, heads, queries, n) by distance, with the mask in it."""
        graph, live, table = self.graph, rows.live, self.weights.distance_bias
        assert table is not None
        distance = graph.node("Add", self._distance(rows, first), graph.one_whole(len(table) // 2))
        found = graph.node("Gather", graph.vector(table.T, name="distance_bias"), distance, axis=1)
        if live.mask is None:
            return str(found)
        found = graph.node("Transpose", found, perm=(1, 0, 2, 3)) if live.lead else found
        return str(graph.node("Add", found, live.mask))

    def _terms(
        self, relative: Relative, spec: LayerSpec, rows: Rows, query: str, key: str, *, name: str, first: bool
    ) -> str:
        """(batch, heads, queries, n) of embeddings of distances; see `Relative`. Queries are divided already."""
        graph, heads = self.graph, spec.heads
        low, high = (self._narrowed(relative, end) for end in (False, True))
        index = self._once(
            (rows.live, "index", relative.rows.numpy().tobytes(), first), lambda: self._index(relative, rows, first)
        )
        sizes = graph.whole(*([1] * rows.live.lead), heads, 1, 1)
        index = self._once((index, heads), lambda: self.graph.node("Expand", index, sizes))

        def some(table: torch.Tensor, kind: str, axis: int) -> str:
            stored = graph.matrix(table, name=f"{name}.{kind}")
            return str(graph.node("Slice", stored, low, high, graph.whole(axis)))

        found = []
        if relative.keys is not None:
            asked = graph.node("MatMul", query, some(relative.keys.transpose(1, 2), "relative_keys", 2))
            found.append(graph.node("GatherElements", asked, index, axis=-1))
        if relative.queries is not None:
            asked = graph.node("MatMul", some(relative.queries / spec.divisor, "relative_queries", 1), key)
            found.append(graph.node("GatherElements", asked, index, axis=-2))
        return str(found[0] if len(found) == 1 else graph.node("Add", *found))

    def _far(self, relative: Relative) -> str:
        """(1,) the largest distance that any two tokens of a text here have, or that there are embeddings for."""
        graph, reach = self.graph, len(relative.rows) // 2
        last = graph.node("Sub", graph.node("ReduceMax", self.counts, keepdims=1), graph.whole(1))
        return str(graph.node("Min", last, graph.whole(reach)))

    def _narrowed(self, relative: Relative, end: bool) -> str:
        """(1,) the first embedding that is asked for here, or the one after the last: rows never fall."""
        graph, reach = self.graph, len(relative.rows) // 2

        def make() -> str:
            far = self._once(("far", reach), lambda: self._far(relative))
            rows = graph.wholes(relative.rows, name="relative_rows")
            if not end:
                return str(graph.node("Gather", rows, graph.node("Sub", graph.one_whole(reach), far), axis=0))
            last = graph.node("Gather", rows, graph.node("Add", graph.one_whole(reach), far), axis=0)
            return str(graph.node("Add", last, graph.one_whole(1)))

        return self._once(("narrowed", relative.rows.numpy().tobytes(), end), make)

    def _index(self, relative: Relative, rows: Rows, first: bool) -> str:
        """(batch, 1, queries, n) which of the narrowed embeddings is the one of query minus key."""
        graph, reach = self.graph, len(relative.rows) // 2
        distance = graph.node("Neg", self._distance(rows, first))
        distance = graph.node("Max", graph.node("Min", distance, graph.one_whole(reach)), graph.one_whole(-reach))
        place = graph.node("Add", distance, graph.one_whole(reach))
        found = graph.node("Gather", graph.wholes(relative.rows, name="relative_rows"), place, axis=0)
        return str(graph.node("Unsqueeze", graph.node("Sub", found, self._narrowed(relative, False)), graph.whole(-3)))

    def _once(self, key: Hashable, make: Callable[[], str]) -> str:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]


def _positions(rows: Rows) -> str:
    assert rows.positions is not None  # `needs_positions` says who asks
    return rows.positions
