"""How far two sets of predictions for the same texts agree, and how sure that number is. No labels are needed."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thresher.tasks.metrics import cosines

Logits = NDArray[np.float32]  # (texts, outputs)
Z95 = 1.959964  # two-sided 95% of the normal distribution
RESAMPLES = 2000


@dataclass(frozen=True)
class Agreement:
    """What `agreement` gives, with a 95% interval.

    `kind` names number and interval; `rms` is the root mean square difference of numbers over the spread of `exact`.
    """

    value: float
    low: float
    high: float
    texts: int
    kind: str
    rms: float | None = None


def meaning_of(exact: Logits, means: str | None) -> str:
    """What outputs mean, one of `core.heads.MEANINGS`; where nobody says so, one output is a value, several classes."""
    return means or ("classes" if exact.shape[1] > 1 else "value")


def counts_decisions(means: str) -> bool:
    """Whether agreement is a share of texts, or of tokens that have tags, each of them the same or not."""
    return means in ("classes", "labels", "span", "tags")


def agreement(logits: Logits, exact: Logits, means: str | None = None) -> float:
    """By what outputs mean: the share of texts with the same class, or with the same labels, all of them; the
    correlation of values or scores (1 where both are the same); the mean cosine of embeddings. Of spans, as
    `of_tokens.to_compare` gives them, the share of texts where start and end are likeliest in the same places; of tags,
    (tokens, tags), the share of tokens with the same tag."""
    means = meaning_of(exact, means)
    if counts_decisions(means) or means == "embedding":
        return float(_by_text(logits, exact, means).mean())
    ours, theirs = logits[:, 0], exact[:, 0]
    if np.ptp(ours) == 0 or np.ptp(theirs) == 0:
        return float(np.array_equal(ours, theirs))
    return float(np.corrcoef(ours, theirs)[0, 1])


def measure_agreement(logits: Logits, exact: Logits, means: str | None = None) -> Agreement:
    """Both (texts, outputs)."""
    means = meaning_of(exact, means)
    value, texts = agreement(logits, exact, means), len(exact)
    if counts_decisions(means):
        low, high = wilson(round(value * texts), texts)
        same = {"classes": "decision", "labels": "labels", "span": "start and end", "tags": "tag of a token"}[means]
        return Agreement(value, low, high, texts, f"same {same}, Wilson interval")
    low, high = _bootstrap(logits, exact, means)
    if means == "embedding":
        return Agreement(value, low, high, texts, "mean cosine, bootstrap interval")
    return Agreement(value, low, high, texts, "correlation, bootstrap interval", rms=change(logits, exact, means))


def _by_text(logits: Logits, exact: Logits, means: str) -> NDArray[Any]:
    """(texts,) whether each decision is the same, or how near each embedding is."""
    if means == "embedding":
        return cosines(logits, exact)
    if means == "labels":
        same: NDArray[Any] = ((logits > 0) == (exact > 0)).all(axis=1)
        return same
    if means == "span":
        ours, theirs = (_places(each).argmax(axis=2) for each in (logits, exact))
        both: NDArray[Any] = (ours == theirs).all(axis=1)
        return both
    return logits.argmax(axis=1) == exact.argmax(axis=1)  # type: ignore[no-any-return]  # typed as Any


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


def assured_of(logits: Logits, exact: Logits, means: str | None = None) -> float:
    """The same from the outputs, whatever they mean; both (texts, outputs)."""
    means = meaning_of(exact, means)
    value, texts = agreement(logits, exact, means), len(exact)
    if means == "embedding":
        return value - float(_by_text(logits, exact, means).std()) / math.sqrt(texts)
    return assured(value, texts=texts, regression=not counts_decisions(means))


def change(logits: Logits, exact: Logits, means: str | None = None) -> float:
    """How far predictions moved: mean total variation of the probabilities, in 0..1, for several labels the mean of
    each label's; for a number see `rms`; for embeddings what the mean cosine lacks.

    Smooth, so that a search can follow it where agreement stands still. Bounded per text: with Kullback-Leibler
    divergence a handful of texts decides the search.
    """
    means = meaning_of(exact, means)
    if means in ("classes", "tags"):
        return float(np.abs(_softmax(logits) - _softmax(exact)).sum(axis=1).mean() / 2)
    if means == "span":
        ours, theirs = (_softmax(_places(each).reshape(2 * len(each), -1)) for each in (logits, exact))
        return float(np.abs(ours - theirs).sum(axis=1).mean() / 2)
    if means == "labels":
        return float(np.abs(_sigmoid(logits) - _sigmoid(exact)).mean())
    if means == "embedding":
        return max(0.0, 1 - agreement(logits, exact, means))  # rounding may take a cosine past 1
    difference = math.sqrt(float(np.square(logits - exact).mean()))
    spread = float(exact.std())
    return difference / spread if spread > 0 else difference


def _places(logits: Logits) -> Logits:
    """(texts, 2 x longest) -> (texts, 2, longest): starts and ends."""
    return logits.reshape(len(logits), 2, -1)


def _softmax(logits: Logits) -> Logits:
    powers: Logits = np.exp(logits - logits.max(axis=1, keepdims=True))
    total: Logits = powers.sum(axis=1, keepdims=True)
    return powers / total


def _sigmoid(logits: Logits) -> Logits:
    found: Logits = np.exp(-np.logaddexp(np.float32(0), -logits))
    return found


def _bootstrap(ours: Logits, theirs: Logits, means: str) -> tuple[float, float]:
    """Percentiles over resampled texts; the seed is fixed, so the same predictions give the same interval."""
    rows = np.random.default_rng(0).integers(0, len(ours), size=(RESAMPLES, len(ours)))
    if means == "embedding":
        near = _by_text(ours, theirs, means)
        found = [float(near[row].mean()) for row in rows]
    else:
        found = [agreement(ours[row], theirs[row], means) for row in rows]
    low, high = np.quantile(found, (0.025, 0.975)).tolist()
    return float(low), float(high)
