"""thresher calibrate: thresholds for a fine-tuned model without training, from texts without labels."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thresher.cli.options import AsJson, DataFolder, IsReranker, TaskName, Texts

if TYPE_CHECKING:
    from rich.table import Table

    from thresher.evaluation.training_free import Goal, Judged


def calibrate(
    model: Annotated[
        str,
        typer.Argument(
            help="a folder or hub name: a classifier, reranker or sentence embedder, or a model for answers or tags"
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="folder to write; it appears when it is complete")],
    texts: Texts = None,
    task: TaskName = None,
    data: DataFolder = None,
    agreement: Annotated[
        str | None,
        typer.Option(
            help="share of decisions to keep, 99% if not given: classes, labels, answers in windows, tags of tokens; "
            "for a regression or reranker the correlation with the dense values, for embeddings the mean cosine"
        ),
    ] = None,
    target_flops: Annotated[
        float | None, typer.Option(help="instead of an agreement: relative FLOPs to reach (0.8 saves a fifth)")
    ] = None,
    rows: Annotated[int, typer.Option(help="at most this many texts, at least 64; half fit, half judge")] = 512,
    max_length: Annotated[int | None, typer.Option(help="longest sequence in tokens; default: the model's")] = None,
    rerank: IsReranker = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace the run in --out")] = False,
    as_json: AsJson = False,
) -> None:
    """Fit thresholds to a dense model's own predictions, in minutes and without labels, and say what to expect of them.

    Training (thresher prune) saves more; this needs neither labels nor a GPU.

    Example: thresher calibrate my-classifier --texts reviews.txt --out runs/quick
    """
    from thresher.cli.output import console, listeners, print_json
    from thresher.jobs.calibrate import CalibrateRequest
    from thresher.jobs.calibrate import calibrate as fit

    request = CalibrateRequest(
        model=model,
        out=out,
        texts=texts,
        task=task,
        data=data,
        agreement=agreement,
        target_flops=target_flops,
        rows=rows,
        max_length=max_length,
        rerank=rerank,
        overwrite=overwrite,
    )
    screen = console(as_json)
    result = fit(request, **listeners(screen))
    screen.print(_table(result.expected))
    screen.print(_verdict(result.expected, result.goal), markup=False)
    screen.print(f"no weight was changed; saved {out}; measure its speed here:", markup=False, soft_wrap=True)
    screen.print(_bench_command(out, texts, task, data), markup=False, soft_wrap=True)
    if as_json:
        print_json(result.to_dict())


def _bench_command(out: Path, texts: Path | None, task: str | None, data: Path | None) -> str:
    """What measures the run on the rows that it was made with, to be copied into a shell."""
    import shlex

    given = {"--texts": texts, "--task": task, "--data": data}
    options = [str(word) for name, value in given.items() if value is not None for word in (name, value)]
    return shlex.join(["thresher", "bench", str(out), *options])


def _table(judged: "Judged") -> "Table":
    from rich.table import Table

    from thresher.cli.output import percent

    found = judged.agreement
    what = "tokens of texts" if "tag of a token" in found.kind else "texts"
    table = Table(title=f"on {found.texts} {what} that had no part in the fit", title_justify="left")
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
