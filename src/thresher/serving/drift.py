"""Whether texts are still like those that thresholds were made for: what they keep, and how often the dense model
agrees."""

import logging
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from thresher.engine.answers import Answers
from thresher.engine.token_answers import TokenAnswers
from thresher.serving.computing import Computing
from thresher.serving.gears import Measured
from thresher.serving.worker import Batch
from thresher.tokenizing.tokens import Tokens

RECENT = 2000  # texts that are compared with the calibration
LEAST = 500  # before which nothing is said
SHIFTED = 0.25  # population stability index from which on a distribution is commonly called another one
RARE = 0.005  # share of texts below which a bin counts as if it had so many
SHADOWED = 400  # texts whose agreement is counted
LEAST_SHADOWED = 100
AT_ONCE = 16  # texts that the dense model computes at a time
TOLERANCE = 0.05  # that agreement may be below what was measured, beside three standard errors
log = logging.getLogger("thresher.serving")


def stability_index(found: Any, deciles: Any) -> float:
    """Of values (texts,) against eleven deciles: the sum of (p - q) ln(p / q) over the bins between them, 0 where all
    is as it was. Equal deciles, of a value that many texts share, make one bin; above the last one little is expected.
    """
    edges, counts = np.unique(np.asarray(deciles, float)[1:], return_counts=True)
    expected = np.append(counts / 10, 0.0)
    share = np.bincount(np.searchsorted(edges, found, side="left"), minlength=len(edges) + 1) / len(found)
    p, q = np.maximum(share, RARE), np.maximum(expected, RARE)
    return float(((p - q) * np.log(p / q)).sum())


def agreements(ours: Any, dense: Any) -> list[float]:
    """One number for each text: 1 for the same decision, 0 for another; of embeddings the cosine, of tags the share of
    tokens with the same one, and of answers whether start and end are likeliest where they were."""
    if ours.head.means == "tags":
        both = zip(ours.rows, dense.rows, strict=True)
        return [float((a.argmax(axis=1) == b.argmax(axis=1)).mean()) for a, b in both]
    if ours.head.means == "span":
        both = zip(ours.rows, dense.rows, strict=True)
        return [float((a.argmax(axis=0) == b.argmax(axis=0)).all()) for a, b in both]
    if ours.head.means == "classes":
        return [float(value) for value in ours.classes == dense.classes]
    if ours.head.means == "labels":
        both = zip(ours.labels, dense.labels, strict=True)
        return [float(set(one or ()) == set(other or ())) for one, other in both]
    if ours.head.means == "embedding":
        a, b = ours.outputs, dense.outputs
        norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        return [float(value) for value in (a * b).sum(axis=1) / np.maximum(norms, 1e-12)]
    # Scores and values: within a tenth of where the dense model's is.
    return [float(abs(x - y) <= 0.1 * max(1.0, abs(y))) for x, y in zip(ours.values, dense.values, strict=True)]


class DriftGuard:
    """Stands before what computes: with `falls_back` it lets everything be computed densely once texts drifted, and
    calls `fell_back`.

    `share` of the texts are computed by the dense model, too, when the engine has nothing else to do.
    """

    def __init__(
        self,
        measured: Measured | None,
        computing: Computing,
        *,
        share: float,
        falls_back: bool,
        fell_back: Callable[[], None] = lambda: None,
        seed: int = 0,
    ) -> None:
        self.measured, self._computing, self.share, self.falls_back = measured, computing, share, falls_back
        self._fell_back = fell_back
        self.in_flight = computing.in_flight
        self._kept: deque[float] = deque(maxlen=RECENT)
        self._agreed: deque[float] = deque(maxlen=SHADOWED)
        self._shadow: deque[tuple[Tokens, Answers | TokenAnswers]] = deque(maxlen=8 * AT_ONCE)
        self._random = random.Random(seed)
        self.drifted: str | None = None
        self.index: float | None = None

    @property
    def stalls(self) -> int:
        return self._computing.stalls

    @property
    def agreement(self) -> float | None:
        """Of the texts that both models computed; None before there are some."""
        return float(np.mean(self._agreed)) if self._agreed else None

    @property
    def dense(self) -> bool:
        """Whether everything is computed densely now."""
        return self.drifted is not None and self.falls_back

    def begin(self, tokens: Tokens, dial: float | None) -> Any:
        return self._computing.begin(tokens, 0.0 if self.dense else dial)

    def finish(self, begun: Any) -> Answers | TokenAnswers:
        return self._computing.finish(begun)

    def add(self, batch: Batch) -> None:
        """What a batch kept, at the run's own dial; some of its texts are noted for the dense model."""
        if self.dense or batch.gear.dial != 1:
            return
        answers = batch.answers
        ratios = answers.kept.sum(axis=1) / np.maximum(1, answers.tokens * answers.kept.shape[1])
        self._kept.extend(ratios[answers.good].tolist())
        for number in np.flatnonzero(answers.good).tolist():
            if self.share and self._random.random() < self.share:
                self._shadow.append((batch.tokens.between(number, number + 1), answers.take([number])))
        if self.measured is not None and len(self._kept) >= LEAST:
            self.index = stability_index(np.array(self._kept), self.measured.kept)
            if self.index > SHIFTED:
                self._note(f"kept ratios are not those of the calibration (stability index {self.index:.2f})")

    def look(self) -> None:
        """Compute some of the noted texts densely, when nobody waits for the engine."""
        if not self._shadow or self.dense:
            return
        noted = [self._shadow.popleft() for _ in range(min(AT_ONCE, len(self._shadow)))]
        dense = self._computing.finish(self._computing.begin(Tokens.joined([tokens for tokens, _ in noted]), 0.0))
        ours: list[Any] = [answers for _, answers in noted]
        self._agreed.extend(agreements(type(ours[0]).joined(ours), dense))
        if self.measured is None or len(self._agreed) < LEAST_SHADOWED:
            return
        expected = self.measured.gears[0].agreement
        found, error = float(np.mean(self._agreed)), float(np.std(self._agreed)) / len(self._agreed) ** 0.5
        if found + 3 * error < expected - TOLERANCE:
            self._note(f"the dense model agrees with {found:.3f} of the answers, {expected:.3f} in the calibration")

    def _note(self, why: str) -> None:
        if self.drifted is None:
            self.drifted = why
            does = "; answers are dense from now on" if self.falls_back else ""
            log.warning("drift" + does, extra={"facts": {"why": why}})
            if self.falls_back:
                self._fell_back()
