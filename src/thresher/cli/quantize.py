"""thresher quantize: a pruned run in static int8, as a run of its own."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thresher.cli.options import (
    AsJson,
    Columns,
    DataFolder,
    LabelColumn,
    PairColumn,
    SelectionFile,
    TaskName,
    TestFile,
    TextColumn,
    load_named_task,
    made_how,
)
from thresher.config import trained_length
from thresher.errors import CheckpointError, ConfigError, DataError

if TYPE_CHECKING:
    from rich.table import Table

    from thresher.tasks import Example, Task


def quantize(
    run: Annotated[Path, typer.Argument(help="a folder written by thresher prune")],
    out: Annotated[Path, typer.Option("--out", help="folder to write; it appears when it is complete")],
    task: TaskName = None,
    data: DataFolder = None,
    train: Annotated[
        Path | None, typer.Option("--train", help="your own training rows, those the run was made with")
    ] = None,
    selection: SelectionFile = None,
    test: TestFile = None,
    text_column: TextColumn = None,
    pair_column: PairColumn = None,
    label_column: LabelColumn = None,
    texts: Annotated[int, typer.Option(help="at most this many training rows to calibrate with", min=1)] = 256,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace the run in --out")] = False,
    as_json: AsJson = False,
) -> None:
    """Calibrate static int8 on training rows, measure it on the test rows, and save a run with weights, steps and both.

    Engine.load then uses int8 wherever that is the fastest. Example: thresher quantize runs/sst2 --out runs/sst2-int8
    """
    import numpy as np
    from rich.markup import escape
    from rich.progress import Progress

    from thresher.cli.output import console, print_json, quiet_libraries
    from thresher.engine.quantize import DTYPES, check_quantize
    from thresher.engine.quantize import quantize as write_quantized
    from thresher.evaluation.quality import check_outputs
    from thresher.models.checkpoint import load, read_manifest
    from thresher.tasks.encode import encode, usable_positions

    check_quantize(run, out, overwrite=overwrite)
    manifest = read_manifest(run)
    columns = (text_column, pair_column, label_column)
    rows = _load_rows(run, manifest, task=task, data=data, train=train, selection=selection, test=test, columns=columns)
    chosen = _calibration_rows(rows, texts)
    split, examples = next(iter(rows.test.items()))
    quiet_libraries()
    checkpoint = load(run)
    check_outputs(checkpoint.model, rows, name=run, manifest=manifest)
    limits: dict[str, Any] = {
        "max_length": trained_length(manifest),
        "positions": usable_positions(checkpoint.model.config),
    }
    calibration, measured = (
        [(row.input_ids, row.token_type_ids) for row in encode(checkpoint.tokenizer, part, **limits).rows]
        for part in (chosen, examples)
    )
    labels = np.array([example.label for example in examples])
    screen = console(as_json)
    with Progress(console=screen, transient=True) as bars:
        bar = bars.add_task("calibrating and measuring", total=len(chosen) + len(DTYPES) * len(examples))
        block = write_quantized(
            run,
            out,
            checkpoint,
            calibration=calibration,
            source=f"training rows of {rows.spec.name}",
            test=measured,
            split=split,
            score=lambda logits: rows.score(logits, labels),
            overwrite=overwrite,
            on_texts=lambda count: bars.advance(bar, count),
        )
    screen.print(_table(f"{rows.spec.name} {split}, {len(examples)} rows", block["quality"], DTYPES))
    screen.print(
        "agreement: same decisions as fp32; kept: share of a text's tokens that a layer passes on, the last left out"
    )
    screen.print(escape(f"calibrated on {len(chosen)} training rows; saved {out}"))
    if as_json:
        print_json({"run": str(run), "out": str(out), "task": rows.spec.name, **block})


def _load_rows(
    run: Path,
    manifest: dict[str, Any],
    *,
    task: str | None,
    data: Path | None,
    train: Path | None,
    selection: Path | None,
    test: Path | None,
    columns: Columns,
) -> "Task":
    """The rows the run was made with: a named task, by default its own, or the user's files."""
    from thresher.models.checkpoint import MANIFEST
    from thresher.tasks import load_file_task, task_names

    trained_on = manifest.get("task", {})
    if not isinstance(trained_on, dict):
        raise CheckpointError(f"{run / MANIFEST} has no valid 'task'; the file is damaged")
    if task is not None and train is not None:
        raise ConfigError("give either --task NAME or --train FILE, not both")
    for flag, file in (("test", test), ("selection", selection)):
        if train is None and file is not None:
            raise ConfigError(f"--{flag} {file} goes with --train FILE; int8 is calibrated on training rows")
    if train is None and any(columns):
        raise ConfigError("--text-column, --pair-column and --label-column go with --train FILE")
    if train is None:
        name = task or trained_on.get("name")
        if name not in task_names() and task is None:
            raise ConfigError(f"{run} {made_how(manifest)}; give its training rows, with labels, with --train FILE")
        return load_named_task(str(name), data)
    if data is not None:
        raise ConfigError(f"--data {data} goes with --task NAME; --train and --test name your own files")
    known, classes = trained_on.get("columns", {}), trained_on.get("labels")
    text, pair, label = columns
    found = load_file_task(
        train,
        test=test,
        selection=selection,
        text_column=text or known.get("text") or "text",
        pair_column=pair or known.get("pair"),
        label_column=label or known.get("label") or "label",
        regression=None if classes is None else not classes,
        class_names=classes or None,
    )
    if classes is not None and list(found.spec.labels) != list(classes):
        wanted, got = ", ".join(classes) or "numbers", ", ".join(found.spec.labels) or "numbers"
        raise DataError(f"{train} has the labels {got}, but {run} was trained on {wanted}; give the run's own rows")
    return found


def _calibration_rows(task: "Task", texts: int) -> "list[Example]":
    """Training rows, evenly spread. Published data has training rows that are test rows too: those are left out."""
    from thresher.tasks.splits import fingerprint, spread

    tested = {fingerprint(row) for rows in task.test.values() for row in rows}
    rows = [row for row in task.train if fingerprint(row) not in tested]
    if not rows:
        raise DataError(f"task {task.spec.name} has no training rows that are not test rows too; int8 needs some")
    return spread(rows, texts)


def _table(title: str, quality: dict[str, Any], dtypes: tuple[str, ...]) -> "Table":
    from rich.markup import escape
    from rich.table import Table

    from thresher.cli.output import percent

    table = Table(title=escape(title), title_justify="left")
    table.add_column("engine")
    for name in ("score", "agreement", "kept"):
        table.add_column(name, justify="right")
    for dtype in dtypes:
        row = quality[dtype]
        name = "int8, dynamic" if dtype == "int8" else dtype
        table.add_row(name, f"{100 * row['metrics']['score']:.2f}", percent(row["agreement"]), percent(row["kept"]))
    return table
