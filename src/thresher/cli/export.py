"""thresher export: a run as one ONNX file that drops tokens in stock runtimes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thresher.cli.options import A_RUN, TEST_ROWS, AsJson, Texts, together

if TYPE_CHECKING:
    from rich.console import Console

    from thresher.jobs.export_quality import ExportedQuality


@together(source=TEST_ROWS)
def export(
    run: Annotated[Path, typer.Argument(help=A_RUN)],
    out: Annotated[Path, typer.Option("--out", help="folder to write; it appears when it is complete")],
    source: dict[str, Any],
    format: Annotated[str, typer.Option("--format", help="onnx or openvino")] = "onnx",
    batch_one: Annotated[
        bool, typer.Option("--batch-one", help="for one text at a time, and faster for it; batches are refused")
    ] = False,
    kept: Annotated[
        bool, typer.Option("--kept", help="one more output, kept: how many tokens each layer passed on")
    ] = False,
    passed: Annotated[
        bool, typer.Option("--passed", help="one more output, passed: how many layers passed on each token")
    ] = False,
    dense: Annotated[bool, typer.Option("--dense", help="the same graph that drops nothing, to compare with")] = False,
    dial: Annotated[
        bool, typer.Option("--dial", help="one more input, dial, that scales thresholds: 0 is dense, 1 as trained")
    ] = False,
    int8: Annotated[
        bool, typer.Option("--int8", help="products in int8 with a quantized run's own scales, measured on test rows")
    ] = False,
    fp16_weights: Annotated[
        bool, typer.Option("--fp16-weights", help="store matrices in fp16: half the file; computed in fp32")
    ] = False,
    texts: Texts = None,
    as_json: AsJson = False,
) -> None:
    """Write a run as a graph of standard operators that really drops tokens, with config and tokenizer beside it.

    The file is run against the engine on real and hostile texts; one that differs is an error, and nothing is written.
    int8 is also measured on test rows, as quantize does it.

    Example: thresher export runs/sst2 --out exported/sst2
    """
    from thresher.cli.output import console, listeners, print_json
    from thresher.jobs.export import ExportRequest
    from thresher.jobs.export import export as write_exported

    request = ExportRequest(
        **source,
        run=run,
        out=out,
        format=format,
        batch_one=batch_one,
        kept=kept,
        passed=passed,
        dense=dense,
        dial=dial,
        int8=int8,
        fp16_weights=fp16_weights,
        texts=texts,
    )
    screen = console(as_json)
    result = write_exported(request, progress=listeners(screen)["progress"])
    names = f"{', '.join(result.inputs)} -> {', '.join(result.outputs)}"
    screen.print(f"{names}; {result.nodes} nodes, {result.bytes / 2**20:.1f} MiB", markup=False)
    checked = result.checked
    screen.print(
        f"checked on {checked.texts} texts in {checked.batches} batches: outputs within "
        f"{checked.largest_difference:.1g} of the engine's, {checked.at_a_threshold} texts with a score at a threshold"
    )
    if result.quality is not None:
        _print_quality(screen, result.quality)
    screen.print(f"saved {result.file}", markup=False)
    if as_json:
        print_json(result.to_dict())


def _print_quality(screen: "Console", quality: "ExportedQuality") -> None:
    from rich.table import Table

    from thresher.cli.output import percent

    table = Table(title=f"{quality.split}, {quality.rows} rows", title_justify="left")
    table.add_column("computed by")
    for name in ("score", "agreement with fp32", "kept"):
        table.add_column(name, justify="right")
    for name, found in quality.measured.items():
        shown = "the exported file" if name == "exported" else f"engine, {name}"
        score = f"{100 * found.metrics['score']:.2f}"
        table.add_row(shown, score, percent(found.agreement), percent(found.kept))
    screen.print(table)
    alone = "" if quality.alone is None else f"; {percent(quality.alone)} keep as many tokens alone as in a batch"
    screen.print(f"the file agrees with the engine in its own arithmetic by {percent(quality.engine)}{alone}")
