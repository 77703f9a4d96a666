"""The export job: a run as an ONNX file that drops tokens in stock runtimes, checked against the engine."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from thresher.core.heads import Head
from thresher.core.plan import PruningPlan
from thresher.engine.arithmetic import STATIC
from thresher.engine.backends.linear import check_int8
from thresher.engine.graphs.build import Form, build_model
from thresher.engine.graphs.graph import OPSET
from thresher.engine.graphs.opened import check_packages
from thresher.engine.scales import read_scales, scales_file
from thresher.engine.weights import LayerScales, Weights, read_weights
from thresher.errors import ConfigError, RunError
from thresher.exporting.check import Checked, bounds, check_file, texts_to_check
from thresher.exporting.folder import (
    ABOUT,
    FORMATS,
    form_for,
    needs,
    place_of,
    rounded,
    takes_types,
    write_beside,
    write_graph,
    write_openvino,
)
from thresher.jobs.export_quality import ExportedQuality, Measuring, measure_exported
from thresher.jobs.places import alone, check_place
from thresher.jobs.request import asked, heard
from thresher.jobs.rows import Rows
from thresher.jobs.texts import as_inputs, unlabelled_task
from thresher.models.attach import length_in_training
from thresher.models.checkpoint import Checkpoint, load, read_manifest, replacing_folder
from thresher.models.defaults import longest_read, positions_of
from thresher.models.heads import head_of
from thresher.models.pairs import takes_pairs
from thresher.models.plan import plan_of
from thresher.quiet import quiet
from thresher.records import provenance, write_json

if TYPE_CHECKING:
    from thresher.tasks import Task
    from thresher.training.progress import Silent

FORMAT_VERSION = 1
DIALS = (1.0, 0.0, 0.5, 2.0)  # a graph with a dial is checked at these; the products with thresholds are exact


@dataclass(frozen=True, kw_only=True)
class ExportRequest(Rows):
    """What `export` is asked for: a run's folder and a new one. format: onnx or openvino; batch_one: for single texts
    only, and faster for them; kept: the graph also gives how many tokens each layer passed on; passed: and how many
    layers passed on each token; dense: nothing is dropped; dial: the graph has an input that scales thresholds; int8:
    products with a quantized run's own scales; fp16_weights: matrices are stored in fp16 and computed with in fp32.

    Rows, or `texts`, a file without labels with one a line, measure what the file loses. int8 is always measured: where
    none are named, on the test rows of the run's own task."""

    PATHS: ClassVar[tuple[str, ...]] = (*Rows.PATHS, "texts", "run", "out")

    run: Path
    out: Path
    format: str = "onnx"
    batch_one: bool = False
    kept: bool = False
    passed: bool = False
    dense: bool = False
    dial: bool = False
    int8: bool = False
    fp16_weights: bool = False
    texts: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.format not in FORMATS:
            raise ConfigError(f"format = {self.format!r} is not one of: {', '.join(FORMATS)}")
        if self.dense and self.dial:
            raise ConfigError("--dense drops nothing, and --dial scales what is dropped; give one of them")
        if self.dial and self.format == "openvino":
            raise ConfigError("OpenVINO takes an input with a default for a constant; leave out --dial, or --format")
        if self.texts is not None and self._rows_named:
            rule = "leave out --task, --data, --test and the columns"
            raise ConfigError(f"--texts {self.texts} stands alone; {rule}")

    @property
    def _rows_named(self) -> bool:
        return any(value is not None for value in (self.task, self.data, self.test, *self.columns))

    @property
    def measures(self) -> bool:
        return self.int8 or self._rows_named or self.texts is not None

    def load_rows(self, manifest: dict[str, Any]) -> "Task | None":
        """The task that is measured; None where nothing is, or where `texts` are read as the model's inputs."""
        if not self.measures or self.texts is not None:
            return None
        return self.load_test(self.run, manifest, ways="--texts FILE, --test FILE or --task NAME")

    def from_texts(self, checkpoint: Checkpoint) -> "Task | None":
        """The file's texts as a task without labels, judged by agreement with fp32."""
        from thresher.tasks.files import read_texts

        if self.texts is None:
            return None
        means, names = head_of(checkpoint.model).means, checkpoint.model.config.id2label
        inputs = as_inputs(read_texts(self.texts), self.texts, checkpoint.manifest, means=means, name=self.run)
        labels = tuple(str(names[i]) for i in range(len(names))) if means in ("classes", "labels") else ()
        return unlabelled_task(self.texts, inputs, inputs, means=means, labels=labels)


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """An exported folder: the graph's file and its size, its inputs and outputs, how the check went, and what was
    measured, if anything."""

    run: Path
    out: Path
    file: Path
    bytes: int
    nodes: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    checked: Checked
    quality: ExportedQuality | None = None

    def to_dict(self) -> dict[str, Any]:
        places = {"run": str(self.run), "out": str(self.out), "file": str(self.file)}
        quality = None if self.quality is None else self.quality.to_dict()
        names = {"inputs": list(self.inputs), "outputs": list(self.outputs)}
        return {**asdict(self), **places, **names, "quality": quality}


def export(run: str | Path | ExportRequest, *, progress: "Silent | None" = None, **given: Any) -> ExportResult:
    """Write a run as an ONNX graph that drops tokens, with config and tokenizer beside it, and check it.

    `given` are fields of `ExportRequest`: `export("runs/sst2", out="exported/sst2", kept=True)`. A graph that differs
    from the engine is an error, and nothing is written.
    """
    shown, _ = heard(progress, None)
    request = asked(ExportRequest, run, given, name="run")
    check_packages(*needs(request.format), who="export")
    with alone(request.out):
        manifest = _check_places(request)
        task = request.load_rows(manifest)
        with quiet():
            return _exported(request, load(request.run), task, shown)


def _check_places(request: ExportRequest) -> dict[str, Any]:
    """Everything that can be refused before any work; the run's manifest."""
    manifest = read_manifest(request.run)
    run, out = request.run, request.out
    if run.resolve().is_relative_to(out.resolve()) or out.resolve().is_relative_to(run.resolve()):
        raise RunError(f"{out} and {run} lie in one another; the exported model needs a folder of its own")
    if out.is_dir() and any(out.iterdir()):
        raise RunError(f"{out} exists and is not empty; choose another --out")
    check_place(out, overwrite=False)
    if request.int8:
        if scales_file(run) is None:
            raise RunError(f"{run} has no int8 scales; make a run that has: thresher quantize {run} --out RUN8")
        check_int8()
    return manifest


def _exported(request: ExportRequest, checkpoint: Checkpoint, task: "Task | None", progress: "Silent") -> ExportResult:
    model, tokenizer, head = checkpoint.model, checkpoint.tokenizer, head_of(checkpoint.model)
    exact = read_weights(model)
    weights = rounded(exact) if request.fp16_weights else exact
    scales = read_scales(request.run, STATIC) if request.int8 else []
    form = Form(
        types=takes_types(weights, tokenizer),
        one=request.batch_one,
        kept=request.kept,
        passed=request.passed,
        dial=request.dial,
        half=request.fp16_weights,
    )
    plans = _plans(request, model)
    form = form_for(request.format, form, plans[1.0])
    length = longest_read(model, tokenizer, length_in_training(model))
    limit = min(length or weights.positions, positions_of(model, length))
    texts = texts_to_check(weights, tokenizer, limit=limit, pairs=_reads_pairs(checkpoint, head))
    task = task or request.from_texts(checkpoint)
    measuring = None if task is None else _measuring(checkpoint, task, request)
    with replacing_folder(request.out) as folder, progress.brief() as bars:
        bars.begin("building, checking, measuring" if measuring else "building and checking", total=3)
        file = folder / place_of(request.format, int8=request.int8)
        counting = file if form.kept else folder / f"counting{file.suffix}"
        graph = _write(file, weights, plans[1.0], form=form, head=head, scales=scales)
        if not form.kept:
            _write(counting, weights, plans[1.0], form=replace(form, kept=True), head=head, scales=scales)
        bars.step()
        checked = check_file(file, weights, plans, form=form, texts=texts, counting=counting, scales=scales)
        bars.step()
        quality = None
        if measuring is not None:
            quality = measure_exported(
                counting,
                checkpoint,
                measuring,
                types=form.types,
                single=form.one,
                dense=request.dense,
                scales=scales,
            )
        bars.step()
        for left in folder.glob("counting.*"):
            left.unlink()
        write_beside(folder, model, tokenizer, max_length=limit)
        result = ExportResult(
            run=request.run,
            out=request.out,
            file=request.out / file.relative_to(folder),
            bytes=sum(part.stat().st_size for part in file.parent.glob(f"{file.stem}.*")),
            nodes=graph["nodes"],
            inputs=graph["inputs"],
            outputs=graph["outputs"],
            checked=checked,
            quality=quality,
        )
        write_json(folder / ABOUT, _about(request, result, plans[1.0], checkpoint))
    return result


def _measuring(checkpoint: Checkpoint, task: "Task", request: ExportRequest) -> Measuring:
    from thresher.evaluation.quality import check_outputs

    check_outputs(checkpoint.model, task, name=request.run, manifest=checkpoint.manifest)
    return Measuring.of(checkpoint, task)


def _write(
    file: Path, weights: Weights, plan: PruningPlan, *, form: Form, head: Head, scales: Sequence[LayerScales]
) -> dict[str, Any]:
    """The written graph's size and names; the graph itself is not kept: it is as large as the weights."""
    model = build_model(weights, plan, form=form, means=head.means, scales=scales)
    write = write_openvino if file.suffix == ".xml" else write_graph
    write(model, file)
    names = {side: tuple(value.name for value in getattr(model.graph, side[:-1])) for side in ("inputs", "outputs")}
    return {"nodes": len(model.graph.node), **names}


def _plans(request: ExportRequest, model: Any) -> dict[float, PruningPlan]:
    """What is dropped, by the dial."""
    plan = plan_of(model)
    if request.dense:
        return {1.0: PruningPlan.dense(plan.layers, reads=plan.reads)}
    return {dial: plan_of(model, dial=dial) for dial in (DIALS if request.dial else DIALS[:1])}


def _reads_pairs(checkpoint: Checkpoint, head: Head) -> bool:
    return {"score": True, "embedding": False}.get(head.means, bool(takes_pairs(checkpoint.manifest)))


def _about(request: ExportRequest, result: ExportResult, plan: PruningPlan, checkpoint: Checkpoint) -> dict[str, Any]:
    """What the folder says of itself; nothing in it names a place of this machine."""
    made = provenance(device="cpu", seed=None)
    made["versions"] |= {name: metadata.version(name) for name in needs(request.format)}
    options = ("format", "batch_one", "kept", "passed", "dense", "dial", "int8", "fp16_weights")
    tolerance, epsilon = bounds(int8=request.int8)
    return {
        "format_version": FORMAT_VERSION,
        "model_type": checkpoint.manifest["model_type"],
        "opset": OPSET,
        "inputs": list(result.inputs),
        "outputs": list(result.outputs),
        "options": {name: getattr(request, name) for name in options},
        "thresholds": [str(value) if value == float("inf") else value for value in plan.thresholds],
        "score": plan.score,
        "score_queries": plan.score_queries,
        "scale": plan.scale,
        "protect": list(plan.protect),
        "head": head_of(checkpoint.model).to_dict(),
        "check": {**asdict(result.checked), "tolerance": tolerance, "epsilon": epsilon},
        "quality": None if result.quality is None else result.quality.to_dict(),
        "provenance": {name: value for name, value in made.items() if name not in ("command", "seed")},
    }
