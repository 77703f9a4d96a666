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
# Texts to logits (texts, outputs) and kept counts (texts, layers).
Compute = Callable[[Sequence[Text]], tuple[Logits, NDArray[np.int64]]]
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
        restores = engine.executor.plan.restores
        logits, kept = run_texts(computed_by(engine), test, restores=restores, means=means, on_texts=on_texts)
        exact = logits if exact is None else exact
        ours, theirs = (to_compare(each, lengths, means) for each in (logits, exact))
        found[dtype] = Measured(metrics=score(logits), agreement=agreement(ours, theirs, means), kept=kept)
    return found


def computed_by(engine: Engine) -> Compute:
    def compute(texts: Sequence[Text]) -> tuple[Logits, NDArray[np.int64]]:
        output = engine.executor.compute([ids for ids, _ in texts], [types for _, types in texts])
        return output.outputs.numpy(), output.kept.numpy()

    return compute


def run_texts(
    compute: Compute,
    test: Sequence[Text],
    *,
    restores: bool,
    means: str,
    batch: int = BATCH,
    on_texts: Callable[[int], None] = lambda count: None,
) -> tuple[Logits, float]:
    """Logits in the given order, and the mean share of tokens kept, over the texts and the layers.

    The last layer is left out where nobody reads more than first tokens (not `restores`): it passes on these, whatever
    the run has learned.
    """
    counted = slice(None) if restores else slice(-1)
    order = sorted(range(len(test)), key=lambda i: -len(test[i][0]))
    parts: list[Logits] = []
    shares: list[NDArray[np.float64]] = []
    for start in range(0, len(order), batch):
        numbers = order[start : start + batch]
        outputs, kept = compute([test[i] for i in numbers])
        parts.append(outputs)
        lengths = np.array([[len(test[i][0])] for i in numbers])
        shares.append((kept[:, counted] / lengths).ravel())
        on_texts(len(numbers))
    together = np.concatenate(shares)
    logits = in_order(parts, order, [len(ids) for ids, _ in test], means)
    return logits, float(together.mean()) if len(together) else 1.0
