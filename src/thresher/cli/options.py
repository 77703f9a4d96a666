"""Options shared by several commands, and the loading they ask for."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thresher.errors import ConfigError, DataError, ModelError

if TYPE_CHECKING:
    from thresher.tasks import Task

TaskName = Annotated[str | None, typer.Option("--task", help="a GLUE task (sst2, mrpc, stsb, ...) or movies")]
DataFolder = Annotated[
    Path | None, typer.Option("--data", help="folder with TASK/train*.jsonl[.xz] and TASK/validation*.jsonl[.xz]")
]
TestFile = Annotated[Path | None, typer.Option("--test", help="your own test rows: CSV, TSV, JSONL or Parquet")]
TextColumn = Annotated[str, typer.Option("--text-column", help="column with the text")]
PairColumn = Annotated[str | None, typer.Option("--pair-column", help="column with the second text, if there is one")]
LabelColumn = Annotated[str, typer.Option("--label-column", help="column with the label")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda")]
AsJson = Annotated[
    bool, typer.Option("--json", help="print one JSON line on standard output, the rest on standard error")
]


def load_data(
    *,
    task: str | None,
    data: Path | None,
    train: Path | None,
    test: Path | None,
    text_column: str,
    pair_column: str | None,
    label_column: str,
) -> "Task":
    """The task named by --task, or the one in the user's files."""
    from thresher.tasks import load_file_task, load_task

    if (task is None) == (train is None):
        raise ConfigError("give either --task NAME or --train FILE")
    if task is not None:
        if test is not None:
            raise ConfigError(f"--test {test} goes with --train FILE; task {task} has its own test rows")
        if data is not None and not data.is_dir():
            raise DataError(f"data folder {data} does not exist")
        return load_task(task, data=data)
    assert train is not None  # checked above
    return load_file_task(train, test=test, text_column=text_column, pair_column=pair_column, label_column=label_column)


def pick_device(wanted: str) -> str:
    from thresher.hardware import choose_device

    if wanted == "auto":
        return choose_device()[0]
    if wanted not in ("cpu", "cuda"):
        raise ConfigError(f"device = {wanted!r} is not one of: auto, cpu, cuda")
    if wanted == "cuda" and choose_device()[0] != "cuda":
        raise ModelError("device cuda is not available here; use --device cpu, and see: thresher doctor")
    return wanted
