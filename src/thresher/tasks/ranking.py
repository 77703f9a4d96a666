"""How well rows are ordered: query by query against their relevance, or against another model's scores."""

import numpy as np
from numpy.typing import NDArray

DEPTH = 10  # of nDCG and MRR
RANK_METRICS = ("ndcg@10", "mrr@10", "map")
Floats = NDArray[np.float64]


def by_query(scores: Floats, relevance: Floats, groups: NDArray[np.integer]) -> dict[str, Floats]:
    """(queries,) values of every metric, queries in the order of their numbers; all arguments are (rows,).

    nDCG takes the relevance as the gain, the others count what is above 0. Of equal scores the least relevant row comes
    first, so that neither luck nor the order of a file helps. A query without a relevant row has NaN: nothing can be
    said of it.
    """
    found: dict[str, list[float]] = {name: [] for name in RANK_METRICS}
    for rows in _rows_of(groups):
        own, gains = scores[rows], relevance[rows]
        ranked = gains[np.lexsort((gains, -own))]
        for name, value in zip(RANK_METRICS, _judged(ranked), strict=True):
            found[name].append(value)
    return {name: np.array(values) for name, values in found.items()}


def mean_by_query(scores: Floats, relevance: Floats, groups: NDArray[np.integer]) -> dict[str, float]:
    """Means over the queries that have a relevant row; 0 where there are none."""
    return {name: _mean(values) for name, values in by_query(scores, relevance, groups).items()}


def order_agreement(scores: Floats, reference: Floats, groups: NDArray[np.integer]) -> dict[str, float]:
    """Mean over queries of Spearman's correlation, and the share of queries whose best row is the same.

    Queries of one row have no order, and those with equal scores throughout no correlation: they do not count, and
    what no query has is left out.
    """
    from scipy.stats import spearmanr

    correlations, same = [], []
    for rows in _rows_of(groups):
        ours, theirs = scores[rows], reference[rows]
        if len(rows) > 1:
            same.append(float(ours.argmax() == theirs.argmax()))
            if np.ptp(ours) > 0 and np.ptp(theirs) > 0:
                correlations.append(float(spearmanr(ours, theirs).statistic))
    found = {"spearman": correlations, "top1": same}
    return {name: _mean(np.array(values)) for name, values in found.items() if values}


def _judged(ranked: Floats) -> tuple[float, float, float]:
    """nDCG, reciprocal rank and average precision of relevances in the order of the scores."""
    right = ranked > 0
    if not right.any():
        return float("nan"), float("nan"), float("nan")
    discounts = 1 / np.log2(np.arange(2, DEPTH + 2))
    best = np.sort(ranked)[::-1][:DEPTH]
    gain = (ranked[:DEPTH] * discounts[: len(best)]).sum() / (best * discounts[: len(best)]).sum()
    first = int(right.argmax())
    places = np.flatnonzero(right) + 1
    precision = (np.arange(1, len(places) + 1) / places).mean()
    return float(gain), 1 / (first + 1) if first < DEPTH else 0.0, float(precision)


def _rows_of(groups: NDArray[np.integer]) -> list[NDArray[np.integer]]:
    """Row numbers of each query, queries in the order of their numbers."""
    order = np.argsort(groups, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(groups[order])) + 1) if len(order) else []


def _mean(values: Floats) -> float:
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else 0.0
