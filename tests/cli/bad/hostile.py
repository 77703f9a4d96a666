"""Input that is meant to do harm, or that no person writes: huge, deep, of wrong types, or no path at all."""

from pathlib import Path

from tests.cli.bad.case import EVAL, PRUNE, Bad, copied_model, copied_run
from tests.cli.conftest import Stock

LONG = "x" * 300
DEEP = "[" * 100_000
TASK = {"name": "rows", "labels": ["negative", "positive"], "columns": {"text": "text", "pair": None, "label": "label"}}
MODEL = "prune {tmp}/model --train {rows} --out {tmp}/out"


def foreign_dense(tmp: Path, stock: Stock, run: Path) -> None:
    """{tmp}/run: with a folder dense/ that holds another model."""
    import shutil

    from tests.cli import tiny

    copied_run()(tmp, stock, run)
    shutil.rmtree(tmp / "run" / "dense", ignore_errors=True)
    tiny.save_model(tmp / "run" / "dense", tiny.classifier_config(hidden_size=16))


PATHS = [
    Bad("out too long", "prune {head} --train {rows} --out {tmp}/" + LONG, ("out = ", "file name too long"), 2),
    Bad("out nearly too long", "prune {head} --train {rows} --out {tmp}/" + "x" * 250, ("file name too long", "--out")),
    Bad("rows too long", "prune {head} --train {tmp}/" + LONG + ".csv --out {tmp}/out", ("train = ", "too long"), 2),
    Bad("texts too long", "calibrate {head} --texts {tmp}/" + LONG + " --out {tmp}/out", ("texts = ", "too long"), 2),
    Bad("settings too long", PRUNE + " --config {tmp}/" + LONG, ("config = ", "file name too long"), 2),
    Bad("run too long", "eval {tmp}/" + LONG + " --test {test}", ("run = ", "file name too long"), 2),
    Bad("model too long", "prune " + "x" * 5000 + " --train {rows} --out {tmp}/out", ("'xxx", "file name too long")),
    Bad(
        "half a character in out",
        "prune {head} --train {rows} --out {tmp}/a\udc80",
        ("\\udc80", "not valid Unicode"),
        2,
    ),
    Bad("half a character in rows", "prune {head} --train {tmp}/\udc80.csv --out {tmp}/out", ("\\udc80", "Unicode"), 2),
    Bad(
        "nobody's home", "prune ~no-such-user-here/a --train {rows} --out {tmp}/out", ("~no-such-user-here/a", "exist")
    ),
    Bad("escapes in a path", "eval {tmp}/\x1b[31m --test {test}", ("\\u001b[31m", "not a thresher run")),
]

FOLDERS = [
    Bad(
        "deep config.json", MODEL, ("cannot read a model configuration", "too deep"), files={"model/config.json": DEEP}
    ),
    Bad("many layers", MODEL, ("num_hidden_layers = 20,000",), prepare=copied_model(num_hidden_layers=20_000)),
    Bad("many words", MODEL, ("vocab_size = 5,000,000",), prepare=copied_model(vocab_size=5_000_000)),
    Bad("many labels", MODEL, ("num_labels = 50,000,000",), prepare=copied_model(num_labels=50_000_000, id2label=None)),
    Bad("no layers", MODEL, ("num_hidden_layers = 0", "at least 1"), prepare=copied_model(num_hidden_layers=0)),
    Bad("labels with holes", MODEL, ("none for class 1",), prepare=copied_model(id2label={"0": "a", "5": "b"})),
    Bad(
        "custom code",
        MODEL,
        ("code of its own, which thresher never runs", "doctor --families"),
        prepare=copied_model(model_type="x", auto_map={"AutoConfig": "a.B"}),
    ),
    Bad(
        "deep settings",
        PRUNE + " --config {tmp}/a.toml",
        ("a.toml is not valid TOML",),
        2,
        files={"a.toml": "a = " + DEEP},
    ),
    Bad(
        "deep rows",
        "prune {head} --train {tmp}/a.jsonl --out {tmp}/out",
        ("row 1", "not valid JSON"),
        files={"a.jsonl": DEEP},
    ),
]

MANIFESTS = [
    Bad("deep thresher.json", "eval {tmp}/run --test {test}", ("too deep",), files={"run/thresher.json": DEEP}),
    Bad("no settings", EVAL, ("lacks the settings scale", "damaged"), prepare=copied_run(prune={})),
    Bad("labels that are a number", EVAL, ("no valid 'task.labels'",), prepare=copied_run(task={**TASK, "labels": 5})),
    Bad("no labels", EVAL, ("no valid 'task.labels'",), prepare=copied_run(task={**TASK, "labels": None})),
    Bad("no columns", EVAL, ("no valid 'task.columns'",), prepare=copied_run(task={**TASK, "columns": None})),
    Bad(
        "columns in a list", EVAL, ("no valid 'task.columns'",), prepare=copied_run(task={**TASK, "columns": ["text"]})
    ),
    Bad("length as a word", EVAL, ("no valid 'recipe.max_length'",), prepare=copied_run(recipe={"max_length": "8"})),
    Bad("base model as a list", EVAL, ("no valid 'base_model'",), prepare=copied_run(base_model=[])),
    Bad(
        "shares beyond numbers",
        EVAL,
        ("needs a list 'shares'",),
        prepare=copied_run(rule={"name": "top_share", "shares": [10**400] * 4}),
    ),
    Bad(
        "dense model of another width",
        EVAL,
        ("run/dense/ is another model", "remove that folder"),
        prepare=foreign_dense,
    ),
]

HOSTILE = [*PATHS, *FOLDERS, *MANIFESTS]
