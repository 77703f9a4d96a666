"""Bad rows and models."""

from tests.cli.bad.case import (
    PRUNE,
    ROWS,
    Bad,
    copied_model,
    csv,
    nan_weights,
    other_classes,
    other_order,
    truncated_weights,
    without,
)

FILES = [
    Bad("no such file", "prune {head} --train {tmp}/no.csv --out {tmp}/out", ("no.csv", "does not exist")),
    Bad("no such test file", PRUNE + " --test {tmp}/no.csv", ("no.csv", "does not exist")),
    Bad(
        "unknown format", "prune {head} --train {tmp}/a.xlsx --out {tmp}/out", ("a.xlsx", ".csv"), files={"a.xlsx": ""}
    ),
    Bad(
        "file is a folder", "prune {head} --train {tmp}/a.csv --out {tmp}/out", ("is a folder",), files={"a.csv/b": ""}
    ),
    Bad(
        "missing column", PRUNE + " --text-column review", ("no column 'review'", "available columns: 'text', 'label'")
    ),
    Bad("missing pair column", PRUNE + " --pair-column other", ("no column 'other'", "say which with --pair-column")),
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
        "word among numbers, searching",
        "search {head} --train {tmp}/a.csv --regression --out {tmp}/out",
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
        ("model family 'funnel' is not supported", "supported: bert, roberta"),
        files={"model/config.json": '{"model_type": "funnel"}'},
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
    Bad(
        "classes of another task",
        "prune {tmp}/model --train {rows} --out {tmp}/out",
        ("classes are not_equivalent, equivalent", "of the rows negative, positive", "--finetune always"),
        prepare=other_classes,
    ),
    Bad(
        "a pruned run for a dense model",
        "prune {run} --train {rows} --out {tmp}/out",
        ("is a pruned run with thresholds of its own", "give a dense model"),
    ),
]
