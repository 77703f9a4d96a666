"""The experiment of lengths: on tiny data through the command line, and its committed records against the paper."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli import tiny
from thresher.evaluation.lengths import length_statistics
from thresher.experiments import lengths
from thresher.experiments.runner import RECORDS, in_order, read_config, read_records

ROOT = Path(__file__).parents[2] / "experiments"
CONFIG = """
tokenizers = ["tiny"]
longest = 8
[[tasks]]
task = "sst2"
split = "validation"
name = "SST-2"
bins = 3
train = [7, 9, 10]
eval = [7, 9, 10]
kl = 0.0
"""


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    """An experiments folder, models and data that `reproduce lengths` can run on."""
    experiment, data = tmp_path / "experiments" / "lengths", tmp_path / "data" / "sst2"
    experiment.mkdir(parents=True)
    data.mkdir(parents=True)
    (experiment / "config.toml").write_text(CONFIG, encoding="utf-8")
    (experiment / "README.md").write_text("# Lengths\n\n<!-- tiny -->\n<!-- end -->\n", encoding="utf-8")
    tiny.tokenizer().save_pretrained(tmp_path / "models" / "tiny")
    rows = [{"sentence": text, "label": int(label == "positive")} for text, label in tiny.sentences(60)]
    tiny.write_rows(data / "train.jsonl", rows[:40])
    tiny.write_rows(data / "validation.jsonl", rows[40:])
    return {
        "folder": tmp_path / "experiments",
        "models": tmp_path / "models",
        "data": tmp_path / "data",
        "work": tmp_path / "work",
    }


CALL = "reproduce lengths --folder {folder} --models {models} --data {data} --work {work}"


def test_through_the_command_line(places: dict[str, Path]) -> None:
    said = tiny.succeeds(CALL, **places)
    assert "rows: 1 measured now, 1 recorded, 0 left" in said.out
    folder = places["folder"] / "lengths"
    (row,) = read_records(folder / RECORDS)
    assert row["rows"] == {"train": 40, "eval": 20} and sum(row["counts"]["train"]) == 40
    assert row["command"] == "thresher reproduce lengths --models models --data data"
    assert str(places["data"]) not in json.dumps(row)
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert "| SST-2 | 40 of 67,349 / 20 of 872 |" in page
    pictures = [(folder / name).read_bytes() for name in ("lengths.svg", "lengths.png")]
    again = tiny.succeeds("reproduce lengths --folder {folder} --draw", **places)
    assert "measured" not in again.out
    assert pictures == [(folder / name).read_bytes() for name in ("lengths.svg", "lengths.png")]
    assert (
        "rows: 0 measured now, 1 recorded"
        in tiny.succeeds("reproduce lengths --folder {folder} --work {work}", **places).out
    )


@pytest.mark.parametrize(
    ("call", "says", "code"),
    [
        ("reproduce soup", "unknown experiment 'soup'", 2),
        ("reproduce lengths --folder {data}", "config.toml does not exist", 1),
        ("reproduce lengths --folder {folder} --draw", "has no rows yet", 2),
        ("reproduce lengths --folder {folder} --work {work} --models {models}", "--data DIR", 2),
        ("reproduce lengths --folder {folder} --work {work} --data {data}", "--models DIR", 2),
        ("reproduce lengths --folder {folder} --minutes 0", "minutes = 0", 2),
    ],
)
def test_bad_calls(call: str, says: str, code: int, places: dict[str, Path]) -> None:
    done = tiny.thresher(call, **places)
    assert done.code == code and says in done.err and len(done.err.splitlines()) == 1
    assert not (places["folder"] / "lengths" / RECORDS).exists()


def test_rows_that_fail_are_named_and_end_in_an_error(places: dict[str, Path]) -> None:
    (places["data"] / "sst2" / "train.jsonl").write_text("no rows here\n", encoding="utf-8")
    done = tiny.thresher(CALL, **places)
    assert done.code == 1 and ": failed. " in done.out and "train.jsonl" in done.out
    assert "1 of 1 rows that are left failed" in done.err and len(done.err.splitlines()) == 1


def test_an_interruption_says_how_to_go_on(places: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(lengths, "measure", interrupted)
    done = tiny.thresher(CALL, **places)
    assert done.code == 1 and "has what was measured, and the same call goes on" in done.err


def committed() -> list[lengths.Row]:
    config = read_config(ROOT / "lengths")
    return in_order(read_records(ROOT / "lengths" / RECORDS), lengths, config)  # type: ignore[arg-type]


def test_the_paper_s_numbers_come_out_where_all_rows_are_at_hand() -> None:
    config = read_config(ROOT / "lengths")
    assert len(committed()) == len(lengths.keys(config))
    rows = {row["task"]: row for row in committed() if row["tokenizer"] == "granite-30m"}
    for task in ("sst2", "stsb", "mrpc", "rte"):
        assert lengths.verdict(rows[task], lengths._asked(rows[task], config)) == "as published", task


@pytest.mark.parametrize("row", committed(), ids=lambda row: f"{row['tokenizer']}-{row['task']}-{row['split']}")
def test_committed_statistics_follow_from_the_committed_counts(row: lengths.Row) -> None:
    train, evaluated = (np.repeat(np.arange(len(c)), c).tolist() for c in (row["counts"][s] for s in ("train", "eval")))
    assert (len(train), len(evaluated)) == (row["rows"]["train"], row["rows"]["eval"])
    found = length_statistics(train, evaluated, bins=row["bins"], longest=row["longest"])
    assert list(found.train_quartiles) == row["train_quartiles"] and list(found.eval_quartiles) == row["eval_quartiles"]
    assert found.kl == pytest.approx(row["kl"])


def test_rows_of_another_tokenizer_alone_give_a_table_and_no_figure(tmp_path: Path) -> None:
    config = read_config(ROOT / "lengths")
    rows = [row for row in read_records(ROOT / "lengths" / RECORDS) if row["tokenizer"] != config["tokenizers"][0]]
    marks = "".join(f"<!-- {name} -->\n<!-- end -->\n" for name in config["tokenizers"])
    (tmp_path / "README.md").write_text(marks, encoding="utf-8")
    assert lengths.publish(rows, tmp_path, config) == [tmp_path / "README.md"]
    assert "| RTE |" in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_the_table_is_that_of_the_records() -> None:
    config = read_config(ROOT / "lengths")
    page = (ROOT / "lengths" / "README.md").read_text(encoding="utf-8")
    for name in config["tokenizers"]:
        assert lengths.table([row for row in committed() if row["tokenizer"] == name], config) in page
