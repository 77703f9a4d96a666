"""Which rows a job works on: a named task's, the user's own files, or a task that is already loaded."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from thresher.errors import CheckpointError, ConfigError, DataError
from thresher.jobs.request import Request

if TYPE_CHECKING:
    from thresher.tasks import Task

Columns = tuple[str | None, str | None, str | None]  # text, pair, label; None: as trained


@dataclass(frozen=True, kw_only=True)
class Rows(Request):
    """Rows to measure a run on. `task` is a name, with its rows in the folder `data`, or a loaded task; `test` is a
    file of your own. With none of them they are the rows of the task that the run was made for."""

    PATHS: ClassVar[tuple[str, ...]] = ("data", "test")

    task: "str | Task | None" = None
    data: Path | None = None
    test: Path | None = None
    text_column: str | None = None
    pair_column: str | None = None
    label_column: str | None = None

    @property
    def columns(self) -> Columns:
        return self.text_column, self.pair_column, self.label_column

    @property
    def task_name(self) -> str | None:
        return self.task if isinstance(self.task, str) else None

    @property
    def loaded(self) -> "Task | None":
        """The task that was given with its rows, which leaves nothing else to say about them."""
        if self.task is None or isinstance(self.task, str):
            return None
        for name, default in _DEFAULTS.items():
            if name != "task" and getattr(self, name, default) != default:
                raise ConfigError(f"the task is given with its rows; leave out {name}")
        return self.task

    def load_test(self, run: Path, manifest: dict[str, Any], **words: str) -> "Task":
        return self.loaded or load_test_rows(
            run, manifest, task=self.task_name, data=self.data, test=self.test, columns=self.columns, **words
        )


@dataclass(frozen=True, kw_only=True)
class TrainingRows(Rows):
    """Rows to train with: `task` as above, or a file `train` of your own, perhaps with `selection` and `test` files.

    `regression` says what the labels of a file are; without it they are looked at. `rerank`, `embed`, `answers` (to
    questions) and `tags` (of words) say what the model is, `separator` what stands between several labels,
    `class_names` the order of the classes in the outputs. `more_texts` is a file of rows without labels, on which
    training learns from the dense model alone.
    """

    PATHS: ClassVar[tuple[str, ...]] = (*Rows.PATHS, "train", "selection", "more_texts")

    train: Path | None = None
    selection: Path | None = None
    regression: bool | None = None
    rerank: bool = False
    embed: bool = False
    answers: bool = False
    tags: bool = False
    group_column: str | None = None
    separator: str | None = None
    class_names: str | Sequence[str] | None = None
    more_texts: Path | None = None

    def load_training(self) -> "Task":
        from thresher.tasks.more import with_more_texts

        task = self.loaded or load_training_rows(
            task=self.task_name,
            data=self.data,
            train=self.train,
            test=self.test,
            columns=self.columns,
            selection=self.selection,
            regression=self.regression,
            kind=kind_of(self),
            class_names=self.class_names,
        )
        return task if self.more_texts is None else with_more_texts(task, self.more_texts)


_DEFAULTS = {item.name: item.default for item in fields(TrainingRows)}  # of all that says which rows


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
    class_names: str | Sequence[str] | None = None,
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
            class_names=parse_class_names(class_names) if isinstance(class_names, str) else class_names,
        )
    for flag, file in (("test", test), ("selection", selection)):
        if file is not None:
            raise ConfigError(f"--{flag} {file} goes with --train FILE; task {task} has its own {flag} rows")
    if any(columns) or regression is not None or class_names is not None or kind:
        plain = "--class-names, --regression and --classes"
        more = "--rerank, --embed, --answers, --tags, --group-column and --separator" if kind else plain
        raise ConfigError(
            f"--text-column, --pair-column, --label-column, {more} go with --train FILE; task {task} is fixed"
        )
    return load_named_task(str(task), data)


def kind_of(given: TrainingRows) -> dict[str, Any]:
    """What --rerank, --embed, --answers, --tags, --group-column and --separator say of the rows, as words of
    `load_file_task`."""
    flags = {"score": given.rerank, "embedding": given.embed, "span": given.answers, "tags": given.tags}
    chosen = [name for name, flag in flags.items() if flag]
    if len(chosen) > 1:
        raise ConfigError(
            "--rerank is for rerankers and --embed for embedding models, --answers for question answering and --tags "
            "for token classification; give one of them"
        )
    means = chosen[0] if chosen else None
    words = {"means": means, "group_column": given.group_column, "separator": given.separator}
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
            labels=_class_names(run, manifest),
            means=_special_meaning(manifest),
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


def _special_meaning(manifest: dict[str, Any]) -> str | None:
    """What the run's outputs are if not classes or values: what its task says, or without one its head."""
    from thresher.models.pairs import means_of

    trained_on = manifest.get("task", {})
    means = trained_on.get("means") if trained_on else means_of(manifest)
    return means if means in ("labels", "score", "embedding", "span", "tags") else None


def _class_names(run: Path, manifest: dict[str, Any]) -> tuple[str, ...]:
    """The run's classes in order, none for a regression; a model saved without them has them in its config.json."""
    trained_on = manifest.get("task", {})
    if "labels" in trained_on:
        return tuple(trained_on["labels"])
    if _special_meaning(manifest) in ("score", "embedding", "span"):
        return ()
    from thresher.models.folder import read_config

    config = read_config(run)
    return tuple(str(config.id2label[i]) for i in range(config.num_labels)) if config.num_labels > 1 else ()


def load_own_rows(
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
    """The rows the run was made with: a named task or the user's files, by default its own."""
    from thresher.models.checkpoint import MANIFEST
    from thresher.tasks import load_file_task, task_names
    from thresher.tasks.remembered import read_again

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
        if task is None and data is None and (again := read_again(trained_on)) is not None:
            return again
        if task is None and ("files" in trained_on or name not in task_names()):
            ways = "give its training rows, with labels, with --train FILE, or texts without labels with --texts FILE"
            raise ConfigError(f"{run} {made_how(manifest)}; {ways}")
        return load_named_task(str(name), data)
    if data is not None:
        raise ConfigError(f"--data {data} goes with --task NAME; --train and --test name your own files")
    known, classes = trained_on.get("columns", {}), trained_on.get("labels")
    text, pair, label = columns
    means = _special_meaning(manifest)
    looked_at = means is not None or classes is None  # or else training said what the labels are
    found = load_file_task(
        train,
        test=test,
        selection=selection,
        text_column=text or known.get("text") or "text",
        pair_column=pair or known.get("pair"),
        label_column=label or known.get("label") or "label",
        regression=None if looked_at else not classes,
        class_names=classes or None,
        means=means,
        group_column=known.get("group"),
        separator=trained_on.get("separator"),
    )
    if classes is not None and list(found.spec.labels) != list(classes):
        wanted, got = ", ".join(classes) or "numbers", ", ".join(found.spec.labels) or "numbers"
        raise DataError(f"{train} has the labels {got}, but {run} was trained on {wanted}; give the run's own rows")
    return found
