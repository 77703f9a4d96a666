"""Options shared by several commands, and a way to take many of them together."""

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from thresher.config import given_settings
from thresher.errors import ConfigError
from thresher.settings import Settings as Configuration

Command = Callable[..., None]
FILES = "CSV, TSV, JSON, JSONL, CoNLL or Parquet"

# What stands together on a help page, beside the options that a command has for itself.
row_option = functools.partial(typer.Option, rich_help_panel="Rows")
TRAINING = "Training"

A_RUN = "a run: the folder that prune, search, calibrate or quantize wrote"

TaskName = Annotated[
    str | None,
    row_option("--task", help="a task by name: of GLUE (sst2, mrpc, ...), squad_v2, squad, conll2003 or movies"),
]
DataFolder = Annotated[
    Path | None, row_option("--data", help="folder with TASK/train*.jsonl and TASK/validation*.jsonl, perhaps as .xz")
]
TrainFile = Annotated[Path | None, row_option("--train", help=f"your own training rows: {FILES}")]
SelectionFile = Annotated[
    Path | None,
    row_option(
        "--selection",
        help="rows that choose checkpoint and settings, like those the model will meet; a tenth of --train without it",
    ),
]
MoreTexts = Annotated[
    Path | None,
    row_option(
        "--more-texts",
        help="rows without labels to learn from the dense model on: a .txt, or a table with the training rows' columns",
    ),
]
Texts = Annotated[
    Path | None,
    row_option("--texts", help="your texts without labels: one per line, a tab before a second text"),
]
TestFile = Annotated[Path | None, row_option("--test", help=f"your own test rows: {FILES}")]
TextColumn = Annotated[str | None, row_option("--text-column", help="column with the text")]
PairColumn = Annotated[str | None, row_option("--pair-column", help="column with the second text, if there is one")]
LabelColumn = Annotated[str | None, row_option("--label-column", help="column with the label")]
Regression = Annotated[
    bool | None, row_option("--regression/--classes", help="what the labels are; default: decided by looking")
]
Rerank = Annotated[
    bool, row_option("--rerank", help="a reranker: the text is a query, the pair a document; labels may be missing")
]
# Of a model that gives one number: its folder seldom says what that is.
IsReranker = Annotated[
    bool, typer.Option("--rerank", help="the model's one output is a reranker's score, though it does not say so")
]
Embed = Annotated[bool, row_option("--embed", help="an embedding model: texts alone; pairs with a similarity test it")]
AnswersFlag = Annotated[
    bool, row_option("--answers", help="question answering: columns question, context and answers, or SQuAD's JSON")
]
TagsFlag = Annotated[
    bool, row_option("--tags", help="token classification: lists in the columns tokens and tags, or CoNLL's columns")
]
GroupColumn = Annotated[
    str | None,
    row_option(
        "--group-column",
        help="with --rerank: column with the query's identity, if not its text; with --answers, the article's",
    ),
]
Separator = Annotated[
    str | None, row_option("--separator", help="what stands between several labels in one cell, such as '|'")
]
ClassNames = Annotated[
    str | None,
    row_option(
        "--class-names",
        metavar="NEG,POS",
        help="the label column's classes in the order of the model's outputs, for a head that calls them otherwise",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="any other setting of docs/method.md, such as clip=0.5; repeatable",
        rich_help_panel=TRAINING,
    ),
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda")]
Dtype = Annotated[str, typer.Option("--dtype", help="auto, fp32, bf16, int8, int8-static; on a GPU also fp16, fp8")]
Dial = Annotated[
    float, typer.Option("--dial", help="scales the thresholds: 0 drops nothing, 1 as trained, 2 is faster")
]
MaxLength = Annotated[int | None, typer.Option("--max-length", help="longest sequence in tokens; default: as trained")]
AsJson = Annotated[
    bool, typer.Option("--json", help="print one JSON line on standard output, the rest on standard error")
]

# Names in a request -> options.
TEST_ROWS: dict[str, Any] = {
    "task": TaskName,
    "data": DataFolder,
    "test": TestFile,
    "text_column": TextColumn,
    "pair_column": PairColumn,
    "label_column": LabelColumn,
}
TRAINING_ROWS: dict[str, Any] = {
    "task": TaskName,
    "data": DataFolder,
    "train": TrainFile,
    "selection": SelectionFile,
    "test": TestFile,
    "text_column": TextColumn,
    "pair_column": PairColumn,
    "label_column": LabelColumn,
    "regression": Regression,
    "rerank": Rerank,
    "embed": Embed,
    "answers": AnswersFlag,
    "tags": TagsFlag,
    "group_column": GroupColumn,
    "separator": Separator,
    "class_names": ClassNames,
    "more_texts": MoreTexts,
}


def setting_flags(kind: type[Configuration], names: Sequence[str], *, panel: str | None = TRAINING) -> dict[str, Any]:
    """Flags of their own for some settings of a configuration, with its help; without a default of their own, so that
    a file's setting counts where no flag is given."""
    hints, found = typing.get_type_hints(kind), {}
    for name in names:
        parts = typing.get_args(hints[name]) if isinstance(hints[name], types.UnionType) else (hints[name],)
        plain = next(part for part in parts if part is not types.NoneType)
        plain = list[str] if typing.get_origin(plain) is tuple else plain
        words = [f"--{name.rstrip('_')}"] if name.endswith("_") else []
        found[name] = Annotated[plain | None, typer.Option(*words, help=_help_of(kind, name), rich_help_panel=panel)]
    return found


def _help_of(kind: type[Configuration], name: str) -> str:
    default = kind.__dataclass_fields__[name].default
    shown = ",".join(default) if isinstance(default, tuple) else default
    return kind.help_for(name) if default is None else f"{kind.help_for(name)}; default: {shown}"


def together(**groups: Mapping[str, Any]) -> Callable[[Command], Command]:
    """Options that a command takes as one dictionary: typer sees each of them, in place of the parameter."""

    def wrap(command: Command) -> Command:
        parameters = []
        for name, parameter in inspect.signature(command).parameters.items():
            options = groups.get(name, {name: parameter.annotation})
            for option, kind in options.items():
                default = _default_of(kind) if name in groups else parameter.default
                parameters.append(
                    inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
                )

        @functools.wraps(command)
        def run(**given: Any) -> None:
            taken = {group: {option: given.pop(option) for option in options} for group, options in groups.items()}
            command(**given, **taken)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what inspect looks for first
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return wrap


def _default_of(option: Any) -> Any:
    """Nothing was given, or a flag was not."""
    return False if typing.get_args(option)[0] is bool else None


def chosen_settings(flags: Mapping[str, Any], words: Sequence[str] | None) -> dict[str, Any]:
    """The settings that flags and --set give, each of them once."""
    train, prune = given_settings(words or [])
    own = {name: value for name, value in flags.items() if value not in (None, [])}
    twice = [name for name in own if name in {**train, **prune}]
    if twice:
        raise ConfigError(f"{twice[0]} is given twice, as a flag and with --set; give it once")
    return {**train, **prune, **own}
