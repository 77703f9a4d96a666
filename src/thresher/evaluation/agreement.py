"""How far two sets of predictions for the same texts agree, and how sure that number is. No labels are needed."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]  # (texts, outputs)
Z95 = 1.959964  # two-sided 95% of the normal distribution
RESAMPLES = 2000


@dataclass(frozen=True)
class Agreement:
    """Share of equal decisions, or for a regression the correlation of the values, with a 95% interval.

    `kind` names number and interval; `rms` is a regression's root mean square difference over the spread of `exact`.
    """

    value: float
    low: float
    high: float
    texts: int
    kind: str
    rms: float | None = None


def agreement(logits: Logits, exact: Logits) -> float:
    """Share of equal decisions; for a regression, the correlation of the values (1 where both are the same)."""
    if exact.shape[1] > 1:
        return float((logits.argmax(axis=1) == exact.argmax(axis=1)).mean())
    ours, theirs = logits[:, 0], exact[:, 0]
    if np.ptp(ours) == 0 or np.ptp(theirs) == 0:
        return float(np.array_equal(ours, theirs))
    return float(np.corrcoef(ours, theirs)[0, 1])


def measure_agreement(logits: Logits, exact: Logits) -> Agreement:
    """Both (texts, outputs); one output is a regression."""
    value, texts = agreement(logits, exact), len(exact)
    if exact.shape[1] > 1:
        low, high = wilson(round(value * texts), texts)
        return Agreement(value, low, high, texts, "same decision, Wilson interval")
    low, high = _bootstrap(logits[:, 0], exact[:, 0])
    return Agreement(value, low, high, texts, "correlation, bootstrap interval", rms=change(logits, exact))


def wilson(successes: int, trials: int, *, z: float = Z95) -> tuple[float, float]:
    """Interval of a share; unlike value +- error it stays inside 0..1 and has a width even at 0 and 1."""
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(f"{successes} of {trials}: successes must be between 0 and at least one trial")
    share, weight = successes / trials, z * z / trials
    middle = (share + weight / 2) / (1 + weight)
    reach = z / (1 + weight) * math.sqrt(share * (1 - share) / trials + weight / (4 * trials))
    # Rounding must not push the interval past the share itself at 0 and 1.
    return min(share, max(0.0, middle - reach)), max(share, min(1.0, middle + reach))


def assured(value: float, *, texts: int, regression: bool) -> float:
    """What new texts should agree in at least: one standard error below, for a share by Wilson's interval."""
    if regression:
        return value - (1 - value * value) / math.sqrt(texts)
    return wilson(round(value * texts), texts, z=1.0)[0]


def change(logits: Logits, exact: Logits) -> float:
    """How far predictions moved: mean total variation of the probabilities, in 0..1; for a regression see `rms`.

    Smooth, so that a search can follow it where agreement stands still. Bounded per text: with Kullback-Leibler
    divergence a handful of texts decides the search.
    """
    if exact.shape[1] > 1:
        return float(np.abs(_softmax(logits) - _softmax(exact)).sum(axis=1).mean() / 2)
    difference = math.sqrt(float(np.square(logits - exact).mean()))
    spread = float(exact.std())
    return difference / spread if spread > 0 else difference


def _softmax(logits: Logits) -> Logits:
    powers: Logits = np.exp(logits - logits.max(axis=1, keepdims=True))
    total: Logits = powers.sum(axis=1, keepdims=True)
    return powers / total


def _bootstrap(ours: Logits, theirs: Logits) -> tuple[float, float]:
    """Percentiles over resampled texts; the seed is fixed, so the same predictions give the same interval."""
    rows = np.random.default_rng(0).integers(0, len(ours), size=(RESAMPLES, len(ours)))
    found = [agreement(ours[row][:, None], theirs[row][:, None]) for row in rows]
    low, high = np.quantile(found, (0.025, 0.975)).tolist()
    return float(low), float(high)
