"""Few sizes of batches, for a server: all of them can be prepared before the first request comes.

A stream's batches are full, and alike. A server takes what has come since its last batch, which has any size: with the
fine steps of `bucket_of` nearly every batch would be the first of its kind. Here room that is left over costs a little
time, at most a third of the products before the first pruning, and none at all where a batch ends at a rung.
"""

from thresher.engine.cuda.batch import Layout
from thresher.engine.executor import TYPICAL
from thresher.engine.kernels.prune import FEW_RUNS

LEAST = 64  # tokens
DOUBLING_UP_TO = 2048  # tokens; here, where our kernels compute, unused room costs nothing; then two rungs a doubling
USUAL = 32  # tokens of the mean text, at least, where texts are not short
OFTEN_SHORT = 128  # tokens of the longest text, in the first class of lengths


def rung_above(tokens: int) -> int:
    """The smallest size that holds so many tokens."""
    power = 1 << (tokens - 1).bit_length()
    between = power // 4 * 3
    return between if tokens <= between and power > DOUBLING_UP_TO else max(LEAST, power)


def rung_below(tokens: int) -> int:
    """The largest size that so many tokens fill; the least one where they fill none."""
    power = 1 << (tokens.bit_length() - 1)
    between = power // 2 * 3
    return between if tokens >= between and power >= DOUBLING_UP_TO else max(LEAST, power)


def few_buckets(*, tokens: int, sequences: int, longest: int, positions: int, typed: bool) -> Layout:
    """Room for a batch, with the same arguments as `bucket_of`. Texts are as long as they usually are, or short."""
    rung = rung_above(tokens)
    texts = max(FEW_RUNS, rung // USUAL)
    while texts < sequences:
        texts *= 4
    room = OFTEN_SHORT if longest <= OFTEN_SHORT else 2 * OFTEN_SHORT
    while room < longest:
        room *= 4
    return Layout(tokens=rung, sequences=min(rung, texts), max_length=min(positions, room), typed=typed)


def typical_sizes(*, budget: int, longest: int) -> list[tuple[int, int]]:
    """(texts, tokens of each) of a batch on every rung up to `budget`: of usual texts first, then of many short ones,
    then of longer ones, as far as there are any of up to `longest` tokens."""
    rungs = [rung_below(budget)]
    while rungs[-1] > LEAST:
        rungs.append(rung_below(rungs[-1] - 1))
    many = [rung for rung in rungs if rung >= FEW_RUNS * USUAL]  # smaller ones have room for short texts, too
    found = [(TYPICAL, rungs), (TYPICAL // 4, many)]
    for length in (2 * OFTEN_SHORT, 4 * OFTEN_SHORT):
        if longest > length // 2:
            found.append((length, [rung for rung in rungs if rung >= length]))
    return [
        (rung // min(length, longest), min(length, longest))
        for length, rungs_of_length in found
        for rung in rungs_of_length
    ]
