"""The quantize job: one artifact, pruned and int8: a run's copy with calibrated scales, perhaps trained on with them,
and its measured quality."""

import functools
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from thresher.config import trained_length
from thresher.core.heads import Head
from thresher.engine.arithmetic import FP8, STATIC
from thresher.engine.backends.linear import check_int8
from thresher.engine.find_scales import Text, find_scales
from thresher.engine.scales import scales_file, write_scales
from thresher.engine.weights import LayerScales
from thresher.errors import ConfigError, DataError, RunError
from thresher.evaluation.agreement import Logits
from thresher.evaluation.int8 import DTYPES, Measured, measure_arithmetics, measured_here, not_measured
from thresher.evaluation.quality import check_outputs, encoded_inputs
from thresher.jobs.places import alone, check_output, check_place, pick_device
from thresher.jobs.quantize_training import TrainedOn, settings_for, teacher_of, train_in_int8, write_weights
from thresher.jobs.request import Note, asked, heard
from thresher.jobs.rows import Rows, load_own_rows
from thresher.jobs.texts import as_inputs, halves, unlabelled_task
from thresher.models.checkpoint import MANIFEST, Checkpoint, load, read_manifest, replacing_folder
from thresher.models.heads import head_of
from thresher.quiet import quiet
from thresher.records import provenance, write_json
from thresher.tasks.files import read_texts
from thresher.tasks.splits import fingerprint, spread
from thresher.workplace import work_of

if TYPE_CHECKING:
    from thresher.tasks import Example, Task
    from thresher.tasks.encode import EncodedSet
    from thresher.training.progress import Silent

KIND = "static symmetric int8, per-channel scales"  # fp8 has the same scales
FEWEST = 16  # texts without labels: half of them say how near int8 comes to fp32


@dataclass(frozen=True, kw_only=True)
class QuantizeRequest(Rows):
    """What `quantize` is asked for: a run's folder, the rows it was made with, and at most how many `rows` of them
    calibrate int8. With none named they are those of the run's own task. Or `texts`, a file without labels with one a
    line: half of them calibrate, and the others are measured by agreement with fp32.

    `epochs` trains on after that, with the calibrated scales and the dense model as the teacher, on `device`;
    `settings` are those of `TrainConfig` in place of the run's own, and `resume` goes on with an interrupted run. With
    `unrounded` it trains on in floating point and calibrates after that: the control of training in int8. `static_only`
    measures static int8 beside fp32, and neither dynamic int8 nor fp8."""

    PATHS: ClassVar[tuple[str, ...]] = (*Rows.PATHS, "train", "selection", "texts", "run", "out")
    COUNTS: ClassVar[tuple[str, ...]] = ("rows",)

    run: Path
    out: Path
    train: Path | None = None
    selection: Path | None = None
    texts: Path | None = None
    rows: int = 256
    epochs: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    device: str = "auto"
    unrounded: bool = False
    static_only: bool = False
    resume: bool = False
    overwrite: bool = False

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The arithmetics to measure."""
        return ("fp32", STATIC) if self.static_only else DTYPES

    @property
    def work(self) -> Path:
        """Where the state of unfinished training lives."""
        return work_of(self.out)

    def __post_init__(self) -> None:
        if self.epochs is None and (self.settings or self.resume or self.unrounded or self.device != "auto"):
            rule = "settings (--set), --device, --unrounded and --resume are for training"
            raise ConfigError(f"{rule}; say how long with --epochs")
        if self.epochs is not None and not self.epochs > 0:
            raise ConfigError(
                f"epochs = {self.epochs:g} must be greater than 0; leave it out to quantize without training"
            )
        if self.epochs is not None and self.texts is not None:
            raise ConfigError(f"--epochs trains on rows, and --texts {self.texts} has none; name the run's own rows")
        number = str(self.texts) if self.texts is not None else ""
        if number.isdigit() and not Path(number).is_file():
            rule = "texts names a file with one text a line"
            raise ConfigError(f"texts = {number} is a number; {rule}, and the number of rows is --rows {number}")
        super().__post_init__()

    def load_own(self, manifest: dict[str, Any]) -> "Task | None":
        """The rows of a task; None where texts are given, which are read as the model's inputs."""
        if self.texts is not None:
            return None
        return self.loaded or load_own_rows(
            self.run,
            manifest,
            task=self.task_name,
            data=self.data,
            train=self.train,
            selection=self.selection,
            test=self.test,
            columns=self.columns,
        )

    def source(self, task: "Task") -> str:
        """What calibrates, without the machine's folders."""
        return f"training rows of {task.spec.name}" if self.texts is None else f"texts in {self.texts.name}"

    def from_texts(self, manifest: dict[str, Any], model: Any) -> "Task":
        """The file's texts as a task without labels: its training rows and its test rows are other texts."""
        file = self.texts
        assert file is not None  # who has none loads a task
        if any((self.task, self.data, self.train, self.selection, self.test, *self.columns)):
            rule = "leave out --task, --data, --train, --selection, --test and the columns"
            raise ConfigError(f"--texts {file} stands alone; {rule}")
        means, names = head_of(model).means, model.config.id2label
        inputs = as_inputs(read_texts(file), file, manifest, means=means, name=self.run)
        measured, calibrating = halves(inputs, means=means, fewest=FEWEST)
        labels = tuple(str(names[i]) for i in range(len(names))) if means in ("classes", "labels", "tags") else ()
        return unlabelled_task(file, calibrating, measured, means=means, labels=labels)


@dataclass(frozen=True, kw_only=True)
class QuantizeResult:
    """A quantized copy of a run: what calibrated it, and each arithmetic on the first test split, or why it is
    `not_measured` here. Without labels the metrics say how near the outputs are to those in fp32."""

    run: Path
    out: Path
    task: str
    calibration_rows: int
    source: str
    split: str
    rows: int
    measured: dict[str, Measured]
    not_measured: dict[str, str]
    head: Head
    provenance: dict[str, Any]
    training: dict[str, Any] | None = None

    def block(self) -> dict[str, Any]:
        """What the copy's thresher.json says of it."""
        return {
            "kind": KIND,
            "calibration": {"rows": self.calibration_rows, "source": self.source},
            **({} if self.training is None else {"training": self.training}),
            "quality": {
                "split": self.split,
                "rows": self.rows,
                **{dtype: asdict(found) for dtype, found in self.measured.items()},
                "agreement": self.measured[STATIC if STATIC in self.measured else FP8].agreement,
            },
            **({"not_measured": self.not_measured} if self.not_measured else {}),
            "provenance": self.provenance,
        }

    def to_dict(self) -> dict[str, Any]:
        return {"run": str(self.run), "out": str(self.out), "task": self.task, **self.block()}


def quantize(
    run: str | Path | QuantizeRequest, *, progress: "Silent | None" = None, note: Note | None = None, **given: Any
) -> QuantizeResult:
    """Calibrate static int8 on training rows, measure it on the test rows, and save a copy of the run with both.

    `given` are fields of `QuantizeRequest`: `quantize("runs/sst2", out="runs/sst2-int8", data="glue", epochs=1)`.
    """
    shown, say = heard(progress, note)
    request = asked(QuantizeRequest, run, given, name="run")
    with alone(request.out):
        return _quantized(request, shown, say)


def _quantized(request: QuantizeRequest, progress: "Silent", note: Note) -> QuantizeResult:
    replaces = request.overwrite or request.resume
    check_quantize(request.run, request.out, overwrite=replaces, dtypes=request.dtypes)
    if request.epochs is not None:
        check_output(request)
    manifest = read_manifest(request.run)
    task = request.load_own(manifest)
    with quiet():
        checkpoint = load(request.run)
        task = task or request.from_texts(manifest, checkpoint.model)
        check_outputs(checkpoint.model, task, name=request.run, manifest=manifest)
        train = None if request.epochs is None else _training(request, checkpoint, task, progress, note)
        chosen = calibration_rows(task, request.rows)
        split, examples = next(iter(task.test.items()))
        length, model = trained_length(manifest), checkpoint.model
        read = [encoded_inputs(model, checkpoint.tokenizer, part, max_length=length) for part in (chosen, examples)]
        calibration, test = ([(row.input_ids, row.token_type_ids) for row in data.rows] for data in read)
        with progress.brief() as bars:
            bars.begin("calibrating", total=len(calibration))
            scales = find_scales(model, calibration, on_texts=_steps(bars))
        trained = None if train is None else train(scales)
        if request.unrounded:  # other weights than those that were calibrated, and none that know of it
            scales = find_scales(model, calibration)
        with progress.brief() as bars:
            bars.begin("measuring", total=len(measured_here(request.dtypes)) * len(test))
            result = write_quantized(
                request.run,
                request.out,
                checkpoint,
                task=task.spec.name,
                scales=scales,
                calibrated_on=len(calibration),
                source=request.source(task),
                test=test,
                split=split,
                rows=len(examples),
                score=scoring(task, examples, read[1], null_threshold=head_of(model).threshold),
                trained=trained,
                dtypes=request.dtypes,
                overwrite=replaces,
                on_texts=_steps(bars),
            )
    if trained is not None:
        shutil.rmtree(request.work, ignore_errors=True)
    return result


def _steps(bars: "Silent") -> Callable[[int], None]:
    def advance(texts: int) -> None:
        for _ in range(texts):
            bars.step()

    return advance


def _training(
    request: QuantizeRequest, checkpoint: Checkpoint, task: "Task", progress: "Silent", note: Note
) -> Callable[[Sequence[LayerScales]], TrainedOn]:
    """The training that a request asks for, with what it needs at hand; it waits for the scales."""
    assert request.epochs is not None  # who asks for none gets none
    return functools.partial(
        train_in_int8,
        checkpoint,
        task,
        teacher=teacher_of(request.run, checkpoint),
        config=settings_for(checkpoint.manifest, epochs=request.epochs, settings=request.settings),
        work=request.work,
        resume=request.resume,
        device=pick_device(request.device),
        rounded=not request.unrounded,
        progress=progress,
        note=note,
    )


def scoring(
    task: "Task", rows: "list[Example]", data: "EncodedSet", *, null_threshold: float
) -> Callable[[Logits], dict[str, float]]:
    """The metrics of logits; of rows without labels against the first logits that it is given, those in fp32. data: the
    rows as they were read; answers are withheld by the run's own threshold."""
    exact: list[Logits] = []

    def score(logits: Logits) -> dict[str, float]:
        exact.append(logits)
        truth = task.spec.truth(rows, dense=exact[0], data=data)
        return task.score(logits, truth.with_threshold(null_threshold))

    return score


def check_quantize(run: Path, out: Path, *, overwrite: bool = False, dtypes: Sequence[str] = DTYPES) -> None:
    """Everything that can be refused before any work."""
    manifest = read_manifest(run)
    if "quantization" in manifest or scales_file(run) is not None:
        raise RunError(f"{run} is already quantized; give the run that it was made from")
    inner, outer = run.resolve(), out.resolve()
    if inner.is_relative_to(outer) or outer.is_relative_to(inner):
        raise RunError(f"{out} and {run} lie in one another; the quantized copy needs a folder of its own")
    check_place(out, overwrite=overwrite)
    if FP8 not in dtypes:  # nothing would be left to measure
        check_int8()


def calibration_rows(task: "Task", count: int) -> "list[Example]":
    """Training rows, evenly spread. Published data has training rows that are test rows too: those are left out."""
    tested = {fingerprint(row) for rows in task.test.values() for row in rows}
    rows = [row for row in task.train if fingerprint(row) not in tested]
    if not rows:
        raise DataError(f"task {task.spec.name} has no training rows that are not test rows too; int8 needs some")
    return spread(rows, count)


def write_quantized(
    run: Path,
    out: Path,
    checkpoint: Checkpoint,
    *,
    task: str,
    scales: Sequence[LayerScales],
    calibrated_on: int,
    source: str,
    test: Sequence[Text],
    split: str,
    score: Callable[[Logits], dict[str, float]],
    rows: int | None = None,
    trained: TrainedOn | None = None,
    dtypes: Sequence[str] = DTYPES,
    overwrite: bool = False,
    on_texts: Callable[[int], None] = lambda count: None,
) -> QuantizeResult:
    """Measure, and write `out`: a copy of `run` with scales, and what is known of them in thresher.json.

    `checkpoint` is the loaded run, whose model may have been `trained` on with the scales; `source` says where the
    calibration texts come from, `split` what the test texts are; `score` gives the metrics of their logits, first of
    those in fp32; `rows` is how many rows the test texts make, where it is not one a text. `on_texts` is told how many
    texts were just computed, every one once for each of `dtypes` that can be
    measured here.
    """
    check_quantize(run, out, overwrite=overwrite, dtypes=dtypes)
    with replacing_folder(out) as folder:
        result = QuantizeResult(
            run=run,
            out=out,
            task=task,
            calibration_rows=calibrated_on,
            source=source,
            split=split,
            rows=len(test) if rows is None else rows,
            measured=measure_arithmetics(checkpoint, scales, test, score=score, dtypes=dtypes, on_texts=on_texts),
            not_measured={dtype: why for dtype, why in not_measured().items() if dtype in dtypes},
            head=head_of(checkpoint.model),
            provenance=provenance(device="cpu", seed=None),
            training=None if trained is None else trained.block,
        )
        shutil.copytree(run, folder, dirs_exist_ok=True)
        if trained is not None:
            write_weights(checkpoint.model, folder)
        write_scales(folder, scales)
        changed = {} if trained is None else trained.description
        write_json(folder / MANIFEST, {**read_manifest(run), **changed, "quantization": result.block()})
    return result
