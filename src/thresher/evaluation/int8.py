"""What int8 costs a pruned model: its quality in every arithmetic, measured through the engine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from thresher.engine.arithmetic import STATIC
from thresher.engine.engine import Engine
from thresher.engine.find_scales import Text
from thresher.engine.weights import LayerScales
from thresher.evaluation.agreement import Logits, agreement
from thresher.evaluation.of_tokens import in_order, to_compare
from thresher.models.checkpoint import Checkpoint
from thresher.models.heads import head_of

DTYPES = ("fp32", "int8", STATIC)
BATCH = 32


@dataclass(frozen=True)
class Measured:
    """One arithmetic on the test texts: the task's metrics; agreement with fp32 as in `evaluation.agreement`; the mean
    share of its tokens that a layer passes on."""

    metrics: dict[str, float]
    agreement: float
    kept: float


def measure_arithmetics(
    checkpoint: Checkpoint,
    scales: Sequence[LayerScales],
    test: Sequence[Text],
    *,
    score: Callable[[Logits], dict[str, float]],
    on_texts: Callable[[int], None] = lambda count: None,
) -> dict[str, Measured]:
    """A loaded run in each of DTYPES. `score` gives the metrics of the logits; `on_texts` is told how many texts were
    just computed, every one once for each arithmetic."""
    means, lengths = head_of(checkpoint.model).means, [len(ids) for ids, _ in test]
    found: dict[str, Measured] = {}
    exact: Logits | None = None
    for dtype in DTYPES:
        engine = Engine.from_model(checkpoint.model, checkpoint.tokenizer, backend="cpu", dtype=dtype, scales=scales)
        logits, kept = _run(engine, test, on_texts)
        exact = logits if exact is None else exact
        ours, theirs = (to_compare(each, lengths, means) for each in (logits, exact))
        found[dtype] = Measured(metrics=score(logits), agreement=agreement(ours, theirs, means), kept=kept)
    return found


def _run(engine: Engine, test: Sequence[Text], on_texts: Callable[[int], None]) -> tuple[Logits, float]:
    """Logits in the given order, and the mean share of tokens kept, over the texts and the layers.

    The last layer is left out where nobody reads more than first tokens: it passes on these, whatever the run has
    learned.
    """
    counted = slice(None) if engine.executor.plan.restores else slice(-1)
    order = sorted(range(len(test)), key=lambda i: -len(test[i][0]))
    parts: list[Logits] = []
    shares: list[NDArray[np.float64]] = []
    for start in range(0, len(order), BATCH):
        batch = order[start : start + BATCH]
        output = engine.executor.compute([test[i][0] for i in batch], [test[i][1] for i in batch])
        parts.append(output.outputs.numpy())
        lengths = np.array([[len(test[i][0])] for i in batch])
        shares.append((output.kept[:, counted].numpy() / lengths).ravel())
        on_texts(len(batch))
    together = np.concatenate(shares)
    logits = in_order(parts, order, [len(ids) for ids, _ in test], engine.head.means)
    return logits, float(together.mean()) if len(together) else 1.0
