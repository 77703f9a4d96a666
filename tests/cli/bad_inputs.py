"""Commands that must fail, as a table: each with its one-line error and the damage it starts from."""

import json
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from tests.cli import tiny
from tests.cli.conftest import Stock
from thresher.config import TrainConfig

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
QUANTIZE = "quantize {run} --train {rows} --out {tmp}/out"


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
    Bad("unknown method", PRUNE + " --method magic", ("method = 'magic'", "learned, soft, manual"), 2),
    Bad("price for a ramp", PRUNE + " --method manual --lambda 0.1", ("'manual' learns nothing", "target_flops"), 2),
    Bad("paper's price for top-k", PRUNE + " --method spatten --recipe paper", ("'spatten' learns nothing",), 2),
    Bad(
        "top-k out of reach", PRUNE + " --method spatten --target-flops 0.5", ("cannot be reached", "such as manual"), 2
    ),
    Bad("batch of none", PRUNE + " --batch-size 0", ("batch_size = 0", "below 1"), 2),
    Bad("accumulate beyond batch", PRUNE + " --batch-size 2 --accumulate 4", ("accumulate = 4", "batch_size = 2"), 2),
    Bad("accumulate beyond rows", PRUNE + " --batch-size 99 --accumulate 90", ("accumulate = 90", "39 training"), 2),
    Bad("learning rate 0", PRUNE + " --lr 0", ("lr = 0.0", "must be greater than 0"), 2),
    Bad("learning rate not a number", PRUNE + " --lr nan", ("lr = nan", "finite"), 2),
    Bad("temperature 0", PRUNE + " --temperature 0", ("temperature = 0.0", "must be greater than 0"), 2),
    Bad(
        "a setting of another method",
        PRUNE + " --set soft_mask=plain",
        ("soft_mask is a setting of method soft", "method learned does not read it"),
        2,
    ),
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

TOML += [
    Bad(
        "collapse without a first token",
        PRUNE + " --config {tmp}/a.toml --method collapse",
        ("'collapse' keeps only protected tokens", "add 'first'"),
        2,
        {"a.toml": "[prune]\nprotect = ['none']\ncollapse_last = false\n"},
    ),
    Bad(
        "lengths that drop all",
        PRUNE + " --config {tmp}/a.toml --method lat",
        ("length_drop = 1.0", "above 0.9"),
        2,
        {"a.toml": "[train]\nlength_drop = 1\n"},
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
        "run with an unknown rule",
        EVAL,
        ("thresher.json", "rule 'bottom' is not one of: top_share, top_count"),
        prepare=copied_run(rule={"name": "bottom"}),
    ),
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
    Bad("data with own rows", "eval {run} --test {test} --data {tmp}", ("--data", "goes with --task NAME"), 2),
    Bad("columns without rows", "eval {run} --task movies --text-column a", ("go with --test FILE",), 2),
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

QUANTIZED = [
    Bad("quantize no run", "quantize {tmp}/no --train {rows} --out {tmp}/out", ("/no is not a thresher run",)),
    Bad("quantize a dense model", "quantize {head} --train {rows} --out {tmp}/out", ("not a thresher run",)),
    Bad("quantize into a run", QUANTIZE, ("already holds a run", "--overwrite"), prepare=run_in_out),
    Bad("quantize into other things", QUANTIZE, ("/out exists and is not a thresher run",), files={"out/a": ""}),
    Bad("quantize over other things", QUANTIZE + " --overwrite", ("is not a thresher run",), files={"out/a": ""}),
    Bad("quantize onto a file", QUANTIZE, ("/out is a file", "must name a folder"), files={"out": "notes"}),
    Bad(
        "quantize below a file", QUANTIZE + "/deeper", ("out: Not a directory", "another --out"), files={"out": "notes"}
    ),
    Bad(
        "quantize where nothing can be written",
        "quantize {run} --train {rows} --out /proc/out",
        ("cannot make /proc/out in /proc", "another --out"),
    ),
    Bad(
        "quantize into the run itself",
        "quantize {tmp}/run --train {rows} --out {tmp}/run/int8 --overwrite",
        ("lie in one another", "a folder of its own"),
        prepare=copied_run(),
    ),
    Bad(
        "quantize a quantized run",
        "quantize {tmp}/run --train {rows} --out {tmp}/out",
        ("/run is already quantized", "made from"),
        prepare=copied_run(quantization={}),
    ),
    Bad("quantize without rows", "quantize {run} --out {tmp}/out", ("your own files", "--train FILE"), 2),
    Bad("quantize on test rows", "quantize {run} --test {test} --out {tmp}/out", ("goes with --train FILE",), 2),
    Bad("quantize on two things", QUANTIZE + " --task sst2", ("--task NAME or --train FILE",), 2),
    Bad("quantize with a data folder", QUANTIZE + " --data {tmp}", ("--data", "goes with --task NAME"), 2),
    Bad(
        "quantize with columns of no file",
        "quantize {run} --task movies --text-column a --out {tmp}/out",
        ("go with --train FILE",),
        2,
    ),
    Bad("quantize on missing rows", "quantize {run} --train {tmp}/a.csv --out {tmp}/out", ("a.csv",)),
    Bad("quantize on another column", QUANTIZE + " --text-column review", ("'review'",)),
    Bad(
        "quantize on other labels",
        "quantize {run} --train {tmp}/a.csv --out {tmp}/out",
        ("has the labels no, yes", "trained on negative, positive"),
        files={"a.csv": csv(*(f"{row.split(',')[0]},{'no' if i % 2 else 'yes'}" for i, row in enumerate(ROWS)))},
    ),
    Bad(
        "quantize on training rows that are all test rows",
        "quantize {run} --train {rows} --test {rows} --out {tmp}/out",
        ("rows.csv",),
    ),
    Bad(
        "quantize with a task that is no table",
        "quantize {tmp}/run --train {rows} --out {tmp}/out",
        ("no valid 'task'", "damaged"),
        prepare=copied_run(task="sst2"),
    ),
    Bad(
        "quantize a run with other outputs",
        "quantize {tmp}/run --train {rows} --out {tmp}/out",
        ("3 outputs", "has 2"),
        prepare=three_classes,
    ),
]

TABLE = [*SETTINGS, *TOML, *TASKS, *FILES, *MODELS, *OUTPUT, *RUNS, *QUANTIZED]
