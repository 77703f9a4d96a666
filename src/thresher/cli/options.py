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


def load_named_task(name: str, data: Path | None) -> "Task":
    from thresher.tasks import load_task

    if data is not None and not data.is_dir():
        raise DataError(f"data folder {data} does not exist")
    return load_task(name, data=data)


def pick_device(wanted: str) -> str:
    from thresher.hardware import choose_device

    if wanted == "auto":
        return choose_device()[0]
    if wanted not in ("cpu", "cuda"):
        raise ConfigError(f"device = {wanted!r} is not one of: auto, cpu, cuda")
    if wanted == "cuda" and choose_device()[0] != "cuda":
        raise ModelError("device cuda is not available here; use --device cpu, and see: thresher doctor")
    return wanted
