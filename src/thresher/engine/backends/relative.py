"""Embeddings of distances on CPUs: what they add to attention's logits, gathered tile by tile."""

import torch
from torch import Tensor

from thresher.core.layer import LayerSpec
from thresher.core.places import Relative
from thresher.engine.backends.attention import LOG2_E, ROOM, Bias


def scaled_for_logits(relative: Relative, spec: LayerSpec) -> Relative:
    """For queries whose weights were divided and multiplied by log2(e) before, and keys whose weights were not."""
    keys = None if relative.keys is None else relative.keys / LOG2_E
    queries = None if relative.queries is None else relative.queries / spec.divisor
    return Relative(keys, queries, relative.rows)


def relative_bias(relative: Relative, query: Tensor, key: Tensor, *, at: Tensor, of: Tensor) -> Bias:
    """(runs, heads, rows, keys) of a tile's rows. query, key: (runs x heads, tokens, head width), as `laid_out` gives
    them in float32; at (runs, queries), of (runs, keys): original positions, in their order."""
    relative = relative.narrowed(max(int((of[:, -1] - at[:, 0]).max()), int((at[:, -1] - of[:, 0]).max())))
    asking, keys = (part.view(len(at), -1, *part.shape[1:]) for part in (query, key))
    of_keys = relative.of_keys(keys)

    def of_rows(rows: slice) -> Tensor:
        terms = relative.terms(asking[:, :, rows], of_keys, at[:, rows], of)
        assert isinstance(terms, Tensor)  # a layer has one of the two terms at least
        return terms

    return of_rows


def long_bias(relative: Relative, query: Tensor, key: Tensor, *, positions: Tensor) -> Bias:
    """The same for one long run, in kept room.

    query, key: (heads, tokens, head width) with idle tokens at the end, in any dtype; positions: (tokens,) without
    them. Products are in float32: in half precision, theirs and those of queries and keys would be off by too much.
    """
    relative, heads, tokens = relative.narrowed(int(positions[-1] - positions[0])), len(query), len(positions)
    of_keys = None if relative.queries is None else _products("of keys", key[:, :tokens], relative.queries)

    def of_rows(rows: slice) -> Tensor:
        index = relative.index(positions[rows], positions)
        shape = (heads, len(index), tokens)
        found: list[Tensor] = []
        if relative.keys is not None:
            table = _products("of queries", query[:, rows][:, : len(index)], relative.keys)
            found.append(_gathered("term", table, index.expand(shape)))
        if of_keys is not None:  # of a key's row, wherever the query is: as one long row for all
            table = of_keys.flatten(1)[:, None].expand(-1, len(index), -1)
            places = index.add_(torch.arange(tokens) * of_keys.shape[2])
            found.append(_gathered("other term", table, places.expand(shape)))
        return (found[0] if len(found) == 1 else found[0].add_(found[1]))[None]

    return of_rows


def _products(use: str, states: Tensor, embeddings: Tensor) -> Tensor:
    """(heads, tokens, width) x (heads, embeddings, width) -> (heads, tokens, embeddings)."""
    exact = ROOM.empty("states", states.shape, torch.float32).copy_(states)
    room = ROOM.empty(use, (*states.shape[:2], embeddings.shape[1]), torch.float32)
    return torch.bmm(exact, embeddings.transpose(1, 2), out=room)


def _gathered(use: str, table: Tensor, index: Tensor) -> Tensor:
    return torch.gather(table, -1, index, out=ROOM.empty(use, index.shape, torch.float32))
