"""What an exported file loses: the run's test rows through the written file, beside the engine."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from thresher.config import trained_length
from thresher.engine.arithmetic import STATIC
from thresher.engine.engine import Engine
from thresher.engine.find_scales import Text
from thresher.engine.graphs.build import KEPT
from thresher.engine.graphs.opened import open_file, padded
from thresher.engine.weights import LayerScales
from thresher.errors import ModelError
from thresher.evaluation.agreement import Logits, agreement
from thresher.evaluation.int8 import BATCH, Compute, Measured, computed_by, costs, run_texts
from thresher.evaluation.of_tokens import to_compare
from thresher.evaluation.quality import encoded_inputs
from thresher.exporting.check import results_of
from thresher.jobs.quantize import scoring
from thresher.models.attach import encoder_shape
from thresher.models.checkpoint import Checkpoint
from thresher.models.heads import head_of

if TYPE_CHECKING:
    from thresher.tasks import Example, Task

EXPORTED = "exported"
LEAST = 0.99  # of agreement with the engine in the same arithmetic; below it the file is not the run's
ALONE = 256  # texts that are also computed alone


@dataclass(frozen=True, kw_only=True)
class ExportedQuality:
    """The engine and the file on the first test split: metrics, agreement with fp32, share of tokens kept. `engine`:
    how far the file agrees with the engine in its own arithmetic; `alone`: the share of the first texts of which every
    layer keeps as many tokens alone as in a batch, None where the file takes single texts only."""

    split: str
    rows: int
    measured: dict[str, Measured]
    engine: float
    alone: float | None

    def to_dict(self) -> dict[str, Any]:
        return {
            "split": self.split,
            "rows": self.rows,
            **{name: asdict(found) for name, found in self.measured.items()},
            "agreement_with_the_engine": self.engine,
            "kept_alone_as_in_a_batch": self.alone,
        }


@dataclass(frozen=True)
class Measuring:
    """Rows to measure on, read as the model reads them."""

    split: str
    examples: "list[Example]"
    texts: list[Text]
    score: Callable[[Logits], dict[str, float]]

    @staticmethod
    def of(checkpoint: Checkpoint, task: "Task") -> "Measuring":
        split, examples = next(iter(task.test.items()))
        model, length = checkpoint.model, trained_length(checkpoint.manifest)
        data = encoded_inputs(model, checkpoint.tokenizer, examples, max_length=length)
        texts = [(row.input_ids, row.token_type_ids) for row in data.rows]
        score = scoring(task, examples, data, null_threshold=head_of(model).threshold)
        return Measuring(split, examples, texts, score)


def measure_exported(
    counting: Path,
    checkpoint: Checkpoint,
    measuring: Measuring,
    *,
    types: bool,
    single: bool,
    dense: bool,
    scales: Sequence[LayerScales] = (),
    on_texts: Callable[[int], None] = lambda count: None,
) -> ExportedQuality:
    """`counting`: the file, with the output of kept counts; single: it takes one text at a time."""
    means, texts = head_of(checkpoint.model).means, measuring.texts
    found: dict[str, Logits] = {}
    measured: dict[str, Measured] = {}

    def add(name: str, compute: Compute, batch: int = BATCH) -> None:
        logits, kept = run_texts(compute, texts, means=means, batch=batch, on_texts=on_texts)
        found[name] = to_compare(logits, lengths, means)
        shape, eight = encoder_shape(checkpoint.model), bool(scales) and name != "fp32"
        cost = costs(shape, kept, lengths, restores=restores, eight=eight)
        measured[name] = Measured(measuring.score(logits), agreement(found[name], found["fp32"], means), **cost)

    restores, lengths = head_of(checkpoint.model).reads != "first", [len(ids) for ids, _ in texts]
    for dtype in ("fp32", STATIC) if scales else ("fp32",):
        engine = Engine.from_model(
            checkpoint.model,
            checkpoint.tokenizer,
            backend="cpu",
            dtype=dtype,
            scales=scales,
            dial=0.0 if dense else 1.0,
            workers=0,
        )
        add(dtype, computed_by(engine.executor))
    compute = computed_in(counting, types=types)
    add(EXPORTED, compute, 1 if single else BATCH)
    twin = STATIC if scales else "fp32"
    same = agreement(found[EXPORTED], found[twin], means)
    if not same >= LEAST:
        raise ModelError(
            f"the exported graph agrees with the engine in {twin} by {same:.4f} on {measuring.split}, and {LEAST} is "
            "the least; nothing was written"
        )
    return ExportedQuality(
        split=measuring.split,
        rows=len(measuring.examples),
        measured=measured,
        engine=same,
        alone=None if single else kept_alike(compute, texts[:ALONE]),
    )


def computed_in(counting: Path, *, types: bool) -> Compute:
    """An exported file as what computes texts."""
    opened = open_file(counting, threads=torch.get_num_threads())

    def compute(texts: Sequence[Text]) -> tuple[Logits, NDArray[np.int64]]:
        arrays = padded(texts, types=types)
        found, kept = results_of(opened, arrays), opened([KEPT], arrays)[0]
        return (np.stack(found) if found[0].ndim == 1 else np.concatenate(found)), kept

    return compute


def kept_alike(compute: Compute, texts: Sequence[Text]) -> float:
    """The share of texts whose layers keep as many tokens alone as in batches with others, as they come."""
    same = 0
    for start in range(0, len(texts), BATCH):
        batch = texts[start : start + BATCH]
        together = compute(batch)[1]
        same += sum(np.array_equal(compute([text])[1][0], together[row]) for row, text in enumerate(batch))
    return same / len(texts)
