"""thresher report: one HTML file on a run, to read, to print and to pass on."""

from pathlib import Path
from typing import Annotated, Any

import typer

from thresher.cli.options import A_RUN, TEST_ROWS, AsJson, Texts, together


@together(rows=TEST_ROWS)
def report(
    run: Annotated[Path, typer.Argument(help=A_RUN)],
    rows: dict[str, Any],
    out: Annotated[Path, typer.Option("--out", "-o", help="HTML file to write; an older report is replaced")] = Path(
        "report.html"
    ),
    texts: Texts = None,
    control: Annotated[
        Path | None, typer.Option(help="the run of prune --method dense: the dense model trained as long")
    ] = None,
    bench: Annotated[Path | None, typer.Option(help="show the last record of this file of thresher bench")] = None,
    examples: Annotated[int, typer.Option(help="texts to show token by token", min=1)] = 20,
    as_json: AsJson = False,
) -> None:
    """Write quality and cost, tokens kept, examples in colour, speed and origin of a run into one HTML file.

    It needs nothing from elsewhere. Without --task, --test or --texts the quality is what the run remembers, otherwise
    it is measured.

    Example: thresher report runs/demo -o report.html
    """
    from thresher.cli.output import console, counted, listeners, print_json
    from thresher.jobs.report import ReportRequest, write_report

    request = ReportRequest(**rows, run=run, out=out, texts=texts, control=control, bench=bench, examples=examples)
    screen = console(as_json)
    result = write_report(request, **listeners(screen))
    whose = "measured now" if result.measured else "as the run remembers it"
    numbers = f"{counted(result.examples, 'example')}, {counted(result.benches, 'benchmark')}"
    screen.print(f"quality {whose}, {numbers}", markup=False)
    screen.print(f"written {result.out}", markup=False)
    if as_json:
        print_json(result.to_dict())
