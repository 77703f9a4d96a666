"""The evaluation job: quality and cost of a saved run on held-out rows, beside the dense model it was made from."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from thresher.engine.checks import check_max_length
from thresher.errors import DataError
from thresher.jobs.measure import Version, measure, plain, remarks_on, with_thresholds
from thresher.jobs.places import pick_device
from thresher.jobs.request import Note, asked, heard
from thresher.jobs.rows import Rows
from thresher.quiet import quiet

if TYPE_CHECKING:
    from thresher.evaluation.quality import Quality
    from thresher.training.progress import Silent


@dataclass(frozen=True, kw_only=True)
class EvaluateRequest(Rows):
    """What `evaluate_run` is asked for: a run's folder, and rows; `max_length` is as in training where not given."""

    PATHS: ClassVar[tuple[str, ...]] = (*Rows.PATHS, "run")

    run: Path
    max_length: int | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_max_length(self.max_length)


@dataclass(frozen=True, kw_only=True)
class EvaluateResult:
    """`splits` is split -> version -> Quality. Versions are pruned, unpruned (the run's weights, nothing dropped) and,
    where the model that pruning started from is still to be had, dense: `dense` says which one that is. `remarks` are
    on what was measured."""

    run: Path
    task: str
    splits: "dict[str, dict[str, Quality]]"
    dense: str | None
    quantized: bool
    provenance: dict[str, Any]
    remarks: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"run": str(self.run), "task": self.task, "splits": plain(self.splits), **self.provenance}


def evaluate_run(
    run: str | Path | EvaluateRequest, *, progress: "Silent | None" = None, note: Note | None = None, **given: Any
) -> EvaluateResult:
    """Quality, relative FLOPs and kept tokens of a saved run on all its test splits, in floating point.

    `given` are fields of `EvaluateRequest`: `evaluate_run("runs/sst2", task="sst2", data="glue")`. For a model in
    memory there is `thresher.evaluate`.
    """
    from thresher.evaluation.lineup import dense_of
    from thresher.evaluation.quality import check_outputs
    from thresher.models.checkpoint import load, load_dense, read_manifest
    from thresher.models.manifest import dense_threshold
    from thresher.records import provenance
    from thresher.tasks.remembered import seen_in_training
    from thresher.tasks.task import labelled

    shown, say = heard(progress, note)
    request = asked(EvaluateRequest, run, given, name="run")
    manifest = read_manifest(request.run)
    rows = request.load_test(request.run, manifest)
    place = pick_device(request.device)
    with quiet():
        checkpoint = load(request.run)
        check_outputs(checkpoint.model, rows, name=request.run, manifest=manifest)
        checkpoint.model.to(place)
        versions = {"pruned": Version({}, pruned=True), "unpruned": Version({}, pruned=False)}  # as they are served
        dense = dense_of(request.run, checkpoint)
        known = dense.folder != request.run
        if known:
            weights = load_dense(dense.folder, whole=True)[0].state_dict()
            versions = {"dense": Version(weights, pruned=False, null_threshold=dense_threshold(manifest)), **versions}
        elif not all(labelled(part, name=rows.spec.name) for part in rows.test.values()):
            raise DataError(
                "rows without labels are judged by agreement with the model that pruning started from, and "
                f"{manifest.get('base_model', 'it')} is not here; put it back, or give rows with labels (--test FILE)"
            )
        say(f"rows: {rows.source}")
        if request.test is not None:
            for text in seen_in_training(manifest.get("task", {}), request.test, rows.test["test"]):
                say(text)
        model, tokenizer, length = checkpoint.model, checkpoint.tokenizer, request.max_length
        if known and versions["dense"].null_threshold is None:
            alone = {"dense": versions["dense"]}
            chosen = with_thresholds(model, tokenizer, rows, alone, max_length=length)["dense"]
            versions["dense"] = replace(chosen, null_threshold=chosen.null_threshold or 0.0)  # never the run's
        splits = measure(model, tokenizer, rows, versions, max_length=length, progress=shown)
    return EvaluateResult(
        run=request.run,
        task=rows.spec.name,
        splits=splits,
        dense=dense.name if known else None,
        quantized="quantization" in manifest,
        provenance=provenance(device=place, seed=None),
        remarks=remarks_on(splits, manifest.get("recipe"), rows),
    )
