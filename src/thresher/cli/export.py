"""thresher export: a run as one ONNX file that drops tokens in stock runtimes."""

from pathlib import Path
from typing import Annotated

import typer

from thresher.cli.options import AsJson


def export(
    run: Annotated[Path, typer.Argument(help="a folder written by thresher prune or calibrate")],
    out: Annotated[Path, typer.Option("--out", help="folder to write; it appears when it is complete")],
    batch_one: Annotated[
        bool, typer.Option("--batch-one", help="for one text at a time, and faster for it; batches are refused")
    ] = False,
    kept: Annotated[
        bool, typer.Option("--kept", help="one more output, kept: how many tokens each layer passed on")
    ] = False,
    dense: Annotated[bool, typer.Option("--dense", help="the same graph that drops nothing, to compare with")] = False,
    dial: Annotated[
        bool, typer.Option("--dial", help="one more input, dial, that scales thresholds: 0 is dense, 1 as trained")
    ] = False,
    fp16_weights: Annotated[
        bool, typer.Option("--fp16-weights", help="store matrices in fp16: half the file; computed in fp32")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a run as an ONNX graph of standard operators that really drops tokens, with config and tokenizer beside it.

    The file is run against the engine on real and hostile texts; one that differs is an error, and nothing is written.
    Example: thresher export runs/sst2 --out exported/sst2
    """
    from thresher.cli.output import console, listeners, print_json
    from thresher.jobs.export import ExportRequest
    from thresher.jobs.export import export as write_exported

    request = ExportRequest(
        run=run, out=out, batch_one=batch_one, kept=kept, dense=dense, dial=dial, fp16_weights=fp16_weights
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
    screen.print(f"saved {result.file}", markup=False)
    if as_json:
        print_json(result.to_dict())
