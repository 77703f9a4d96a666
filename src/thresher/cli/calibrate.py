"""thresher calibrate: thresholds for a fine-tuned model without training, from texts without labels."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thresher.cli.options import AsJson, DataFolder, TaskName, load_named_task
from thresher.errors import ConfigError, DataError, ModelError

if TYPE_CHECKING:
    from rich.table import Table

    from thresher.evaluation.training_free import Goal, Judged
    from thresher.tasks import Example, Task
    from thresher.tasks.encode import EncodedSet

FEWEST = 64  # half of them judge the result; with fewer its interval says nothing
DEFAULT_AGREEMENT = "99%"


def calibrate(
    model: Annotated[str, typer.Argument(help="a Hugging Face folder or hub name with a classification head")],
    out: Annotated[Path, typer.Option("--out", help="folder to write; it appears when it is complete")],
    texts: Annotated[
        Path | None, typer.Option(help="your texts without labels: one per line, a tab before a second text")
    ] = None,
    task: TaskName = None,
    data: DataFolder = None,
    agreement: Annotated[
        str | None,
        typer.Option(
            help="share of decisions to keep, 99% if not given; for a regression the correlation with the dense values"
        ),
    ] = None,
    target_flops: Annotated[
        float | None, typer.Option(help="instead of an agreement: relative FLOPs to reach (0.8 saves a fifth)")
    ] = None,
    rows: Annotated[int, typer.Option(help=f"at most this many texts, at least {FEWEST}; half fit, half judge")] = 512,
    max_length: Annotated[int | None, typer.Option(help="longest sequence in tokens; default: the model's")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace the run in --out")] = False,
    as_json: AsJson = False,
) -> None:
    """Fit thresholds to a dense model's own predictions, in minutes and without labels, and say what to expect of them.

    Training (thresher prune) saves more; this needs neither labels nor a GPU.
    Example: thresher calibrate my-classifier --texts reviews.txt --out runs/quick
    """
    from dataclasses import asdict

    from rich.markup import escape
    from rich.progress import Progress

    from thresher.cli.output import console, print_json, quiet_libraries
    from thresher.cli.pipeline import check_place
    from thresher.config import PruneConfig
    from thresher.engine.engine import Engine
    from thresher.engine.packed import PackedExecutor
    from thresher.evaluation.training_free import Sample, check_reachable, fit
    from thresher.models.attach import encoder_shape, gates_of, prune_
    from thresher.models.checkpoint import save
    from thresher.models.pairs import check_pairs
    from thresher.records import provenance

    goal = _goal(agreement, target_flops)
    if rows < FEWEST:
        raise ConfigError(f"rows = {rows} is below {FEWEST}, the fewest texts that thresholds can be fitted with")
    if max_length is not None and max_length < 4:
        raise ConfigError(f"max_length = {max_length} is below 4, the smallest allowed value")
    check_place(out, overwrite=overwrite)
    examples, named = _load_texts(texts, task, data)
    fitting, judging = split_texts(examples, rows)
    pairs = examples[0].pair is not None  # encode wants all alike
    check_pairs(_run_around(model), given_pairs=pairs, name=model)
    quiet_libraries()
    network, tokenizer = _load_classifier(model, named)
    encoded = [_encode(network, tokenizer, part, max_length) for part in (fitting, judging)]
    fit_texts, judge_texts = ([(row.input_ids, row.token_type_ids) for row in found.rows] for found in encoded)
    check_reachable(encoder_shape(network), [len(ids) for ids, _ in fit_texts], goal)
    prune_(network, PruneConfig(score="value"))
    engine = Engine.from_model(network, tokenizer, device="cpu")
    packed = engine.executor
    assert isinstance(packed, PackedExecutor)  # what the CPU gives
    screen = console(as_json)
    arithmetic = f"{packed.backend.dtype}: {engine.why}"
    screen.print(escape(f"{len(fitting)} texts to fit, {len(judging)} others to judge; {arithmetic}"))
    truncated = sum(found.truncated for found in encoded)
    if truncated:
        screen.print(f"{truncated} of the texts truncated to {encoded[0].max_length} tokens")
    with Progress(console=screen, transient=True) as bars:
        bar = bars.add_task("trying thresholds", total=None)
        sample = Sample(packed, fit_texts, on_trial=lambda: bars.advance(bar))
        fitted = fit(sample, goal)
        judged = Sample(packed, judge_texts, on_trial=lambda: None).judge(fitted.thresholds)
    gates_of(network).set_thresholds(fitted.thresholds)
    block: dict[str, Any] = {
        "goal": asdict(goal),
        "texts": {"fit": len(fitting), "judge": len(judging), "source": _source(texts, named), "pairs": pairs},
        "dtype": packed.backend.dtype,
        "fit": {"agreement": fitted.agreement, "relative_flops": fitted.relative_flops},
        "expected": asdict(judged),
    }
    recipe = {"recipe": "training-free", "max_length": max_length}
    about = {"base_model": model, "recipe": recipe, "training_free": block} | (
        {"task": named.describe()} if named else {}
    )
    save(network, tokenizer, out, about={**about, "provenance": provenance(device="cpu", seed=None)})
    screen.print(_table(judged))
    screen.print(escape(_verdict(judged, goal)))
    screen.print(f"no weight was changed; saved {out}; measure its speed here:", markup=False, soft_wrap=True)
    screen.print(_bench_command(out, texts, task, data), markup=False, soft_wrap=True)
    if as_json:
        print_json({"out": str(out), **block})


def _goal(agreement: str | None, target_flops: float | None) -> "Goal":
    from thresher.evaluation.training_free import Goal

    if target_flops is None:
        return Goal(agreement=parse_share(agreement or DEFAULT_AGREEMENT))
    if agreement is not None:
        raise ConfigError(f"give either --agreement {agreement} or --target-flops {target_flops:g}, not both")
    return Goal(flops=target_flops)


def parse_share(text: str) -> float:
    """99% or 0.99 as a number; a bare 99 could be meant as either and is refused by Goal."""
    try:
        return float(text.removesuffix("%")) / 100 if text.endswith("%") else float(text)
    except ValueError as error:
        raise ConfigError(f"agreement = {text!r} is not a share; write 99% or 0.99") from error


def split_texts(examples: "list[Example]", rows: int) -> "tuple[list[Example], list[Example]]":
    """At most `rows` different texts, evenly spread, in two halves by hash: no text is in both."""
    from thresher.tasks.splits import fingerprint, hold_out, spread

    different = list({fingerprint(example): example for example in examples}.values())
    if len(different) < FEWEST:
        raise DataError(f"{len(different)} different texts are too few; give at least {FEWEST}, better 500 or more")
    chosen = spread(different, rows)
    return hold_out(chosen, share=0.5, at_most=len(chosen))


def _load_texts(texts: Path | None, task: str | None, data: Path | None) -> "tuple[list[Example], Task | None]":
    from thresher.tasks.files import read_texts

    if (texts is None) == (task is None):
        raise ConfigError("give either --texts FILE or --task NAME")
    if texts is not None:
        if data is not None:
            raise ConfigError(f"--data {data} goes with --task NAME; --texts names your own file")
        return read_texts(texts), None
    named = load_named_task(str(task), data)
    # Rows that a model was trained on get surer predictions than new ones, and would promise too much.
    return named.selection, named


def _load_classifier(model: str, named: "Task | None") -> tuple[Any, Any]:
    """The dense model with its head, and its tokenizer."""
    from thresher.cli.pipeline import check_dense
    from thresher.evaluation.quality import check_outputs
    from thresher.models.checkpoint import has_head, load_dense

    check_dense(model)
    if not has_head(model):
        raise ModelError(f"{model} has no classification head, so it has no predictions to keep; fine-tune it first")
    network, tokenizer = load_dense(model, whole=True)
    if named is not None:
        check_outputs(network, named, name=model)
    return network, tokenizer


def _run_around(model: str) -> dict[str, Any]:
    """What the run says whose folder dense/ this model is; nothing of any other model."""
    from thresher.models.checkpoint import MANIFEST, read_manifest

    folder = Path(model).expanduser()
    inside = folder.name == "dense" and (folder.parent / MANIFEST).is_file()
    return read_manifest(folder.parent) if inside else {}


def _encode(network: Any, tokenizer: Any, examples: "list[Example]", max_length: int | None) -> "EncodedSet":
    from thresher.tasks.encode import encode, usable_positions

    return encode(tokenizer, examples, max_length=max_length, positions=usable_positions(network.config))


def _bench_command(out: Path, texts: Path | None, task: str | None, data: Path | None) -> str:
    """What measures the run on the rows that it was made with, to be copied into a shell."""
    import shlex

    given = {"--texts": texts, "--task": task, "--data": data}
    options = [str(word) for name, value in given.items() if value is not None for word in (name, value)]
    return shlex.join(["thresher", "bench", str(out), *options])


def _source(texts: Path | None, named: "Task | None") -> str:
    """Where the texts came from, without the machine's folders."""
    if texts is not None:
        return f"texts in {texts.name}"
    assert named is not None  # one of the two is there
    return f"rows of {named.spec.name}, labels unread"


def _table(judged: "Judged") -> "Table":
    from rich.table import Table

    from thresher.cli.output import percent

    found = judged.agreement
    table = Table(title=f"on {found.texts} texts that had no part in the fit", title_justify="left")
    for name in ("agreement", "95% interval", "relative FLOPs", "in the engine"):
        table.add_column(name, justify="right")
    span = f"{percent(found.low)} to {percent(found.high)}"
    table.add_row(percent(found.value), span, percent(judged.relative_flops), percent(judged.engine_relative_flops))
    return table


def _verdict(judged: "Judged", goal: "Goal") -> str:
    """What to expect on new texts, in one line; speed is measured by bench and not promised here."""
    from thresher.cli.output import percent

    found = judged.agreement
    text = (
        f"expected on texts like these: agreement {percent(found.value)} ({percent(found.low)} to "
        f"{percent(found.high)}; {found.kind}) at {percent(judged.relative_flops)} of the FLOPs"
    )
    if found.rms is not None:
        text += f"; values move by {found.rms:.3f} of their spread"
    if goal.agreement is not None and round(found.value, 3) < goal.agreement:  # as it is shown
        text += f"; that is below the {percent(goal.agreement)} asked for: give more texts, or ask for more agreement"
    return text
