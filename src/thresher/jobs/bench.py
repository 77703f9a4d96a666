"""The bench job: honest speed of a run on this machine, beside the dense model and the engines of others."""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from thresher.config import trained_length
from thresher.engine.checks import check_threads
from thresher.errors import ConfigError
from thresher.jobs.places import pick_device
from thresher.jobs.request import asked, heard
from thresher.jobs.rows import Rows
from thresher.jobs.texts import as_inputs
from thresher.quiet import quiet

if TYPE_CHECKING:
    from thresher.evaluation.lineup import Material
    from thresher.evaluation.pace import Clock, Pace
    from thresher.evaluation.verdict import Verdict
    from thresher.models.checkpoint import Checkpoint
    from thresher.tasks import Example, Task
    from thresher.tasks.encode import Encoded, EncodedSet
    from thresher.tasks.truth import Truth
    from thresher.training.progress import Silent

CALIBRATION_TEXTS = 128
CALIBRATION_TOKENS = 8192  # scales of longer texts are found on fewer of them
MOST_ROWS = 512
RIVAL_PACKAGES = {"cpu": ("onnx", "onnxscript", "onnxruntime", "openvino", "nncf"), "cuda": ("triton",)}
MEMORY = {
    "cpu": "peak resident memory of a process with this row alone",
    "cuda": (
        "peak of torch.cuda.max_memory_allocated in the row's heaviest batches, less what other rows hold; "
        "peak_reserved_mib: the same of max_memory_reserved, which CUDA graphs' own memory is part of"
    ),
}


@dataclass(frozen=True, kw_only=True)
class BenchRequest(Rows):
    """What `bench` is asked for: a run's folder; test rows, or `texts`, a file without labels with one a line; and how
    to measure. `engines` are names joined by commas, all where not given; `record` is a JSON lines file to append to.
    max_length: of `measure_gears`, for a server that is started with the same one.

    At most `rows` rows, in so many timed `rounds`. Where these are not given they are 512 and 5, or what fits: all of
    it, conversions and memory too, takes about so many `seconds`. A few rows and a round are the least.
    """

    PATHS: ClassVar[tuple[str, ...]] = (*Rows.PATHS, "run", "texts", "record")
    COUNTS: ClassVar[tuple[str, ...]] = ("rows", "batch_size", "rounds", "threads", "max_length")

    run: Path
    texts: Path | None = None
    rows: int | None = None
    batch_size: int = 32
    rounds: int | None = None
    seconds: float = 240.0
    threads: int | None = None
    max_length: int | None = None
    device: str = "auto"
    dtype: str | None = None
    engines: str | None = None
    memory: bool = True
    record: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.seconds > 0:
            raise ConfigError(f"seconds = {self.seconds:g} must be above 0; 240 is the default")
        check_threads(self.threads)

    @property
    def most_rows(self) -> int:
        return MOST_ROWS if self.rows is None else self.rows


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """`rows` as they were measured, with their ratios; `missing` ones with the reason; `about`: what was measured, how
    and where. `verdict` says whether pruning pays here; None where our own rows are missing."""

    run: Path
    rivals: str
    about: dict[str, Any]
    calibration: dict[str, Any] | None
    rows: list[dict[str, Any]]
    missing: list[dict[str, Any]]
    verdict: "Verdict | None"

    def to_dict(self) -> dict[str, Any]:
        return {
            "bench": "engines",
            "run": str(self.run),
            "rivals": self.rivals,
            **self.about,
            "calibration": self.calibration,
            "rows": self.rows,
            "missing": self.missing,
            "verdict": None if self.verdict is None else self.verdict.to_dict(),
        }


@dataclass(frozen=True)
class _Checked:
    """A request that nothing was found wrong with: device, a GPU's arithmetic, engines, and rows, with their task
    where they are of one; `texts` without one are read as the model's inputs."""

    request: BenchRequest
    place: str
    half: str
    engines: Sequence[str]
    task: "Task | None"
    examples: "list[Example]"


@dataclass(frozen=True)
class _Plan:
    """What is measured, and how. `examples` are the rows of the texts, which may be two of each."""

    request: BenchRequest
    engines: Sequence[str]
    material: "Material"
    texts: "list[Encoded]"
    task: "Task | None"
    examples: "list[Example]"
    read: "EncodedSet"  # the texts as they came, with their windows where outputs are of tokens
    null_threshold: float = 0.0
    dense_threshold: float = 0.0  # of every row but the pruned ones

    def cut_to(self, texts: int) -> "_Plan":
        """The same with the first texts only, and whole rows of them."""
        if self.read.windows is not None:
            return self._cut_windows(texts)
        each = max(1, len(self.texts) // len(self.examples))
        rows = max(1, texts // each)
        return replace(self, texts=self.texts[: rows * each], examples=self.examples[:rows])

    def _cut_windows(self, texts: int) -> "_Plan":
        """Whole rows again, which have several windows each."""
        assert self.read.windows is not None  # who calls has looked
        if texts >= len(self.texts):
            return self
        rows = max(1, int(self.read.windows.rows[texts]))
        read = self.read.of_first(rows)
        return replace(self, texts=read.rows, examples=self.examples[:rows], read=read)


def bench(run: str | Path | BenchRequest, *, progress: "Silent | None" = None, **given: Any) -> BenchResult:
    """Race the packed engine, dense and pruned, against Hugging Face, onnxruntime and OpenVINO on this machine.

    `given` are fields of `BenchRequest`: `bench("runs/sst2", task="sst2", data="glue")`.
    """
    from thresher.evaluation.lineup import parse_engines
    from thresher.models.checkpoint import read_manifest
    from thresher.models.pairs import means_of
    from thresher.records import append_record, check_appendable

    shown, _ = heard(progress, None)
    request = asked(BenchRequest, run, given, name="run")
    if request.max_length is not None:
        raise ConfigError(f"max-length = {request.max_length} is for --gears; a race reads texts as in training")
    place = "cpu" if request.device == "auto" else pick_device(request.device)
    half = _half(request.dtype, place)
    manifest = read_manifest(request.run)
    engines = parse_engines(request.engines, place, means_of(manifest) or "classes")
    if request.record is not None:
        check_appendable(request.record)
    task, examples = load_rows(request, manifest)
    checked = _Checked(request, place, half, engines, task, examples)
    with quiet(), _threads(request.threads):
        result = _raced(checked, shown)
    if request.record is not None:
        append_record(request.record, result.to_dict())
    return result


def load_rows(request: BenchRequest, manifest: dict[str, Any]) -> "tuple[Task | None, list[Example]]":
    """The task, if there is one, and the rows of its first test split, scattered: those of a paragraph, or of a class,
    often stand together, and a bench may take but the first. A reranker's documents of one query stay together."""
    from thresher.models.pairs import means_of
    from thresher.tasks.files import read_texts
    from thresher.tasks.splits import fingerprint, query_of, scattered

    if request.texts is None:
        task = request.load_test(request.run, manifest, ways="--texts FILE, --test FILE or --task NAME")
        return task, scattered(
            next(iter(task.test.values())), key=query_of if task.spec.means == "score" else fingerprint
        )
    if any((request.task, request.data, request.test, *request.columns)):
        raise ConfigError(f"--texts {request.texts} stands alone; leave out --task, --data, --test and the columns")
    given, means = read_texts(request.texts), means_of(manifest) or "classes"
    found = as_inputs(given, request.texts, manifest, means=means, name=request.run)
    return None, scattered(found, key=query_of if means == "score" else fingerprint)


def _raced(checked: _Checked, progress: "Silent") -> BenchResult:
    import torch

    from thresher.evaluation.lineup import Material, dense_of
    from thresher.evaluation.pace import Clock
    from thresher.evaluation.quality import check_outputs
    from thresher.evaluation.verdict import judge
    from thresher.models.attach import gates_of
    from thresher.models.checkpoint import load
    from thresher.models.heads import head_of
    from thresher.models.manifest import dense_threshold

    request, task, examples = checked.request, checked.task, checked.examples
    clock = Clock(request.seconds)
    checkpoint = load(request.run)
    if task is not None:
        check_outputs(checkpoint.model, task, name=request.run, manifest=checkpoint.manifest)
    if "thresher" in checked.engines:
        gates_of(checkpoint.model).require_thresholds()
    dense = dense_of(request.run, checkpoint)
    chosen, source = calibration_texts(task.train if task else [], examples, request.most_rows)
    timed = examples[: request.most_rows]
    with tempfile.TemporaryDirectory() as work:
        read, calibration = _encoded(checkpoint, timed, chosen)
        texts, scaled = read.rows, calibration_rows(calibration.rows)
        material = Material(
            run=request.run,
            dense=dense.folder,
            work=Path(work),
            calibration=scaled,
            pad_id=checkpoint.tokenizer.pad_token_id,
            threads=torch.get_num_threads(),
            texts=texts,
            batch_size=request.batch_size,
            device=checked.place,
            half=checked.half,
            means=head_of(checkpoint.model).means,
        )
        own = head_of(checkpoint.model).threshold
        theirs = own if dense.folder == request.run else dense_threshold(checkpoint.manifest) or 0.0
        plan = _Plan(request, checked.engines, material, texts, task, timed, read, own, theirs)
        found, missing, about = _measure(plan, checkpoint.model, progress, clock)
    return BenchResult(
        run=request.run,
        rivals=dense.name,
        about=about,
        calibration={"texts": len(scaled), "source": source} if checked.place == "cpu" else None,
        rows=found,
        missing=missing,
        verdict=judge(found),
    )


def _encoded(checkpoint: "Checkpoint", *parts: "list[Example]") -> "list[EncodedSet]":
    """Each part as the run was trained to read it."""
    from thresher.evaluation.quality import encoded_inputs

    model, tokenizer, length = checkpoint.model, checkpoint.tokenizer, trained_length(checkpoint.manifest)
    return [encoded_inputs(model, tokenizer, part, max_length=length) for part in parts]


def _about(plan: _Plan, pace: "Pace") -> dict[str, Any]:
    """What was measured, how and where, for the record."""
    from thresher.records import provenance

    material, lengths = plan.material, sorted(len(row.input_ids) for row in plan.texts)
    about = provenance(device=material.device, seed=None)
    return {
        "task": plan.task.spec.name if plan.task else None,
        "texts": len(lengths),
        "mean_length": sum(lengths) / len(lengths),
        "lengths": {"min": lengths[0], "median": lengths[len(lengths) // 2], "max": lengths[-1]},
        "batch_size": material.batch_size,
        "rounds": pace.rounds,
        "limited": list(pace.notes),
        "means": material.means,
        "threads": material.threads,
        "engines": list(plan.engines),
        "device_type": material.device,
        "memory": MEMORY[material.device] if plan.request.memory else None,
        **about,
        "versions": {**about["versions"], **_rival_versions(material)},
    }


def _measure(
    plan: _Plan, model: Any, progress: "Silent", clock: "Clock"
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    """The rows that were measured, with their ratios, those that are missing, and what was measured how."""
    from thresher.evaluation.lineup import line_up, rows_of
    from thresher.evaluation.pace import find_pace
    from thresher.evaluation.peaks import add_peaks_, to_measure
    from thresher.evaluation.speed import race, seconds_of
    from thresher.evaluation.verdict import add_ratios_
    from thresher.models.attach import encoder_shape

    material, request = plan.material, plan.request
    with progress.brief() as bars:
        name = "loading and exporting" if material.device == "cpu" else "loading"
        bars.begin(name, total=len(rows_of(plan.engines, material.device, means=material.means)))
        contenders, missing = line_up(plan.engines, material, on_step=bars.step, late=clock.late_to_make)
        pace = find_pace(
            contenders,
            plan.texts,
            seconds_of,
            batch_size=material.batch_size,
            seconds=clock.for_race(),
            rounds=request.rounds,
            may_cut=request.rows is None,
        )
        plan = plan.cut_to(pace.rows)
        task, truth = _judged_by(plan)
        bars.begin("racing", total=len(contenders) * (pace.rounds + 1))
        speeds = race(
            contenders,
            plan.texts,
            task,
            shape=encoder_shape(model),
            batch_size=material.batch_size,
            rounds=pace.rounds,
            latency_texts=min(pace.single, len(plan.texts)),
            truth=truth,
            dense_truth=None if truth is None else truth.with_threshold(plan.dense_threshold),
            means=material.means,
            parts=pace.parts,
            on_step=bars.step,
        )
        rows = [speed.to_dict() for speed in speeds]
        add_ratios_(rows)
        if request.memory:
            chosen = to_measure(rows, contenders, sorted_too=not pace.notes)
            bars.begin("measuring memory", total=len(chosen))
            left, step = clock.for_memory(), bars.step
            unknown = add_peaks_(chosen, plan.texts, material.batch_size, clock=left, on_step=step)
            found = sum(row["peak_mib"] is not None for row in rows)
            if found + len(unknown) < len(rows):
                pace = replace(pace, notes=(*pace.notes, f"peak memory of {found} row{'' if found == 1 else 's'}"))
            missing += unknown
    return rows, [asdict(row) for row in missing], _about(plan, pace)


def _judged_by(plan: _Plan) -> "tuple[Task | None, Truth | None]":
    """The task that scores outputs, and what it scores them against; nothing where rows have no labels."""
    from thresher.tasks.task import labelled

    if plan.task is None or not labelled(plan.examples, name=plan.task.spec.name):
        return None, None
    truth = plan.task.spec.truth(plan.examples, data=plan.read)
    return plan.task, truth.with_threshold(plan.null_threshold)


def calibration_texts(train: "list[Example]", timed: "list[Example]", rows: int) -> "tuple[list[Example], str]":
    """Texts for static int8, evenly spread: training ones where there are any, else timed ones, best not these rows."""
    from thresher.tasks.splits import spread

    found, source = (train, "training texts") if train else (timed[rows:] or timed, "test texts, unlabelled")
    return spread(found, CALIBRATION_TEXTS), source


def calibration_rows(rows: "list[Encoded]") -> "list[Encoded]":
    """Of long texts fewer, evenly spread: scales are found on so many tokens, and at least eight texts."""
    from thresher.tasks.splits import spread

    total = sum(len(row.input_ids) for row in rows)
    return rows if total <= CALIBRATION_TOKENS else spread(rows, max(8, len(rows) * CALIBRATION_TOKENS // total))


def _half(dtype: str | None, place: str) -> str:
    """The arithmetic of a GPU's rows; a processor's rows come in all that it has."""
    from thresher.evaluation.lineup import HALVES

    if dtype is not None and place == "cpu":
        raise ConfigError(f"--dtype {dtype} goes with --device cuda; on the CPU every arithmetic is measured")
    if dtype is not None and dtype not in HALVES:
        raise ConfigError(f"dtype = {dtype!r} is not one of: {', '.join(HALVES)}")
    return dtype or HALVES[0]


@contextlib.contextmanager
def _threads(wanted: int | None) -> Iterator[None]:
    """So many processor threads for the time of the race."""
    import torch

    before = torch.get_num_threads()
    try:
        if wanted is not None:
            torch.set_num_threads(wanted)
        yield
    finally:
        torch.set_num_threads(before)


def _rival_versions(material: "Material") -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    stack = ("sentence-transformers",) if material.means in ("score", "embedding") else ()
    for name in (*RIVAL_PACKAGES[material.device], *stack):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
