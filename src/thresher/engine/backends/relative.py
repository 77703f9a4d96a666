"""Embeddings of distances on CPUs: what they add to attention's logits, gathered tile by tile."""

from torch import Tensor

from thresher.core.layer import LayerSpec
from thresher.core.places import Relative
from thresher.engine.backends.attention import LOG2_E, Bias


def scaled_for_logits(relative: Relative, spec: LayerSpec) -> Relative:
    """For queries whose weights were divided and multiplied by log2(e) before, and keys whose weights were not."""
    keys = None if relative.keys is None else relative.keys / LOG2_E
    queries = None if relative.queries is None else relative.queries / spec.divisor
    return Relative(keys, queries, relative.rows)


def relative_bias(relative: Relative, query: Tensor, key: Tensor, *, at: Tensor, of: Tensor) -> Bias:
    """(runs, heads, rows, keys) of a tile's rows. query, key: (runs x heads, tokens, head width), as `laid_out` gives
    them, idle ones at the end; at (runs, queries), of (runs, keys): original positions, in their order."""
    far = max(int((of[:, -1] - at[:, 0]).max()), int((at[:, -1] - of[:, 0]).max()))
    relative = relative.narrowed(far)
    asking, keys = (part.float().view(len(at), -1, *part.shape[1:]) for part in (query, key))
    of_keys = relative.of_keys(keys[:, :, : of.shape[1]])

    def of_rows(rows: slice) -> Tensor:
        terms = relative.terms(asking[:, :, : at.shape[1]][:, :, rows], of_keys, at[:, rows], of)
        assert isinstance(terms, Tensor)  # a layer has one of the two terms at least
        return terms

    return of_rows
