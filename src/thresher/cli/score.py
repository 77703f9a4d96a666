"""thresher score: whole files through an engine."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from thresher.cli.options import AsJson, Device, Dial, Dtype, IsReranker, MaxLength

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from thresher.bulk.work import WorkDone
    from thresher.jobs.score import ScoreResult

LINE_SECONDS = 60.0  # between lines of progress, where there is no terminal to draw on
LOCAL = "local"


class WithRay(TyperCommand):
    """--ray may stand without an address, for a Ray on this machine: last, or before another option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = list(args)
        for place in [number for number, word in enumerate(words) if word == "--ray"][::-1]:
            if place + 1 == len(words) or words[place + 1].startswith("-"):
                words.insert(place + 1, LOCAL)
        return super().parse_args(ctx, words)


def score(
    run: Annotated[str, typer.Argument(help="a folder written by thresher, or a Hugging Face folder with a head")],
    inputs: Annotated[
        list[Path],
        typer.Argument(metavar="IN...", help="files or folders: jsonl, csv, tsv, txt (.gz .xz .zst), parquet"),
    ],
    out: Annotated[Path, typer.Option("--out", help="file to write, or for several inputs a folder")],
    text_column: Annotated[str, typer.Option(help="column with the text")] = "text",
    pair_column: Annotated[str | None, typer.Option(help="column with the second text, if there is one")] = None,
    id_column: Annotated[str | None, typer.Option(help="column that every row must have filled")] = None,
    format: Annotated[
        str | None, typer.Option(help="jsonl, csv, tsv (.gz .xz .zst) or parquet; as IN, or by OUT")
    ] = None,
    prefix: Annotated[str, typer.Option(help="stands before the names of results")] = "",
    device: Device = "auto",
    dtype: Dtype = "auto",
    dial: Dial = 1.0,
    max_length: MaxLength = None,
    rerank: IsReranker = False,
    dimensions: Annotated[
        int | None, typer.Option(help="keep so many numbers of each embedding, of Matryoshka models")
    ] = None,
    part_rows: Annotated[
        int, typer.Option(help="rows that are saved at a time, the most that an end can cost")
    ] = 20_000,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="start anew, and replace what is in --out")] = False,
    ray: Annotated[
        str | None, typer.Option("--ray", help="many engines with Ray: on this machine, or at an ADDRESS of a cluster")
    ] = None,
    actors: Annotated[int | None, typer.Option(help="with --ray: how many engines; default: as many as fit")] = None,
    cpus_per_actor: Annotated[float, typer.Option(help="with --ray: CPUs, and threads, of each engine")] = 1.0,
    gpus_per_actor: Annotated[float, typer.Option(help="with --ray: GPUs of each engine, 0.5 for half of one")] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Score whole files: results and errors stand beside each row's own columns.

    Ended at any moment, kill -9 too, the same command goes on and gives the same bytes.

    Example: thresher score runs/sst2 reviews.jsonl --out scored.jsonl
    """
    from thresher.cli.output import console, print_json
    from thresher.jobs.score import ScoreRequest, score_files

    request = ScoreRequest(
        run=run,
        inputs=inputs,
        out=out,
        text_column=text_column,
        pair_column=pair_column,
        id_column=id_column,
        format=format,
        prefix=prefix,
        device=device,
        dtype=dtype,
        dial=dial,
        max_length=max_length,
        rerank=rerank,
        dimensions=dimensions,
        part_rows=part_rows,
        overwrite=overwrite,
        ray=ray,
        actors=actors,
        cpus_per_actor=cpus_per_actor,
        gpus_per_actor=gpus_per_actor,
    )
    aside = console(True)
    with _shown(aside) as progress:
        result = score_files(request, progress=progress, note=lambda text: aside.print(text, markup=False))
    screen = console(as_json)
    screen.print(_table(result))
    if result.errors:
        screen.print(f"{result.errors:,} rows have an error, which their column says; the first:", markup=False)
        for text in result.first_errors:
            screen.print(f"  {text}", markup=False)
    if result.truncated:
        screen.print(f"{result.truncated:,} texts were truncated", markup=False)
    screen.print(f"saved {out}, and beside it {out.name}.manifest.json", markup=False, soft_wrap=True)
    if as_json:
        print_json(result.to_dict())


@contextmanager
def _shown(screen: "Console") -> "Iterator[Callable[[WorkDone], None]]":
    """Progress on a terminal as a bar, elsewhere as a line a minute and one at the end."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    if screen.is_terminal:
        columns = (BarColumn(bar_width=24), TaskProgressColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=screen, transient=True) as bars:
            bar = bars.add_task("", total=None)
            yield lambda now: bars.update(bar, total=now.bytes_total, completed=now.bytes_done, description=_line(now))
        return
    said = time.monotonic()

    def tell(now: "WorkDone") -> None:
        nonlocal said
        if time.monotonic() - said >= LINE_SECONDS or now.bytes_done >= now.bytes_total > 0:
            said = time.monotonic()
            share = 100 * now.bytes_done // max(1, now.bytes_total)
            screen.print(f"{share}%  {_line(now)}", markup=False, soft_wrap=True)

    yield tell


def _line(now: "WorkDone") -> str:
    text = f"{now.rows:,} rows  {now.texts_per_s:,.0f} texts/s"
    if now.errors:
        text += f"  {now.errors:,} errors"
    if now.seconds_left is None:
        return text
    minutes, seconds = divmod(round(now.seconds_left), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{text}  {hours}:{minutes:02d}:{seconds:02d} left"


def _table(result: "ScoreResult") -> "Table":
    from rich.table import Table

    from thresher.cli.output import percent

    title = f"{result.shards} file{'s' if result.shards > 1 else ''}, {result.means}, {result.device}, {result.dtype}"
    table = Table(title=title, title_justify="left")
    for name in ("rows", "errors", "texts/s", "tokens kept", "seconds"):
        table.add_column(name, justify="right")
    speed = f"{result.texts_per_s:,.0f}" if result.computed else "-"
    table.add_row(f"{result.rows:,}", f"{result.errors:,}", speed, percent(result.kept), f"{result.seconds:.1f}")
    return table
