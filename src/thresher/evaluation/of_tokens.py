"""Outputs for every token, all texts end to end, where texts were computed in another order or are to be compared."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from thresher.core.heads import OF_TOKENS

Logits = NDArray[np.float32]


def in_order(parts: Sequence[Logits], order: Sequence[int], lengths: Sequence[int], means: str) -> Logits:
    """What was computed text by text in this `order`, in the order of the texts: (texts, outputs), or of tokens
    (total, outputs). lengths: (texts,) tokens, in the texts' order."""
    joined = np.concatenate(list(parts))
    back = np.argsort(np.asarray(order))
    if means not in OF_TOKENS:
        return joined[back]
    starts = np.concatenate([[0], np.cumsum([lengths[text] for text in order])])
    return np.concatenate([joined[starts[place] : starts[place + 1]] for place in back])


def to_compare(outputs: Logits, lengths: Sequence[int], means: str) -> Logits:
    """Outputs as `evaluation.agreement` reads them: those of spans as (texts, 2 x longest), all starts and then all
    ends, minus infinity where a text has no token; all others as they are."""
    if means != "span":
        return outputs
    found = np.full((len(lengths), 2, max(lengths)), -np.inf, np.float32)
    for text, (low, high) in enumerate(pairwise(np.concatenate([[0], np.cumsum(lengths)]).tolist())):
        found[text, :, : high - low] = outputs[low:high].T
    return found.reshape(len(lengths), -1)
