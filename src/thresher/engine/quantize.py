"""One artifact, pruned and int8: a run's copy with calibrated steps, and its quality measured through the engine."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thresher.engine.backends.linear import check_int8
from thresher.engine.calibrate import Text, find_steps
from thresher.engine.choose import STATIC
from thresher.engine.engine import Engine
from thresher.engine.steps import STEPS, write_steps
from thresher.engine.weights import LayerSteps
from thresher.errors import RunError
from thresher.models.checkpoint import MANIFEST, Checkpoint, read_manifest, replacing_folder
from thresher.records import provenance, write_json

KIND = "static symmetric int8, per-channel steps"
DTYPES = ("fp32", "int8", STATIC)
BATCH = 32

Logits = NDArray[np.float32]  # (texts, outputs)


@dataclass(frozen=True)
class Measured:
    """One arithmetic on the test texts: the task's metrics; agreement with fp32, the share of equal decisions
    (for a regression, the correlation); the mean share of its tokens that a layer passes on."""

    metrics: dict[str, float]
    agreement: float
    kept: float


def check_quantize(run: Path, out: Path, *, overwrite: bool = False) -> None:
    """Everything that can be refused before any work."""
    manifest = read_manifest(run)
    if "quantization" in manifest or (run / STEPS).is_file():
        raise RunError(f"{run} is already quantized; give the run that it was made from")
    inner, outer = run.resolve(), out.resolve()
    if inner.is_relative_to(outer) or outer.is_relative_to(inner):
        raise RunError(f"{out} and {run} lie in one another; the quantized copy needs a folder of its own")
    if out.is_file():
        raise RunError(f"{out} is a file; --out must name a folder")
    if out.exists() and any(out.iterdir()):
        if not (out / MANIFEST).is_file():
            raise RunError(f"{out} exists and is not a thresher run; choose another --out")
        if not overwrite:
            raise RunError(f"{out} already holds a run; choose another --out, or replace it with --overwrite")
    above = next(folder for folder in outer.parents if folder.exists())
    try:
        with tempfile.TemporaryDirectory(dir=above, prefix=f".{outer.name}."):
            pass
    except OSError as error:
        raise RunError(f"cannot make {out} in {above}: {error.strerror}; choose another --out") from error
    check_int8()


def quantize(
    run: Path,
    out: Path,
    checkpoint: Checkpoint,
    *,
    calibration: Sequence[Text],
    source: str,
    test: Sequence[Text],
    split: str,
    score: Callable[[Logits], dict[str, float]],
    overwrite: bool = False,
    on_texts: Callable[[int], None] = lambda count: None,
) -> dict[str, Any]:
    """Calibrate, measure, and write `out`: a copy of `run` with steps, and what is known of them in thresher.json.

    `checkpoint` is the loaded run; `source` says where the calibration texts come from, `split` what the test texts
    are; `score` gives the metrics of their logits. `on_texts` is told how many texts were just computed: every
    calibration text once, every test text once for each of DTYPES. Returns the manifest's new block.
    """
    check_quantize(run, out, overwrite=overwrite)
    try:
        with replacing_folder(out) as folder:
            steps = find_steps(checkpoint.model, calibration, on_texts=on_texts)
            measured = _measure(checkpoint, steps, test, score=score, on_texts=on_texts)
            block = {
                "kind": KIND,
                "calibration": {"rows": len(calibration), "source": source},
                "quality": {
                    "split": split,
                    "rows": len(test),
                    **{dtype: asdict(found) for dtype, found in measured.items()},
                    "agreement": measured[STATIC].agreement,
                },
                "provenance": provenance(device="cpu", seed=None),
            }
            shutil.copytree(run, folder, dirs_exist_ok=True)
            write_steps(folder, steps)
            write_json(folder / MANIFEST, {**read_manifest(run), "quantization": block})
    except OSError as error:
        raise RunError(f"cannot write {out}: {error.strerror}; choose another --out") from error
    return block


def _measure(
    checkpoint: Checkpoint,
    steps: Sequence[LayerSteps],
    test: Sequence[Text],
    *,
    score: Callable[[Logits], dict[str, float]],
    on_texts: Callable[[int], None],
) -> dict[str, Measured]:
    found: dict[str, Measured] = {}
    exact: Logits | None = None
    for dtype in DTYPES:
        engine = Engine.from_model(checkpoint.model, checkpoint.tokenizer, backend="cpu", dtype=dtype, steps=steps)
        logits, kept = _run(engine, test, on_texts)
        exact = logits if exact is None else exact
        found[dtype] = Measured(metrics=score(logits), agreement=agreement(logits, exact), kept=kept)
    return found


def _run(engine: Engine, test: Sequence[Text], on_texts: Callable[[int], None]) -> tuple[Logits, float]:
    """Logits in the given order, and the mean share of tokens kept, over the texts and all layers but the last.

    The last layer is left out: it passes on the first token only, whatever the run has learned.
    """
    order = sorted(range(len(test)), key=lambda i: -len(test[i][0]))
    logits: Logits = np.empty((len(test), 0), dtype=np.float32)
    shares: list[NDArray[np.float64]] = []
    for start in range(0, len(order), BATCH):
        batch = order[start : start + BATCH]
        output = engine.executor.compute([test[i][0] for i in batch], [test[i][1] for i in batch])
        if start == 0:
            logits = np.empty((len(test), output.outputs.shape[1]), dtype=np.float32)
        logits[batch] = output.outputs.numpy()
        lengths = np.array([[len(test[i][0])] for i in batch])
        shares.append((output.kept[:, :-1].numpy() / lengths).ravel())
        on_texts(len(batch))
    together = np.concatenate(shares)
    return logits, float(together.mean()) if len(together) else 1.0


def agreement(logits: Logits, exact: Logits) -> float:
    """Share of equal decisions; for a regression, the correlation of the values (1 where both are the same)."""
    if exact.shape[1] > 1:
        return float((logits.argmax(axis=1) == exact.argmax(axis=1)).mean())
    ours, theirs = logits[:, 0], exact[:, 0]
    if np.ptp(ours) == 0 or np.ptp(theirs) == 0:
        return float(np.array_equal(ours, theirs))
    return float(np.corrcoef(ours, theirs)[0, 1])
