"""Options shared by several commands, and the loading they ask for."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thresher.errors import CheckpointError, ConfigError, DataError, ModelError

if TYPE_CHECKING:
    from thresher.tasks import Task

TaskName = Annotated[str | None, typer.Option("--task", help="a GLUE task (sst2, mrpc, stsb, ...) or movies")]
DataFolder = Annotated[
    Path | None, typer.Option("--data", help="folder with TASK/train*.jsonl and TASK/validation*.jsonl, perhaps as .xz")
]
TrainFile = Annotated[Path | None, typer.Option("--train", help="your own training rows: CSV, TSV, JSONL or Parquet")]
SelectionFile = Annotated[
    Path | None,
    typer.Option(
        "--selection",
        help="rows that choose checkpoint and settings, like those the model will meet; a tenth of --train without it",
    ),
]
TestFile = Annotated[Path | None, typer.Option("--test", help="your own test rows: CSV, TSV, JSONL or Parquet")]
TextColumn = Annotated[str | None, typer.Option("--text-column", help="column with the text")]
PairColumn = Annotated[str | None, typer.Option("--pair-column", help="column with the second text, if there is one")]
LabelColumn = Annotated[str | None, typer.Option("--label-column", help="column with the label")]
Regression = Annotated[
    bool | None, typer.Option("--regression/--classes", help="what the labels are; default: decided by looking")
]
Rerank = Annotated[
    bool, typer.Option("--rerank", help="a reranker: the text is a query, the pair a document; labels may be missing")
]
Embed = Annotated[
    bool, typer.Option("--embed", help="an embedding model: texts alone; pairs with a similarity test it")
]
GroupColumn = Annotated[
    str | None, typer.Option("--group-column", help="with --rerank: column with the query's identity, if not its text")
]
Separator = Annotated[
    str | None, typer.Option("--separator", help="what stands between several labels in one cell, such as '|'")
]
ClassNames = Annotated[
    str | None,
    typer.Option(
        "--class-names",
        metavar="NEG,POS",
        help="the label column's classes in the order of the model's outputs, for a head that calls them otherwise",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="any other setting of the two tables, such as clip=0.5"),
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda")]
AsJson = Annotated[
    bool, typer.Option("--json", help="print one JSON line on standard output, the rest on standard error")
]


Columns = tuple[str | None, str | None, str | None]  # text, pair, label; None: as trained


def load_named_task(name: str, data: Path | None) -> "Task":
    from thresher.tasks import load_task

    if data is not None and not data.is_dir():
        raise DataError(
            f"data folder {data} does not exist; it must hold {name}/train*.jsonl and {name}/validation*.jsonl, or "
            'leave --data out to ask the hub (pip install "thresher[hub]")'
        )
    return load_task(name, data=data)


def load_training_rows(
    *,
    task: str | None,
    data: Path | None,
    train: Path | None,
    test: Path | None,
    columns: Columns,
    selection: Path | None,
    regression: bool | None,
    kind: dict[str, Any] | None = None,
    class_names: str | None = None,
) -> "Task":
    """Rows to train with: a named task's, or the user's own files. `kind`: what `kind_of` makes of the flags."""
    from thresher.tasks import load_file_task
    from thresher.tasks.class_order import parse_class_names

    if (task is None) == (train is None):
        raise ConfigError("give either --task NAME or --train FILE")
    text, pair, label = columns
    if train is not None:
        if data is not None:
            raise ConfigError(f"--data {data} goes with --task NAME; --train and --test name your own files")
        return load_file_task(
            train,
            test=test,
            selection=selection,
            text_column=text or "text",
            pair_column=pair,
            label_column=label or "label",
            regression=regression,
            **(kind or {}),
            class_names=parse_class_names(class_names),
        )
    for flag, file in (("test", test), ("selection", selection)):
        if file is not None:
            raise ConfigError(f"--{flag} {file} goes with --train FILE; task {task} has its own {flag} rows")
    if any(columns) or regression is not None or class_names is not None or kind:
        plain = "--class-names, --regression and --classes"
        more = "--rerank, --embed, --group-column and --separator" if kind else plain
        raise ConfigError(
            f"--text-column, --pair-column, --label-column, {more} go with --train FILE; task {task} is fixed"
        )
    return load_named_task(str(task), data)


def kind_of(given: dict[str, Any]) -> dict[str, Any]:
    """What --rerank, --embed, --group-column and --separator say of the rows, as words of `load_file_task`."""
    if given["rerank"] and given["embed"]:
        raise ConfigError("--rerank is for rerankers and --embed for embedding models; give one of them")
    means = "score" if given["rerank"] else "embedding" if given["embed"] else None
    words = {"means": means, "group_column": given["group_column"], "separator": given["separator"]}
    return {name: value for name, value in words.items() if value is not None}


def load_test_rows(
    run: Path,
    manifest: dict[str, Any],
    *,
    task: str | None,
    data: Path | None,
    test: Path | None,
    columns: Columns,
    ways: str = "--test FILE or --task NAME",
) -> "Task":
    """Rows to measure a finished run on: the user's file, a named task, or the task the run was made for.

    `ways` are the command's options for such rows, for a run that has no task of its own.
    """
    from thresher.models.checkpoint import MANIFEST
    from thresher.tasks import load_test_file, task_names
    from thresher.tasks.remembered import rows_held_out

    trained_on = manifest.get("task", {})
    if not isinstance(trained_on, dict):
        raise CheckpointError(f"{run / MANIFEST} has no valid 'task'; the file is damaged")
    if task is not None and test is not None:
        raise ConfigError("give either --task NAME or --test FILE, not both")
    if test is None and any(columns):
        raise ConfigError("--text-column, --pair-column and --label-column go with --test FILE")
    if test is not None and data is not None:
        raise ConfigError(f"--data {data} goes with --task NAME; --test names your own file")
    if test is not None:
        known = trained_on.get("columns", {})
        text, pair, label = columns
        return load_test_file(
            test,
            text_column=text or known.get("text") or "text",
            pair_column=pair or known.get("pair"),
            label_column=label or known.get("label") or "label",
            labels=_class_names(run, trained_on),
            means=trained_on.get("means"),
            group_column=known.get("group"),
            separator=trained_on.get("separator"),
        )
    name = task or trained_on.get("name")
    if task is None and data is None and "files" in trained_on:
        held_out = rows_held_out(trained_on)
        if held_out is not None:
            return held_out
    if (name not in task_names() or "files" in trained_on) and task is None:
        raise ConfigError(f"{run} {made_how(manifest)}; give rows to measure on with {ways}")
    return load_named_task(str(name), data)


def made_how(manifest: dict[str, Any]) -> str:
    """Why a run has no named task whose rows could be taken."""
    recipe = manifest.get("recipe")
    training_free = isinstance(recipe, dict) and recipe.get("recipe") == "training-free"
    return "was calibrated on your own texts" if training_free else "was trained on your own files"


def _class_names(run: Path, trained_on: dict[str, Any]) -> tuple[str, ...]:
    """The run's classes in order, none for a regression; a model saved without them has them in its config.json."""
    if "labels" in trained_on:
        return tuple(trained_on["labels"])
    from thresher.models.folder import read_config

    config = read_config(run)
    return tuple(str(config.id2label[i]) for i in range(config.num_labels)) if config.num_labels > 1 else ()


def pick_device(wanted: str) -> str:
    from thresher.hardware import choose_device

    if wanted == "auto":
        return choose_device()[0]
    if wanted not in ("cpu", "cuda"):
        raise ConfigError(f"device = {wanted!r} is not one of: auto, cpu, cuda")
    if wanted == "cuda" and choose_device()[0] != "cuda":
        raise ModelError("device cuda is not available here; use --device cpu, and see: thresher doctor")
    return wanted
