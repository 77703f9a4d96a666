"""The calibration job: thresholds for a fine-tuned model without training, from texts without labels."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from thresher.engine.checks import check_max_length
from thresher.errors import ConfigError, ModelError
from thresher.jobs.places import alone, check_dense, check_place
from thresher.jobs.request import Note, Request, asked, heard
from thresher.jobs.rows import load_named_task
from thresher.jobs.texts import as_inputs, halves
from thresher.quiet import quiet

if TYPE_CHECKING:
    from thresher.engine.engine import Engine
    from thresher.evaluation.training_free import Goal, Judged, Trial
    from thresher.tasks import Example, Task
    from thresher.tasks.encode import EncodedSet
    from thresher.training.progress import Silent

METHOD = "thresher"  # whose thresholds these are, without its training
FEWEST = 64  # half of them judge the result; with fewer its interval says nothing
DEFAULT_AGREEMENT = "99%"


@dataclass(frozen=True, kw_only=True)
class CalibrateRequest(Request):
    """What `calibrate` is asked for: a dense model with its head, and texts: a file with one per line, or a task's
    selection rows, whose labels are read for nothing but the null threshold of answers. The goal is an `agreement` to
    keep, 99% if not given, or `target_flops`. `rerank` says that a model's one output is a reranker's score, where its
    folder does not say so."""

    PATHS: ClassVar[tuple[str, ...]] = ("out", "texts", "data")

    model: str
    out: Path
    texts: Path | None = None
    task: "str | Task | None" = None
    data: Path | None = None
    agreement: str | float | None = None
    target_flops: float | None = None
    rows: int = 512
    max_length: int | None = None
    rerank: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "model", str(self.model))

    def goal(self) -> "Goal":
        from thresher.evaluation.training_free import Goal

        if self.target_flops is None:
            return Goal(agreement=parse_share(DEFAULT_AGREEMENT if self.agreement is None else str(self.agreement)))
        if self.agreement is not None:
            raise ConfigError(
                f"give either --agreement {self.agreement} or --target-flops {self.target_flops:g}, not both"
            )
        return Goal(flops=self.target_flops)


@dataclass(frozen=True, kw_only=True)
class CalibrateResult:
    """Thresholds that were fitted, and what to expect of them: `expected` is of texts that had no part in the fit."""

    out: Path
    goal: "Goal"
    source: str
    pairs: bool
    fit_texts: int
    judge_texts: int
    dtype: str
    fit: "Trial"
    expected: "Judged"

    def block(self) -> dict[str, Any]:
        """What the run's thresher.json says of it."""
        return {
            "goal": asdict(self.goal),
            "texts": {
                "fit": self.fit_texts,
                "judge": self.judge_texts,
                "source": self.source,
                "pairs": self.pairs,
            },
            "dtype": self.dtype,
            "fit": {"agreement": self.fit.agreement, "relative_flops": self.fit.relative_flops},
            "expected": asdict(self.expected),
        }

    def to_dict(self) -> dict[str, Any]:
        return {"out": str(self.out), **self.block()}


def calibrate(
    model: str | Path | CalibrateRequest, *, progress: "Silent | None" = None, note: Note | None = None, **given: Any
) -> CalibrateResult:
    """Fit thresholds to a dense model's own predictions on some texts, judge them on others, and save the run.

    `given` are fields of `CalibrateRequest`: `calibrate("my-classifier", texts="reviews.txt", out="runs/quick")`.
    """
    shown, say = heard(progress, note)
    request = asked(CalibrateRequest, model, given, name="model")
    with alone(request.out):
        return _calibrated(request, shown, say)


def _calibrated(request: CalibrateRequest, progress: "Silent", note: Note) -> CalibrateResult:
    from thresher.models.heads import head_of

    goal = request.goal()
    if request.rows < FEWEST:
        raise ConfigError(
            f"rows = {request.rows} is below {FEWEST}, the fewest texts that thresholds can be fitted with"
        )
    check_max_length(request.max_length)
    check_place(request.out, overwrite=request.overwrite)
    given, task = _load_rows(request)
    with quiet():
        network, tokenizer = _load_model(request, task)
        means = head_of(network).means
        examples = _inputs(request, given, task, means=means)
        parts = split_texts(examples, request.rows, means=means)
        return _fitted(request, goal, (network, tokenizer), parts, task, progress, note)


def _fitted(
    request: CalibrateRequest,
    goal: "Goal",
    model: tuple[Any, Any],
    parts: "tuple[list[Example], list[Example]]",
    task: "Task | None",
    progress: "Silent",
    note: Note,
) -> CalibrateResult:
    from thresher.engine.engine import Engine
    from thresher.evaluation.quality import encoded_inputs
    from thresher.evaluation.training_free import check_reachable
    from thresher.jobs.training import prune_config
    from thresher.models.attach import encoder_shape, gates_of, prune_

    (network, tokenizer), (fitting, judging) = model, parts
    encoded = [encoded_inputs(network, tokenizer, part, max_length=request.max_length) for part in parts]
    prune_(network, prune_config({}, tokenizer, network))
    gates = gates_of(network)
    gates.settle(METHOD)
    lengths = [len(row.input_ids) for row in encoded[0].rows]
    check_reachable(encoder_shape(network), lengths, goal, rejoin=gates.config.rejoined)
    engine = Engine.from_model(network, tokenizer, device="cpu")
    dtype = str(engine.describe()["dtype"])
    note(f"{len(fitting)} texts to fit, {len(judging)} others to judge; {dtype}: {engine.why}")
    truncated = sum(found.truncated for found in encoded)
    if truncated:
        note(f"{truncated} of the texts truncated to {encoded[0].max_length} tokens")
    trial, judged = _fit_and_judge(engine, encoded, goal, progress)
    gates.set_thresholds(trial.thresholds)
    withholding = _null_thresholds_(network, tokenizer, task, request)
    result = CalibrateResult(
        out=request.out,
        goal=goal,
        source=_source(request.texts, task) + withholding,
        pairs=fitting[0].pair is not None,
        fit_texts=len(fitting),
        judge_texts=len(judging),
        dtype=dtype,
        fit=trial,
        expected=judged,
    )
    _save(request, result, network, tokenizer, task)
    return result


def _fit_and_judge(
    engine: "Engine", encoded: "list[EncodedSet]", goal: "Goal", progress: "Silent"
) -> "tuple[Trial, Judged]":
    from thresher.engine.packed import PackedExecutor
    from thresher.evaluation.training_free import HALVINGS, WIDTHS, Sample, fit

    packed = engine.executor
    assert isinstance(packed, PackedExecutor)  # what the CPU gives
    fit_texts, judge_texts = ([(row.input_ids, row.token_type_ids) for row in found.rows] for found in encoded)
    with progress.brief() as bars:
        bars.begin("trying thresholds", total=1 + HALVINGS * (1 + len(WIDTHS)))  # at most: some trials come again
        means = engine.head.means
        trial = fit(Sample(packed, fit_texts, on_trial=bars.step, means=means), goal)
        judged = Sample(packed, judge_texts, on_trial=lambda: None, means=means).judge(trial.thresholds)
        return trial, judged


def _null_thresholds_(network: Any, tokenizer: Any, task: "Task | None", request: CalibrateRequest) -> str:
    """Let a model that finds answers withhold them as the dense model does, or better, where selection rows have labels
    to fit it by, in place; returns what is to be said of those labels."""
    from thresher.jobs.measure import Version, remember_thresholds_, with_thresholds
    from thresher.models.heads import head_of
    from thresher.models.manifest import dense_threshold
    from thresher.tasks.splits import spread

    if head_of(network).means != "span":
        return ""
    known = dense_threshold(_run_around(request.model))
    versions = {name: Version({}, pruned=name == "pruned", null_threshold=known) for name in ("dense", "pruned")}
    fitted = versions
    if task is not None:
        some = replace(task, selection=spread(task.selection, request.rows))
        fitted = with_thresholds(network, tokenizer, some, versions, max_length=request.max_length)
    remember_thresholds_(network, fitted)
    return "" if fitted == versions else ", but for the null threshold"


def _save(
    request: CalibrateRequest, result: CalibrateResult, network: Any, tokenizer: Any, task: "Task | None"
) -> None:
    from thresher.models.checkpoint import save
    from thresher.models.defaults import longest_read
    from thresher.records import provenance

    length = longest_read(network, tokenizer, request.max_length)
    recipe = {"recipe": "training-free", "max_length": length}
    about = {"base_model": request.model, "recipe": recipe, "training_free": result.block()} | (
        {"task": task.describe()} if task else {}
    )
    save(network, tokenizer, request.out, about={**about, "provenance": provenance(device="cpu", seed=None)})


def parse_share(text: str) -> float:
    """99% or 0.99 as a number; a bare 99 could be meant as either and is refused by Goal."""
    try:
        return float(text.removesuffix("%")) / 100 if text.endswith("%") else float(text)
    except ValueError as error:
        raise ConfigError(f"agreement = {text!r} is not a share; write 99% or 0.99") from error


def split_texts(
    examples: "list[Example]", rows: int, *, means: str = "classes"
) -> "tuple[list[Example], list[Example]]":
    """At most `rows` different texts, evenly spread, in two halves by hash: no text is in both."""
    return halves(examples, means=means, rows=rows, fewest=FEWEST)


def _load_rows(request: CalibrateRequest) -> "tuple[list[Example], Task | None]":
    """The texts that were given, or a task and its selection rows."""
    from thresher.tasks.files import read_texts

    texts, task, data = request.texts, request.task, request.data
    if (texts is None) == (task is None):
        raise ConfigError("give either --texts FILE or --task NAME")
    if texts is not None:
        if data is not None:
            raise ConfigError(f"--data {data} goes with --task NAME; --texts names your own file")
        return read_texts(texts), None
    named = load_named_task(task, data) if isinstance(task, str) else task
    assert named is not None  # one of the two is there
    # Rows that a model was trained on get surer predictions than new ones, and would promise too much.
    return named.selection, named


def _inputs(request: CalibrateRequest, rows: "list[Example]", task: "Task | None", *, means: str) -> "list[Example]":
    """What the model reads of the rows, which must be of its kind."""
    from thresher.models.pairs import check_pairs
    from thresher.tasks.task import model_inputs

    around = _run_around(request.model)
    if request.texts is not None:
        return as_inputs(rows, request.texts, around, means=means, name=request.model)
    check_pairs(around, given_pairs=task is not None and task.spec.pair_column is not None, name=request.model)
    return model_inputs(means, rows)


def _load_model(request: CalibrateRequest, task: "Task | None") -> tuple[Any, Any]:
    """The dense model with its head, and its tokenizer."""
    from thresher.evaluation.quality import check_outputs
    from thresher.models.checkpoint import has_head, load_dense
    from thresher.models.defaults import mean_by_
    from thresher.models.sentence_folder import EMBEDDERS, is_embedder

    model = request.model
    check_dense(model)
    if not has_head(model) and not is_embedder(model):
        raise ModelError(
            f"{model} has no classification head, so it has no predictions to keep; fine-tune it first. {EMBEDDERS}"
        )
    network, tokenizer = load_dense(model, whole=True)
    if task is not None:
        check_outputs(network, task, name=model)
    means = "score" if request.rerank else task.spec.means if task is not None else None
    if means is not None:
        mean_by_(network, means)
    return network, tokenizer


def _run_around(model: str) -> dict[str, Any]:
    """What the run says whose folder dense/ this model is; nothing of any other model."""
    from thresher.models.checkpoint import MANIFEST, read_manifest

    folder = Path(model).expanduser()
    inside = folder.name == "dense" and (folder.parent / MANIFEST).is_file()
    return read_manifest(folder.parent) if inside else {}


def _source(texts: Path | None, named: "Task | None") -> str:
    """Where the texts came from, without the machine's folders."""
    if texts is not None:
        return f"texts in {texts.name}"
    assert named is not None  # one of the two is there
    return f"rows of {named.spec.name}, labels unread"
