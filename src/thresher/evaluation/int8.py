"""What eight bits cost a pruned model: its quality in every arithmetic, measured through the engine on the CPU."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from thresher.core.cost import FULL_BITS, EncoderShape, relative_bit_operations, relative_flops
from thresher.engine.arithmetic import FP8, STATIC
from thresher.engine.backends.eight import EightBits
from thresher.engine.backends.linear import check_int8
from thresher.engine.engine import Engine
from thresher.engine.executor import Executor
from thresher.engine.find_scales import Text
from thresher.engine.packed import PackedExecutor
from thresher.engine.weights import LayerScales, read_weights
from thresher.errors import ConfigError
from thresher.evaluation.agreement import Logits, agreement
from thresher.evaluation.of_tokens import in_order, to_compare
from thresher.models.attach import encoder_shape
from thresher.models.checkpoint import Checkpoint
from thresher.models.heads import head_of
from thresher.models.plan import plan_of

DTYPES = ("fp32", "int8", STATIC, FP8)
EIGHT_BITS = DTYPES[1:]
# Texts to logits (texts, outputs) and kept counts (texts, layers).
Compute = Callable[[Sequence[Text]], tuple[Logits, NDArray[np.int64]]]
BATCH = 32


@dataclass(frozen=True)
class Measured:
    """One arithmetic on the test texts: the task's metrics; agreement with fp32 as in `evaluation.agreement`; the mean
    share of its tokens that a layer passes on; FLOPs over the dense model's; and bit operations over those of the
    dense model in fp16, where other floating point than fp8 counts as 16 bits."""

    metrics: dict[str, float]
    agreement: float
    kept: float
    relative_flops: float
    bit_operations: float


def not_measured() -> dict[str, str]:
    """Of DTYPES those that this processor cannot compute, and why; fp8's twin needs no int8."""
    try:
        check_int8()
    except ConfigError as error:
        return dict.fromkeys(("int8", STATIC), str(error).partition(";")[0])
    return {}


def measured_here(dtypes: Sequence[str]) -> list[str]:
    missing = not_measured()
    return [dtype for dtype in dtypes if dtype not in missing]


def measure_arithmetics(
    checkpoint: Checkpoint,
    scales: Sequence[LayerScales],
    test: Sequence[Text],
    *,
    score: Callable[[Logits], dict[str, float]],
    dtypes: Sequence[str] = DTYPES,
    on_texts: Callable[[int], None] = lambda count: None,
) -> dict[str, Measured]:
    """A loaded run in each of `dtypes` that can be measured here, fp32 first. `score` gives the metrics of the logits;
    `on_texts` is told how many texts were just computed, every one once for each arithmetic."""
    means, lengths = head_of(checkpoint.model).means, [len(ids) for ids, _ in test]
    found: dict[str, Measured] = {}
    exact: Logits | None = None
    for dtype in measured_here(dtypes):
        executor = executor_in(dtype, checkpoint, scales)
        logits, kept = run_texts(computed_by(executor), test, means=means, on_texts=on_texts)
        exact = logits if exact is None else exact
        ours, theirs = (to_compare(each, lengths, means) for each in (logits, exact))
        found[dtype] = Measured(
            metrics=score(logits),
            agreement=agreement(ours, theirs, means),
            **costs(
                encoder_shape(checkpoint.model),
                kept,
                lengths,
                restores=executor.plan.restores,
                eight=dtype in EIGHT_BITS,
            ),
        )
    return found


def executor_in(dtype: str, checkpoint: Checkpoint, scales: Sequence[LayerScales]) -> Executor:
    """What computes a loaded run on the CPU. fp8 is a GPU's: it is measured by its readable twin, anywhere."""
    model = checkpoint.model
    if dtype == FP8:
        return PackedExecutor(EightBits(read_weights(model), plan_of(model), scales=scales))
    return Engine.from_model(model, checkpoint.tokenizer, backend="cpu", dtype=dtype, scales=scales).executor


def computed_by(executor: Executor) -> Compute:
    def compute(texts: Sequence[Text]) -> tuple[Logits, NDArray[np.int64]]:
        output = executor.compute([ids for ids, _ in texts], [types for _, types in texts])
        return output.outputs.numpy(), output.kept.numpy()

    return compute


def run_texts(
    compute: Compute,
    test: Sequence[Text],
    *,
    means: str,
    batch: int = BATCH,
    on_texts: Callable[[int], None] = lambda count: None,
) -> tuple[Logits, NDArray[np.int64]]:
    """Logits and kept counts (texts, layers), in the given order."""
    order = sorted(range(len(test)), key=lambda i: -len(test[i][0]))
    parts: list[Logits] = []
    counts: list[NDArray[np.int64]] = []
    for start in range(0, len(order), batch):
        numbers = order[start : start + batch]
        outputs, kept = compute([test[i] for i in numbers])
        parts.append(outputs)
        counts.append(kept)
        on_texts(len(numbers))
    logits = in_order(parts, order, [len(ids) for ids, _ in test], means)
    return logits, np.concatenate(counts)[np.argsort(np.asarray(order))]


def costs(
    shape: EncoderShape, kept: NDArray[np.int64], lengths: Sequence[int], *, restores: bool, eight: bool
) -> dict[str, float]:
    """What `Measured` says of cost. kept: (texts, layers), lengths: (texts,).

    In the share of tokens the last layer is left out where nobody reads more than first tokens (not `restores`): it
    passes on these, whatever the run has learned.
    """
    tokens, counts = torch.tensor(list(lengths)), torch.from_numpy(kept)
    shares = (counts if restores else counts[:, :-1]) / tokens[:, None]
    return {
        "kept": float(shares.mean()) if shares.numel() else 1.0,
        "relative_flops": float(relative_flops(shape, tokens, counts)),
        "bit_operations": relative_bit_operations(shape, tokens, counts, bits=8 if eight else FULL_BITS),
    }
