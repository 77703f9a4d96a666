"""The export job: a run as an ONNX file that drops tokens in stock runtimes, checked against the engine."""

from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from thresher.core.heads import Head
from thresher.core.plan import PruningPlan
from thresher.engine.weights import Weights, read_weights
from thresher.errors import ConfigError, RunError
from thresher.exporting.build import Form, build_model
from thresher.exporting.check import EPSILON, TOLERANCE, Checked, check_file, texts_to_check
from thresher.exporting.folder import (
    ABOUT,
    MODEL,
    NEEDS,
    check_packages,
    rounded,
    takes_types,
    write_beside,
    write_graph,
)
from thresher.exporting.graph import OPSET
from thresher.jobs.places import alone, check_place
from thresher.jobs.quiet import quiet
from thresher.jobs.request import Request, asked, heard
from thresher.models.attach import length_in_training
from thresher.models.checkpoint import Checkpoint, load, read_manifest, replacing_folder
from thresher.models.defaults import longest_read
from thresher.models.heads import head_of
from thresher.models.pairs import takes_pairs
from thresher.models.plan import plan_of
from thresher.records import provenance, write_json

if TYPE_CHECKING:
    from thresher.training.progress import Silent

FORMAT_VERSION = 1
DIALS = (1.0, 0.0, 0.5, 2.0)  # a graph with a dial is checked at these; the products with thresholds are exact


@dataclass(frozen=True, kw_only=True)
class ExportRequest(Request):
    """What `export` is asked for: a run's folder and a new one. batch_one: for single texts only, and faster for them;
    kept: the graph also gives how many tokens each layer passed on; dense: nothing is dropped; dial: the graph has an
    input that scales thresholds; fp16_weights: matrices are stored in fp16 and computed with in fp32."""

    PATHS: ClassVar[tuple[str, ...]] = ("run", "out")

    run: Path
    out: Path
    batch_one: bool = False
    kept: bool = False
    dense: bool = False
    dial: bool = False
    fp16_weights: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dense and self.dial:
            raise ConfigError("--dense drops nothing, and --dial scales what is dropped; give one of them")


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """An exported folder: the graph's file and its size, its inputs and outputs, and how the check went."""

    run: Path
    out: Path
    file: Path
    bytes: int
    nodes: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    checked: Checked

    def to_dict(self) -> dict[str, Any]:
        places = {"run": str(self.run), "out": str(self.out), "file": str(self.file)}
        return {**asdict(self), **places, "inputs": list(self.inputs), "outputs": list(self.outputs)}


def export(run: str | Path | ExportRequest, *, progress: "Silent | None" = None, **given: Any) -> ExportResult:
    """Write a run as an ONNX graph that drops tokens, with config and tokenizer beside it, and check it.

    `given` are fields of `ExportRequest`: `export("runs/sst2", out="exported/sst2", kept=True)`. A graph that differs
    from the engine is an error, and nothing is written.
    """
    shown, _ = heard(progress, None)
    request = asked(ExportRequest, run, given, name="run")
    check_packages()
    with alone(request.out):
        _check_places(request)
        with quiet():
            return _exported(request, load(request.run), shown)


def _check_places(request: ExportRequest) -> None:
    """Everything that can be refused before any work."""
    read_manifest(request.run)
    run, out = request.run, request.out
    if run.resolve().is_relative_to(out.resolve()) or out.resolve().is_relative_to(run.resolve()):
        raise RunError(f"{out} and {run} lie in one another; the exported model needs a folder of its own")
    if out.is_dir() and any(out.iterdir()):
        raise RunError(f"{out} exists and is not empty; choose another --out")
    check_place(out, overwrite=False)


def _exported(request: ExportRequest, checkpoint: Checkpoint, progress: "Silent") -> ExportResult:
    model, tokenizer, head = checkpoint.model, checkpoint.tokenizer, head_of(checkpoint.model)
    exact = read_weights(model)
    weights = rounded(exact) if request.fp16_weights else exact
    form = Form(
        types=takes_types(weights, tokenizer),
        one=request.batch_one,
        kept=request.kept,
        dial=request.dial,
        half=request.fp16_weights,
    )
    plans = _plans(request, model)
    limit = min(longest_read(model, tokenizer, length_in_training(model)) or weights.positions, weights.positions)
    texts = texts_to_check(weights, tokenizer, limit=limit, pairs=_reads_pairs(checkpoint, head))
    with replacing_folder(request.out) as folder, progress.brief() as bars:
        bars.begin("building and checking", total=2)
        file, counting = folder / MODEL, folder / "counting.onnx"
        graph = _write(file, weights, plans[1.0], form=form, head=head)
        if not form.kept:
            _write(counting, weights, plans[1.0], form=replace(form, kept=True), head=head)
        bars.step()
        checked = check_file(file, weights, plans, form=form, texts=texts, counting=file if form.kept else counting)
        bars.step()
        for left in folder.glob("counting.onnx*"):
            left.unlink()
        write_beside(folder, model, tokenizer, max_length=limit)
        size = sum(part.stat().st_size for part in file.parent.iterdir())
        result = ExportResult(
            run=request.run,
            out=request.out,
            file=request.out / MODEL,
            bytes=size,
            nodes=graph["nodes"],
            inputs=graph["inputs"],
            outputs=graph["outputs"],
            checked=checked,
        )
        write_json(folder / ABOUT, _about(request, result, plans[1.0], checkpoint))
    return result


def _write(file: Path, weights: Weights, plan: PruningPlan, *, form: Form, head: Head) -> dict[str, Any]:
    """The written graph's size and names; the graph itself is not kept: it is as large as the weights."""
    model = build_model(weights, plan, form=form, embeds=head.means == "embedding")
    write_graph(model, file)
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
    made["versions"] |= {name: metadata.version(name) for name in NEEDS}
    options = ("batch_one", "kept", "dense", "dial", "fp16_weights")
    return {
        "format_version": FORMAT_VERSION,
        "model_type": checkpoint.manifest["model_type"],
        "opset": OPSET,
        "inputs": list(result.inputs),
        "outputs": list(result.outputs),
        "options": {name: getattr(request, name) for name in options},
        "thresholds": [str(value) if value == float("inf") else value for value in plan.thresholds],
        "score": plan.score,
        "scale": plan.scale,
        "protect": list(plan.protect),
        "head": head_of(checkpoint.model).to_dict(),
        "check": {**asdict(result.checked), "tolerance": TOLERANCE, "epsilon": EPSILON},
        "provenance": {name: value for name, value in made.items() if name not in ("command", "seed")},
    }
