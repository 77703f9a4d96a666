"""Bad input to the command line: one line that names the value and the way out, an exit code, and nothing written.

Exit code 2 means the command or its settings are wrong, 1 that something they point to is.
"""

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

import thresher
from tests.cli import tiny
from tests.cli.conftest import Stock
from thresher.config import PruneConfig, TrainConfig
from thresher.errors import CheckpointError, ConfigError, DataError, ModelError, RunError, ThresherError

Prepare = Callable[[Path, Stock, Path], None]


@dataclass(frozen=True)
class Bad:
    """One bad command. Its words may name {head}, {bare}, {rows}, {test}, {run} and {tmp}; `files` are made in {tmp}.

    `prune` stands for a prune command that is right but for the words added here.
    """

    name: str
    command: str
    says: tuple[str, ...]
    code: int = 1
    files: dict[str, str | bytes] = field(default_factory=dict)
    prepare: Prepare = lambda tmp, stock, run: None


PRUNE = "prune {head} --train {rows} --out {tmp}/out --device cpu"
EVAL = "eval {tmp}/run --test {test}"


# ---- things to damage


def copied_model(**changes: Any) -> Prepare:
    """{tmp}/model: the classifier, with changes to its config.json."""

    def prepare(tmp: Path, stock: Stock, run: Path) -> None:
        shutil.copytree(stock.head, tmp / "model")
        file = tmp / "model" / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), **changes}), encoding="utf-8")

    return prepare


def truncated_weights(tmp: Path, stock: Stock, run: Path) -> None:
    shutil.copytree(stock.head, tmp / "model")
    os.truncate(tmp / "model" / "model.safetensors", 1000)


def nan_weights(tmp: Path, stock: Stock, run: Path) -> None:
    shutil.copytree(stock.head, tmp / "model")
    weights = tiny.weights(stock.head)
    weights["classifier.weight"][0, 0] = math.nan
    save_file(weights, tmp / "model" / "model.safetensors", metadata={"format": "pt"})


def without(*names: str) -> Prepare:
    def prepare(tmp: Path, stock: Stock, run: Path) -> None:
        shutil.copytree(stock.head, tmp / "model")
        for name in names:
            (tmp / "model" / name).unlink()

    return prepare


def other_order(tmp: Path, stock: Stock, run: Path) -> None:
    tiny.save_model(tmp / "model", tiny.classifier_config(("positive", "negative")))


def copied_run(**changes: Any) -> Prepare:
    """{tmp}/run: the finished run, with changes to its thresher.json."""

    def prepare(tmp: Path, stock: Stock, run: Path) -> None:
        shutil.copytree(run, tmp / "run")
        (tmp / "run" / "thresher.json").write_text(json.dumps({**tiny.manifest(run), **changes}), encoding="utf-8")

    return prepare


def broken_manifest(tmp: Path, stock: Stock, run: Path) -> None:
    shutil.copytree(run, tmp / "run")
    file = tmp / "run" / "thresher.json"
    file.write_text(file.read_text(encoding="utf-8")[:100], encoding="utf-8")


def three_classes(tmp: Path, stock: Stock, run: Path) -> None:
    """{tmp}/run: a run whose weights have three outputs, while its thresher.json tells of two classes."""
    shutil.copytree(run, tmp / "run")
    tiny.save_model(tmp / "run", tiny.classifier_config(("a", "b", "c")))


def run_in_out(tmp: Path, stock: Stock, run: Path) -> None:
    shutil.copytree(run, tmp / "out")


def partial(tmp: Path, stock: Stock, run: Path) -> None:
    (tmp / "out.partial" / "state").mkdir(parents=True)


def interrupted(tmp: Path, stock: Stock, run: Path) -> None:
    """{tmp}/out.partial: what an interrupted run with the default settings leaves behind."""
    from thresher.training.snapshot import write_snapshot

    write_snapshot(tmp / "out.partial", {}, {"identity": TrainConfig().to_dict(), "standing": {}})


def damaged_state(tmp: Path, stock: Stock, run: Path) -> None:
    interrupted(tmp, stock, run)
    (tmp / "out.partial" / "state" / "model.safetensors").write_bytes(b"half a file")


def csv(*rows: str) -> str:
    return "\n".join(("text,label", *rows)) + "\n"


ROWS = tuple(f"{text},{label}" for text, label in tiny.sentences(12))

SETTINGS = [
    Bad("target 0", PRUNE + " --target-flops 0", ("target_flops = 0.0", "must be greater than 0"), 2),
    Bad("target above 1", PRUNE + " --target-flops 1.5", ("target_flops = 1.5", "above 1.0, the largest allowed"), 2),
    Bad("target out of reach", PRUNE + " --target-flops 0.05", ("target_flops = 0.05", "ask for more"), 2),
    Bad("target not a number", PRUNE + " --target-flops nan", ("target_flops = nan", "finite"), 2),
    Bad("negative lambda", PRUNE + " --lambda -1", ("lambda_ = -1.0", "below 0.0, the smallest allowed"), 2),
    Bad(
        "target and lambda",
        PRUNE + " --lambda 0.1 --target-flops 0.5",
        ("target_flops = 0.5 and lambda_ = 0.1", "give exactly one"),
        2,
    ),
    Bad("unknown recipe", PRUNE + " --recipe soup", ("recipe = 'soup'", "default, paper"), 2),
    Bad("batch of none", PRUNE + " --batch-size 0", ("batch_size = 0", "below 1"), 2),
    Bad("accumulate beyond batch", PRUNE + " --batch-size 2 --accumulate 4", ("accumulate = 4", "batch_size = 2"), 2),
    Bad("accumulate beyond rows", PRUNE + " --batch-size 99 --accumulate 90", ("accumulate = 90", "39 training"), 2),
    Bad("learning rate 0", PRUNE + " --lr 0", ("lr = 0.0", "must be greater than 0"), 2),
    Bad("learning rate not a number", PRUNE + " --lr nan", ("lr = nan", "finite"), 2),
    Bad("temperature 0", PRUNE + " --temperature 0", ("temperature = 0.0", "must be greater than 0"), 2),
    Bad("distillation above 1", PRUNE + " --distill 2", ("distill = 2.0", "above 1.0"), 2),
    Bad("endless epochs", PRUNE + " --soft-epochs inf", ("soft_epochs = inf", "finite"), 2),
    Bad("seed too large", PRUNE + f" --seed {2**70}", (f"seed = {2**70}", "the largest allowed"), 2),
    Bad("no steps", PRUNE + " --max-steps 0", ("max_steps = 0", "below 1"), 2),
    Bad("negative seed", PRUNE + " --seed -1", ("seed = -1", "below 0"), 2),
    Bad("too short", PRUNE + " --max-length 3", ("max_length = 3", "below 4"), 2),
    Bad("unknown precision", PRUNE + " --precision fp8", ("precision = 'fp8'", "auto, fp32, bf16"), 2),
    Bad("unknown scale", PRUNE + " --scale log", ("scale = 'log'", "relative, paper"), 2),
    Bad("unknown protection", PRUNE + " --protect verbs", ("protect = 'verbs'", "first, separators"), 2),
    Bad("none and first", PRUNE + " --protect none --protect first", ("mixes 'none'", "one or the other"), 2),
    Bad("nothing protected", PRUNE + " --protect none", ("the first token must be protected", "collapse_last"), 2),
    Bad("unknown device", PRUNE + " --device tpu", ("device = 'tpu'", "auto, cpu, cuda"), 2),
    Bad("unknown finetune", PRUNE + " --finetune maybe", ("finetune = 'maybe'", "auto, always, never"), 2),
    Bad("task and file", PRUNE + " --task sst2", ("--task NAME or --train FILE",), 2),
    Bad("neither task nor file", "prune {head} --out {tmp}/out", ("--task NAME or --train FILE",), 2),
    Bad(
        "test file with a task",
        "prune {head} --out {tmp}/out --task sst2 --test {test}",
        ("--test", "test.csv", "goes with --train"),
        2,
    ),
]

TOML = [
    Bad("no such settings file", PRUNE + " --config {tmp}/no.toml", ("no.toml", "does not exist"), 2),
    Bad("not TOML", PRUNE + " --config {tmp}/a.toml", ("a.toml", "not valid TOML"), 2, {"a.toml": "[train\n"}),
    Bad("not text", PRUNE + " --config {tmp}/a.toml", ("a.toml", "not valid TOML"), 2, {"a.toml": b"\xff\xfe\x00"}),
    Bad(
        "unknown table",
        PRUNE + " --config {tmp}/a.toml",
        ("'training'", "[prune] and [train]"),
        2,
        {"a.toml": "[training]\nlr = 1e-4\n"},
    ),
    Bad(
        "unknown key",
        PRUNE + " --config {tmp}/a.toml",
        ("unknown setting 'learning_rate'", "known settings: recipe"),
        2,
        {"a.toml": "[train]\nlearning_rate = 1e-4\n"},
    ),
    Bad(
        "wrong type",
        PRUNE + " --config {tmp}/a.toml",
        ("lr = '1e-4'", "must be float"),
        2,
        {"a.toml": "[train]\nlr = '1e-4'\n"},
    ),
    Bad(
        "recipe of a wrong type",
        PRUNE + " --config {tmp}/a.toml",
        ("recipe = ['paper']", "default, paper"),
        2,
        {"a.toml": "[train]\nrecipe = ['paper']\n"},
    ),
    Bad(
        "list of a wrong type",
        PRUNE + " --config {tmp}/a.toml",
        ("protect = 'first'", "tuple"),
        2,
        {"a.toml": "[prune]\nprotect = 'first'\n"},
    ),
]

TASKS = [
    Bad("task out of reach", "prune {head} --task rte --out {tmp}/out", ("task rte", "--data DIR")),
    Bad(
        "unknown task", "prune {head} --task sst3 --out {tmp}/out", ("unknown task 'sst3'", "known tasks: movies, mnli")
    ),
    Bad("no such data folder", "prune {head} --task sst2 --data {tmp}/no --out {tmp}/out", ("/no", "does not exist")),
    Bad(
        "folder without the task",
        "prune {head} --task sst2 --data {tmp} --out {tmp}/out",
        ("no folder 'sst2'", "train"),
    ),
    Bad(
        "folder without a split",
        "prune {head} --task sst2 --data {tmp} --out {tmp}/out",
        ("no file validation*.jsonl", "add it"),
        files={"sst2/train.jsonl": '{"sentence": "a film", "label": 0}\n'},
    ),
    Bad("data for movies", "prune {head} --task movies --data {tmp} --out {tmp}/out", ("movies", "leave --data out")),
]

FILES = [
    Bad("no such file", "prune {head} --train {tmp}/no.csv --out {tmp}/out", ("no.csv", "does not exist")),
    Bad("no such test file", PRUNE + " --test {tmp}/no.csv", ("no.csv", "does not exist")),
    Bad(
        "unknown format", "prune {head} --train {tmp}/a.xlsx --out {tmp}/out", ("a.xlsx", ".csv"), files={"a.xlsx": ""}
    ),
    Bad(
        "file is a folder", "prune {head} --train {tmp}/a.csv --out {tmp}/out", ("is a folder",), files={"a.csv/b": ""}
    ),
    Bad("missing column", PRUNE + " --text-column review", ("no column 'review'", "available columns: text, label")),
    Bad("missing pair column", PRUNE + " --pair-column other", ("no column 'other'", "available columns")),
    Bad("column given twice", PRUNE + " --pair-column text", ("'text' is given twice", "different columns")),
    Bad(
        "nothing in the file",
        "prune {head} --train {tmp}/a.csv --out {tmp}/out",
        ("a.csv has no rows", "at least one row"),
        files={"a.csv": ""},
    ),
    Bad(
        "empty text",
        "prune {head} --train {tmp}/a.csv --out {tmp}/out",
        ("row 2 (line 3)", "'text' is empty", "remove the row"),
        files={"a.csv": csv(ROWS[0], "  ,positive", *ROWS[1:])},
    ),
    Bad(
        "no label",
        "prune {head} --train {tmp}/a.csv --out {tmp}/out",
        ("row 3 (line 4) has no label", "remove the row"),
        files={"a.csv": csv(*ROWS[:2], "a film,", *ROWS[2:])},
    ),
    Bad(
        "one field too many",
        "prune {head} --train {tmp}/a.csv --out {tmp}/out",
        ("row 1 (line 2) has 3 fields", "quote fields"),
        files={"a.csv": csv("good, but long,positive", *ROWS)},
    ),
    Bad(
        "not UTF-8",
        "prune {head} --train {tmp}/a.csv --out {tmp}/out",
        ("line 2", "0xe9", "save it as UTF-8"),
        files={"a.csv": csv("clich\xe9,negative", *ROWS).encode("latin-1")},
    ),
    Bad(
        "one class",
        "prune {head} --train {tmp}/a.csv --out {tmp}/out",
        ("every label in 'label' is 'positive'", "at least two"),
        files={"a.csv": csv("a film,positive", "the plot,positive", "a joke,positive", "a cast,positive")},
    ),
    Bad(
        "too few rows",
        "prune {head} --train {tmp}/a.csv --out {tmp}/out",
        ("too few different rows", "at least three"),
        files={"a.csv": csv(*ROWS[:2])},
    ),
    Bad(
        "word among numbers",
        "prune {head} --train {tmp}/a.csv --regression --out {tmp}/out",
        ("row 2 (line 3)", "'high' is not a number", "correct it"),
        files={"a.csv": csv("a film,0.5", "the plot,high", "a joke,1.5")},
    ),
    Bad(
        "number without end",
        "prune {head} --train {tmp}/a.csv --out {tmp}/out",
        ("row 2 (line 3)", "label inf is not a finite number"),
        files={"a.csv": csv("a film,0.5", "the plot,inf", "a joke,1.5")},
    ),
    Bad(
        "label the training rows lack",
        PRUNE + " --test {tmp}/a.csv",
        ("row 2 (line 3)", "label 'mixed'", "negative, positive"),
        files={"a.csv": csv("a film,positive", "the plot,mixed")},
    ),
    Bad(
        "broken JSON",
        "prune {head} --train {tmp}/a.jsonl --out {tmp}/out",
        ("row 2 (line 2)", "not valid JSON", "one JSON object"),
        files={"a.jsonl": '{"text": "a film", "label": "x"}\n{"text": "the plot", \n'},
    ),
    Bad(
        "JSON that is no object",
        "prune {head} --train {tmp}/a.jsonl --out {tmp}/out",
        ("row 1 (line 1) is a JSON list", "one JSON object"),
        files={"a.jsonl": '["a film", "x"]\n'},
    ),
    Bad(
        "text that is a number",
        "prune {head} --train {tmp}/a.jsonl --out {tmp}/out",
        ("row 2 (line 2)", "'text' is of type int", "written as a string"),
        files={"a.jsonl": '{"text": "a film", "label": "x"}\n{"text": 7, "label": "y"}\n'},
    ),
    Bad(
        "half a character",
        "prune {head} --train {tmp}/a.jsonl --out {tmp}/out",
        ("row 1 (line 1)", "\\ud83d", "remove it"),
        files={"a.jsonl": '{"text": "good \\ud83d", "label": "x"}\n{"text": "bad", "label": "y"}\n'},
    ),
    Bad(
        "no Parquet",
        "prune {head} --train {tmp}/a.parquet --out {tmp}/out",
        ("a.parquet cannot be read as Parquet", "complete"),
        files={"a.parquet": b"PAR1 and then nothing"},
    ),
]

MODELS = [
    Bad("no such model", "prune {tmp}/no --train {rows} --out {tmp}/out", ("model folder", "/no does not exist")),
    Bad("model out of reach", "prune nobody/nothing --train {rows} --out {tmp}/out", ("'nobody/nothing'",)),
    Bad("model is a data file", "prune {rows} --train {rows} --out {tmp}/out", ("rows.csv",)),
    Bad(
        "folder without config.json",
        "prune {tmp}/model --train {rows} --out {tmp}/out",
        ("/model is not a Hugging Face model folder", "config.json"),
        files={"model/readme.txt": "weights to follow"},
    ),
    Bad(
        "broken config.json",
        "prune {tmp}/model --train {rows} --out {tmp}/out",
        ("/model'", "configuration"),
        files={"model/config.json": '{"model_type": '},
    ),
    Bad(
        "config.json that is no object",
        "prune {tmp}/model --train {rows} --out {tmp}/out",
        ("/model'", "configuration"),
        files={"model/config.json": "[1, 2]"},
    ),
    Bad(
        "config.json with a wrong type",
        "prune {tmp}/model --train {rows} --out {tmp}/out",
        ("/model'", "hidden_size"),
        prepare=copied_model(hidden_size="wide"),
    ),
    Bad(
        "unsupported family",
        "prune {tmp}/model --train {rows} --out {tmp}/out",
        ("model family 'gpt2' is not supported", "supported: bert, roberta"),
        files={"model/config.json": '{"model_type": "gpt2"}'},
    ),
    Bad(
        "encoder of an unsupported family",
        "prune {tmp}/model --train {rows} --out {tmp}/out",
        ("model family 'deberta-v2' is not supported", "supported: bert, roberta"),
        files={"model/config.json": '{"model_type": "deberta-v2"}'},
    ),
    Bad(
        "cut weights",
        "prune {tmp}/model --train {rows} --out {tmp}/out",
        ("cannot load model", "/model'"),
        prepare=truncated_weights,
    ),
    Bad(
        "no weights",
        "prune {tmp}/model --train {rows} --out {tmp}/out",
        ("cannot load model", "/model"),
        prepare=without("model.safetensors"),
    ),
    Bad(
        "NaN in the weights",
        "prune {tmp}/model --train {rows} --out {tmp}/out",
        ("'classifier.weight'", "NaN or infinity", "damaged"),
        prepare=nan_weights,
    ),
    Bad(
        "weights of a smaller model",
        "prune {tmp}/model --train {rows} --out {tmp}/out",
        ("lacks weights", "bert.encoder.layer.4.", "/model'"),
        prepare=copied_model(num_hidden_layers=6),
    ),
    Bad(
        "weights of another width",
        "prune {tmp}/model --train {rows} --out {tmp}/out",
        ("lacks weights", "intermediate.dense", "/model'"),
        prepare=copied_model(intermediate_size=64),
    ),
    Bad(
        "no tokenizer",
        "prune {tmp}/model --train {rows} --out {tmp}/out",
        ("tokenizer", "/model'"),
        prepare=without("tokenizer.json", "tokenizer_config.json"),
    ),
    Bad(
        "no head and no leave to train one",
        "prune {bare} --train {rows} --out {tmp}/out --finetune never",
        ("no classification head with 2 outputs", "use --finetune auto"),
    ),
    Bad(
        "classes in another order",
        "prune {tmp}/model --train {rows} --out {tmp}/out",
        ("order positive, negative", "--finetune always"),
        prepare=other_order,
    ),
]

OUTPUT = [
    Bad("out is a file", PRUNE, ("/out is a file", "must name a folder"), files={"out": "notes"}),
    Bad(
        "out below a file",
        "prune {head} --train {rows} --out {tmp}/a/out",
        ("a: Not a directory", "another --out"),
        files={"a": "notes"},
    ),
    Bad("out without a name", "prune {head} --train {rows} --out .", ("--out .", "such as runs/first"), 2),
    Bad(
        "out where nothing can be written", "prune {head} --train {rows} --out /proc/out", ("in /proc", "another --out")
    ),
    Bad(
        "out holds other things", PRUNE, ("/out exists and is not a thresher run", "another --out"), files={"out/a": ""}
    ),
    Bad("overwriting other things", PRUNE + " --overwrite", ("is not a thresher run",), files={"out/a": ""}),
    Bad("out holds a run", PRUNE, ("already holds a run", "--overwrite"), prepare=run_in_out),
    Bad("interrupted run in the way", PRUNE, ("out.partial holds an interrupted run", "--resume"), prepare=partial),
    Bad("nothing to resume", PRUNE + " --resume", ("nothing to resume", "out.partial", "without --resume")),
    Bad("no state to resume", PRUNE + " --resume", ("nothing to resume", "without --resume"), prepare=partial),
    Bad("damaged state", PRUNE + " --resume", ("/state is damaged", "--overwrite"), prepare=damaged_state),
    Bad(
        "resumed with other settings",
        PRUNE + " --resume --lr 0.1 --seed 5",
        ("other settings for: data, finetune, lr, model, prune settings, seed", "the same ones"),
        prepare=interrupted,
    ),
]

RUNS = [
    Bad("no such run", "eval {tmp}/run --test {test}", ("/run is not a thresher run", "thresher prune")),
    Bad("eval of a dense model", "eval {head} --test {test}", ("not a thresher run", "thresher.json")),
    Bad("explain of a dense model", "explain {head} film", ("not a thresher run", "thresher.json")),
    Bad(
        "run of a newer format", EVAL, ("format version 99", "upgrade thresher"), prepare=copied_run(format_version=99)
    ),
    Bad(
        "run without a version", EVAL, ("no format_version", "not written by"), prepare=copied_run(format_version=None)
    ),
    Bad("broken thresher.json", EVAL, ("thresher.json is not valid JSON",), prepare=broken_manifest),
    Bad("thresher.json without a part", EVAL, ("no valid 'prune'", "damaged"), prepare=copied_run(prune=None)),
    Bad("task that is no table", EVAL, ("no valid 'task'", "damaged"), prepare=copied_run(task="sst2")),
    Bad("unknown setting in thresher.json", EVAL, ("unknown setting 'x'",), prepare=copied_run(prune={"x": 1})),
    Bad("thresholds missing", EVAL, ("2 thresholds for 4 layers",), prepare=copied_run(thresholds=[0.1, 0.2])),
    Bad(
        "thresholds for another depth",
        EVAL,
        ("2 thresholds", "4 layers"),
        prepare=copied_run(thresholds=[0.1, 0.2], layers=2),
    ),
    Bad(
        "NaN among the thresholds",
        EVAL,
        ("threshold that is not a number",),
        prepare=copied_run(thresholds=[0.0, "nan", 0.5, "inf"]),
    ),
    Bad("run of another family", EVAL, ("model type 'roberta'", "'bert'"), prepare=copied_run(model_type="roberta")),
    Bad("run with other outputs", EVAL, ("3 outputs", "has 2"), prepare=three_classes),
    Bad("eval on nothing", "eval {run}", ("trained on your own files", "--test FILE"), 2),
    Bad("eval on two things", "eval {run} --task sst2 --test {test}", ("--task NAME or --test FILE",), 2),
    Bad("eval too short", "eval {run} --test {test} --max-length 2", ("max_length = 2", "below 4"), 2),
    Bad("eval on an unknown device", "eval {run} --test {test} --device tpu", ("device = 'tpu'", "auto, cpu, cuda"), 2),
    Bad("explain nothing", "explain {run} ' '", ("the text is empty", "at least one word")),
    Bad(
        "picture where nothing can be written", "explain {run} film --svg /proc/a.svg", ("/proc/a.svg", "another --svg")
    ),
    Bad("picture over a folder", "explain {run} film --svg {tmp}", ("cannot write", "another --svg")),
    Bad("explain half a pair", "explain {run} film ''", ("the text is empty", "at least one word")),
    Bad("explain half a character", "explain {run} 'film \ud83d'", ("\\ud83d", "half a character")),
]

TABLE = [*SETTINGS, *TOML, *TASKS, *FILES, *MODELS, *OUTPUT, *RUNS]


def places(tmp: Path, stock: Stock, run: Path) -> dict[str, Path]:
    return {"head": stock.head, "bare": stock.bare, "rows": stock.rows, "test": stock.test, "run": run, "tmp": tmp}


def make(bad: Bad, tmp: Path, stock: Stock, run: Path) -> None:
    for name, content in bad.files.items():
        (tmp / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp / name).write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    bad.prepare(tmp, stock, run)


def check(done: tiny.Said, bad: Bad) -> None:
    assert "Traceback" not in done.err
    lines = done.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), done.err
    for words in bad.says:
        assert words in lines[0]
    assert done.code == bad.code
    assert done.out == ""


@pytest.mark.parametrize("bad", TABLE, ids=lambda bad: bad.name.replace(" ", "-"))
def test_bad_input_is_one_line_and_leaves_nothing(
    bad: Bad, tmp_path: Path, stock: Stock, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make(bad, tmp_path, stock, finished)
    before = tiny.tree(tmp_path)
    done = tiny.thresher(bad.command, **places(tmp_path, stock, finished))
    check(done, bad)
    assert tiny.tree(tmp_path) == before


def test_cuda_where_there_is_none(
    tmp_path: Path, stock: Stock, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for command in (PRUNE + " --device cuda", "eval {run} --test {test} --device cuda"):
        bad = Bad("no CUDA", command, ("device cuda is not available", "--device cpu", "thresher doctor"))
        check(tiny.thresher(command, **places(tmp_path, stock, finished)), bad)
    assert tiny.tree(tmp_path) == set()


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("prnue", "prnue"),
        ("prune", "Missing argument"),
        ("prune {head} --train {rows}", "--out"),
        ("prune {head} --train {rows} --out {tmp}/out --colour red", "--colour"),
        ("prune {head} --train {rows} --out {tmp}/out --batch-size many", "--batch-size"),
        ("prune {head} --train {rows} --out {tmp}/out --target-flops half", "--target-flops"),
        ("explain {run}", "Missing argument"),
        ("demo --out {tmp}/out --seed -1", "--seed"),
        ("doctor now", "now"),
    ],
)
def test_usage_errors_are_typers(command: str, says: str, tmp_path: Path, stock: Stock, finished: Path) -> None:
    done = tiny.thresher(command, **places(tmp_path, stock, finished))
    assert done.code == 2
    assert says in done.err
    assert "Traceback" not in done.err
    assert tiny.tree(tmp_path) == set()


@pytest.mark.parametrize(
    "bad",
    [
        Bad("setting", PRUNE + " --lr 0", ("lr = 0.0",), 2),
        Bad("model", "prune {tmp}/no --train {rows} --out {tmp}/out", ("/no does not exist",)),
        Bad("run", "eval {head} --test {test}", ("not a thresher run",)),
    ],
    ids=lambda bad: bad.name,
)
def test_the_same_from_outside(bad: Bad, tmp_path: Path, stock: Stock) -> None:
    """The installed program, warnings and all: nothing but the one line may reach the terminal."""
    words = [word.format(**places(tmp_path, stock, tmp_path)) for word in bad.command.split()]
    done = subprocess.run((sys.executable, "-m", "thresher", *words), capture_output=True, text=True, timeout=120)
    check(tiny.Said(done.returncode, done.stdout, done.stderr), bad)
    assert tiny.tree(tmp_path) == set()


# ---- the same through Python


def classifier(stock: Stock, *, pruned: bool = True) -> tuple[Any, Any]:
    from thresher.models.checkpoint import load_dense

    model, tokenizer = load_dense(stock.head)
    if pruned:
        thresher.prune_(model)
    return model, tokenizer


def rows_of(stock: Stock, **changes: Any) -> Any:
    from thresher.tasks import load_file_task

    return load_file_task(stock.rows, test=None, **{"text_column": "text", "label_column": "label", **changes})


def three_way(stock: Stock) -> Any:
    from dataclasses import replace

    task = rows_of(stock)
    return replace(task, spec=replace(task.spec, labels=("a", "b", "c")))


def other_thresholds(stock: Stock, values: list[float]) -> None:
    thresher.gates_of(classifier(stock)[0]).set_thresholds(values)


def decoder(stock: Stock) -> None:
    from transformers import AutoModelForSequenceClassification

    config = tiny.classifier_config(is_decoder=True)
    thresher.prune_(AutoModelForSequenceClassification.from_config(config))


def headless() -> None:
    from transformers import AutoModel

    thresher.prune_(AutoModel.from_config(tiny.config()))


def padded_left(stock: Stock) -> None:
    import torch

    model, _ = classifier(stock)
    model(input_ids=torch.tensor([[0, 2, 4, 3]]), attention_mask=torch.tensor([[0, 1, 1, 1]]))


CALLS: list[tuple[str, Callable[[Stock, Path], Any], type[ThresherError], tuple[str, ...]]] = [
    ("unknown scale", lambda s, t: PruneConfig(scale="log"), ConfigError, ("scale = 'log'", "relative, paper")),
    ("no protection", lambda s, t: PruneConfig(protect=()), ConfigError, ("protect is empty", "['none']")),
    (
        "separators without their id",
        lambda s, t: PruneConfig(protect=("first", "separators")),
        ConfigError,
        ("separators", "tokenizer.sep_token_id"),
    ),
    (
        "negative threshold",
        lambda s, t: PruneConfig(final_threshold=-1.0),
        ConfigError,
        ("final_threshold = -1.0", "below 0.0"),
    ),
    (
        "number as text",
        lambda s, t: TrainConfig.from_dict({"batch_size": "32"}),
        ConfigError,
        ("batch_size = '32'", "must be int"),
    ),
    (
        "yes as a number",
        lambda s, t: TrainConfig.from_dict({"seed": True}),
        ConfigError,
        ("seed = True", "must be int"),
    ),
    ("no goal", lambda s, t: TrainConfig(target_flops=None), ConfigError, ("lambda_ = None", "exactly one")),
    ("unknown recipe", lambda s, t: TrainConfig.recipe_named("soup"), ConfigError, ("'soup'", "default, paper")),
    (
        "unknown mode",
        lambda s, t: thresher.gates_of(classifier(s)[0]).set_mode("warm"),
        ConfigError,
        ("'warm'", "hard"),
    ),
    ("too few thresholds", lambda s, t: other_thresholds(s, [0.1]), ConfigError, ("1 thresholds", "4 layers")),
    ("NaN threshold", lambda s, t: other_thresholds(s, [0, 0, math.nan, 1]), ConfigError, ("contain NaN", "infinity")),
    ("pruned twice", lambda s, t: thresher.prune_(classifier(s)[0]), ModelError, ("already has gates", "unprune_")),
    (
        "never pruned",
        lambda s, t: thresher.unprune_(classifier(s, pruned=False)[0]),
        ModelError,
        ("no gates", "prune_"),
    ),
    ("not a model", lambda s, t: thresher.prune_("bert"), ModelError, ("str is not a Hugging Face model",)),  # type: ignore[arg-type]
    ("no head", lambda s, t: headless(), ModelError, ("BertModel", "AutoModelForSequenceClassification")),
    ("decoder", lambda s, t: decoder(s), ModelError, ("configured as a decoder", "only encoders")),
    ("padding on the left", lambda s, t: padded_left(s), ModelError, ("starts with padding", "pad on the right")),
    ("no such run", lambda s, t: thresher.load(t / "no"), CheckpointError, ("/no is not a thresher run", "prune")),
    (
        "saved without gates",
        lambda s, t: thresher.save(*classifier(s, pruned=False), t / "out"),
        ModelError,
        ("no gates", "prune_"),
    ),
    ("unknown task", lambda s, t: thresher.load_task("sst3", data=None), DataError, ("'sst3'", "known tasks")),
    ("column given twice", lambda s, t: rows_of(s, label_column="text"), DataError, ("'text' is given twice",)),
    (
        "model for other classes",
        lambda s, t: thresher.Trainer(*classifier(s), three_way(s)),
        DataError,
        ("2 outputs", "num_labels=3"),
    ),
    (
        "target out of reach",
        lambda s, t: thresher.Trainer(*classifier(s), rows_of(s), TrainConfig(target_flops=0.01)),
        ConfigError,
        ("target_flops = 0.01", "ask for more"),
    ),
    (
        "resume from nowhere",
        lambda s, t: thresher.Trainer(*classifier(s), rows_of(s), resume=True, device="cpu"),
        RunError,
        ("resume needs the work folder",),
    ),
    (
        "explained to nothing",
        lambda s, t: thresher.explain(*classifier(s), "a film", max_length=2),
        DataError,
        ("max_length = 2", "at least 3"),
    ),
    ("half a character", lambda s, t: thresher.explain(*classifier(s), "\udc80"), DataError, ("\\udc80", "remove it")),
]


@pytest.mark.parametrize(("call", "kind", "says"), [row[1:] for row in CALLS], ids=[row[0] for row in CALLS])
def test_bad_call_raises_our_error(
    call: Callable[[Stock, Path], Any], kind: type[ThresherError], says: tuple[str, ...], stock: Stock, tmp_path: Path
) -> None:
    with pytest.raises(kind) as caught:
        call(stock, tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    for words in says:
        assert words in message
    assert tiny.tree(tmp_path) == set()
