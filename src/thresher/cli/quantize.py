"""thresher quantize: a pruned run in static int8 and fp8, calibrated and perhaps trained on, as a run of its own."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thresher.cli.options import (
    A_RUN,
    TEST_ROWS,
    TRAINING_ROWS,
    AsJson,
    Device,
    Settings,
    chosen_settings,
    row_option,
    together,
)

if TYPE_CHECKING:
    from rich.table import Table

OWN_ROWS = {
    **{name: TRAINING_ROWS[name] for name in ("task", "data", "train", "selection", *TEST_ROWS)},
    "train": Annotated[Path | None, row_option("--train", help="training rows; default: those the run was made with")],
}


@together(source=OWN_ROWS)
def quantize(
    run: Annotated[Path, typer.Argument(help=A_RUN)],
    out: Annotated[Path, typer.Option("--out", help="folder to write; it appears when it is complete")],
    source: dict[str, Any],
    texts: Annotated[
        Path | None,
        row_option(
            help="instead: your texts without labels, one per line, a tab before a second text; half calibrate, half "
            "are measured"
        ),
    ] = None,
    rows: Annotated[int, typer.Option(help="at most this many rows to calibrate with", min=1)] = 256,
    epochs: Annotated[
        float | None,
        typer.Option(help="then train on in int8 for so many epochs, with the dense model as the teacher", min=0.0),
    ] = None,
    unrounded: Annotated[
        bool, typer.Option("--unrounded", help="train on in floating point, as a control, and calibrate after it")
    ] = False,
    static_only: Annotated[
        bool, typer.Option("--static-only", help="measure neither dynamic int8 nor fp8, which is faster")
    ] = False,
    settings: Settings = None,
    device: Device = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="go on with an interrupted training")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace the run in --out")] = False,
    as_json: AsJson = False,
) -> None:
    """Calibrate static int8 on training rows, measure it on test rows, and save it all as a run of its own.

    Engine.load then uses int8 wherever that is the fastest. On a GPU it takes fp8 where that is asked for, with the
    same scales; it is measured too, by a twin on the CPU. A processor without int8 measures fp8 alone.

    With --epochs the weights also learn to live with int8: training rounds products as the engine rounds them. Settings
    are the run's own, and those of --set.

    Without labels (--texts) the score says how near outputs are to those in fp32.

    Example: thresher quantize runs/sst2 --out runs/sst2-int8
    """
    from thresher.cli.output import SAME, console, listeners, print_json
    from thresher.jobs.quantize import QuantizeRequest
    from thresher.jobs.quantize import quantize as write_quantized

    request = QuantizeRequest(
        **source,
        run=run,
        out=out,
        texts=texts,
        rows=rows,
        epochs=epochs,
        unrounded=unrounded,
        static_only=static_only,
        settings=chosen_settings({}, settings),
        device=device,
        resume=resume,
        overwrite=overwrite,
    )
    screen = console(as_json)
    result = write_quantized(request, **listeners(screen))
    quality = result.block()["quality"]
    screen.print(_table(f"{result.task} {result.split}, {result.rows} rows", quality, list(result.measured)))
    for why in dict.fromkeys(result.not_measured.values()):
        names = ", ".join(name for name in result.not_measured if result.not_measured[name] == why)
        screen.print(f"not measured: {names} ({why})", markup=False, soft_wrap=True)
    same, last = SAME[result.head.means], "" if result.head.restores else ", the last left out"
    screen.print(f"agreement: {same} fp32; kept: share of a text's tokens that a layer passes on{last}")
    what = "training rows" if texts is None else f"texts of {texts.name}"
    trained = "" if result.training is None else f", trained on (epochs: {result.training['epochs']:g})"
    screen.print(f"calibrated on {result.calibration_rows} {what}{trained}; saved {out}", markup=False)
    if as_json:
        print_json(result.to_dict())


def _table(title: str, quality: dict[str, Any], dtypes: list[str]) -> "Table":
    from rich.markup import escape
    from rich.table import Table

    from thresher.cli.output import percent

    table = Table(title=escape(title), title_justify="left")
    table.add_column("engine")
    for name in ("score", "agreement", "kept"):
        table.add_column(name, justify="right")
    for dtype in dtypes:
        row = quality[dtype]
        name = {"int8": "int8, dynamic", "fp8": "fp8, for GPUs"}.get(dtype, dtype)
        table.add_row(name, f"{100 * row['metrics']['score']:.2f}", percent(row["agreement"]), percent(row["kept"]))
    return table
