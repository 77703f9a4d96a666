"""Names in news: F1 of dense and pruned taggers, in texts of one sentence and of many."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from thresher.experiments.experiment import Key, Row, Setting
from thresher.experiments.ner_rows import folder_of, mean_words
from thresher.experiments.of_tokens import CONTROL, controls, drops, measure_run, method_keys
from thresher.experiments.publish import markdown_table, write_between_marks
from thresher.experiments.table1 import check

__all__ = ["KEY", "check", "folders", "keys", "measure", "publish"]

KEY = ("task", "model", "sentences", "method", "target", "seed")


def keys(config: dict[str, Any]) -> list[Key]:
    return [
        key
        for model in config["models"]
        for sentences in config["sentences"]
        for key in method_keys(config, task="conll2003", model=model, sentences=sentences)
    ]


def folders(key: Key, config: dict[str, Any]) -> list[str]:
    return [f"{folder_of(Path(), key['sentences'])}/{key['task']}"]


def measure(key: Key, setting: Setting) -> Row | None:
    """A run of its own for each length of text: the folder of its rows says which."""
    sentences = key["sentences"]
    folder = folder_of(setting.data_folder(), sentences)
    own = {name: value for name, value in key.items() if name != "sentences"}
    words = ["--task", key["task"], "--data", str(folder)]
    found = measure_run(
        own, replace(setting, config=settings_for(sentences, setting.config)), rows=words, name=folder.name
    )
    return None if found is None else {**found, "words": round(mean_words(setting.data_folder(), sentences), 1)}


def settings_for(sentences: int, config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with the batch of texts of this length."""
    return {**config, "train": {**config["train"], "batch_size": config["batch_sizes"][str(sentences)]}}


def publish(rows: Sequence[Row], folder: Path, config: dict[str, Any]) -> list[Path]:
    page = folder / "README.md"
    write_between_marks(page, "means", means(rows))
    write_between_marks(page, "table", table(rows))
    return [page]


def means(rows: Sequence[Row]) -> str:
    """A line for each length, method and cost: the mean of its seeds, against dense and against the control."""
    lines = []
    kinds = dict.fromkeys((row["model"], row["sentences"], row["method"], row["target"]) for row in rows)
    for model, sentences, method, target in kinds:
        same = [row for row in rows if (row["model"], row["sentences"]) == (model, sentences)]
        own = [row for row in same if (row["method"], row["target"]) == (method, target)]
        dense, pruned = (100 * mean(row[f"{version}_f1"] for row in own) for version in ("dense", "pruned"))
        trained = controls(same)
        beside = [100 * (row["pruned_f1"] - trained[row["seed"]]["pruned_f1"]) for row in own if row["seed"] in trained]
        against = f"{mean(beside):+.2f}" if beside and method != CONTROL else ""
        fewer = f"{mean(1 / row['relative_flops'] for row in own):.2f}x"
        about = [model, f"{own[0]['words']:.0f}", method, str(len(own)), fewer]
        lines.append([*about, f"{dense:.2f}", f"{pruned:.2f}", f"{pruned - dense:+.2f}", against])
    names = ["model", "words a text", "method", "seeds", "fewer FLOPs", "dense F1", "pruned F1", "gained"]
    return markdown_table([*names, "against the control"], lines)


def table(rows: Sequence[Row]) -> str:
    """Every run."""
    lines = []
    for row in rows:
        same = [one for one in rows if (one["model"], one["sentences"]) == (row["model"], row["sentences"])]
        control = None if row["method"] == CONTROL else controls(same).get(row["seed"])
        about = [row["model"], f"{row['words']:.0f}", row["method"], str(row["seed"])]
        lines.append([*about, f"{1 / row['relative_flops']:.2f}x", *drops(row, control, ("f1",))])
    return markdown_table(
        ["model", "words a text", "method", "seed", "fewer FLOPs", "F1", "F1 against the control"], lines
    )
