import gzip
import json
import lzma
import sys
from pathlib import Path
from statistics import quantiles
from types import SimpleNamespace
from typing import Any

import pytest

from thresher.errors import DataError
from thresher.tasks import load_task
from thresher.tasks.glue import GLUE_TASKS, PUBLISHED_ROWS, load_glue
from thresher.tasks.splits import fingerprint


def rows(name: str, count: int, first: int = 0) -> list[dict[str, Any]]:
    spec = GLUE_TASKS[name]
    columns = [column for column in (spec.text_column, spec.pair_column) if column]
    return [
        {
            **{column: f"{column} {i}" for column in columns},
            "label": i / 10 % 5 if spec.regression else i % spec.num_labels,
        }
        for i in range(first, first + count)
    ]


def write(path: Path, data: list[dict[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
    path.write_bytes(pack("".join(json.dumps(row) + "\n" for row in data).encode()))


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".jsonl.xz"])
@pytest.mark.parametrize("name", [name for name in GLUE_TASKS if name != "mnli"])
def test_folder(tmp_path: Path, name: str, ending: str) -> None:
    write(tmp_path / name / f"train_part{ending}", rows(name, 40))
    write(tmp_path / name / f"validation{ending}", rows(name, 6, first=100))
    task = load_task(name, data=tmp_path)
    assert task.spec is GLUE_TASKS[name]
    assert (len(task.train), len(task.selection), len(task.test["validation"])) == (36, 4, 6)
    assert f"train 40 of {PUBLISHED_ROWS[name]['train']:,} rows (partial)" in task.source
    assert (task.train[0].pair is None) == (name == "sst2")
    assert isinstance(task.train[0].label, float if name == "stsb" else int)


def test_mnli_has_two_test_splits(tmp_path: Path) -> None:
    write(tmp_path / "mnli" / "train.jsonl", rows("mnli", 40))
    write(tmp_path / "mnli" / "validation_matched.jsonl", rows("mnli", 3, first=100))
    with pytest.raises(DataError, match=r"mnli has no file validation_mismatched\*.jsonl"):
        load_glue("mnli", tmp_path)
    write(tmp_path / "mnli" / "validation_mismatched_sample.jsonl.xz", rows("mnli", 5, first=200))
    assert {name: len(split) for name, split in load_glue("mnli", tmp_path).test.items()} == {
        "matched": 3,
        "mismatched": 5,
    }


def test_only_qqp_may_lack_validation_rows(tmp_path: Path) -> None:
    for name in ("qqp", "sst2"):
        write(tmp_path / name / "train.jsonl", rows(name, 100))
    task = load_glue("qqp", tmp_path)
    assert (len(task.train), len(task.selection), len(task.test["held_out"])) == (81, 9, 10)
    assert "no validation rows, so 10 training rows are held out by hash as test" in task.source
    with pytest.raises(DataError, match=r"sst2 has no file validation\*.jsonl"):
        load_glue("sst2", tmp_path)


def test_missing_and_ambiguous_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="unknown task 'cola'; the GLUE tasks are: mnli, .*, stsb"):
        load_glue("cola", tmp_path)
    with pytest.raises(DataError, match=r"has no folder 'sst2'; it must hold sst2/train\*.jsonl"):
        load_glue("sst2", tmp_path)
    (tmp_path / "sst2").mkdir()
    with pytest.raises(DataError, match=r"has no file train\*.jsonl"):
        load_glue("sst2", tmp_path)
    for ending in ("train.jsonl", "train_part.jsonl.gz"):
        write(tmp_path / "sst2" / ending, rows("sst2", 3))
    with pytest.raises(DataError, match="more than one train file: train.jsonl, train_part.jsonl.gz; keep one"):
        load_glue("sst2", tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("sst2", {"label": -1}, r"train.jsonl, row 3 \(line 3\): label -1 must be 0 to 1 \(negative, positive\)"),
        ("sst2", {"label": 0.5}, "label 0.5 must be 0 to 1"),
        ("sst2", {"label": "1"}, "label '1' must be 0 to 1"),
        ("sst2", {"label": None}, "label None must be"),
        ("sst2", {"sentence": None}, r"row 3 \(line 3\): 'sentence' is of type NoneType; it must be text"),
        ("stsb", {"label": float("nan")}, "label nan must be a number from 0 to 5"),
        ("stsb", {"label": 5.1}, "label 5.1 must be a number from 0 to 5"),
    ],
)
def test_bad_rows(tmp_path: Path, name: str, change: dict[str, Any], message: str) -> None:
    data = rows(name, 10)
    data[2].update(change)
    write(tmp_path / name / "train.jsonl", data)
    write(tmp_path / name / "validation.jsonl", rows(name, 2, first=100))
    with pytest.raises(DataError, match=message):
        load_glue(name, tmp_path)


def test_wrong_columns_and_too_few_rows(tmp_path: Path) -> None:
    write(tmp_path / "rte" / "validation.jsonl", rows("rte", 2, first=100))
    write(tmp_path / "rte" / "train.jsonl", rows("sst2", 5))
    with pytest.raises(DataError, match="has no column 'sentence1'; available columns: 'sentence', 'label'"):
        load_glue("rte", tmp_path)
    write(tmp_path / "rte" / "train.jsonl", rows("rte", 1))
    with pytest.raises(DataError, match="too few different rows to split"):
        load_glue("rte", tmp_path)


def test_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(repository: str, name: str) -> dict[str, list[dict[str, Any]]]:
        asked.append((repository, name))
        return {"train": rows("sst2", 40), "validation": rows("sst2", 5, first=100), "test": []}

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    task = load_task("sst2", data=None)
    assert asked == [("nyu-mll/glue", "sst2")]
    assert (len(task.train), len(task.selection), len(task.test["validation"])) == (36, 4, 5)
    assert task.source.startswith("GLUE sst2 from the hub (nyu-mll/glue): train 40 of 67,349 rows")


def test_hub_missing_or_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*names: str) -> None:
        raise ConnectionError("no route\nto host")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(
        DataError, match=r"cannot be loaded from the hub \(no route\).*give --data DIR, in Python data=DIR"
    ) as caught:
        load_glue("sst2", None)
    assert "\n" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "datasets", None)
    needed = r'needs the package datasets; run: pip install "thresher\[hub\]", or give --data DIR, in Python data=DIR'
    with pytest.raises(DataError, match=needed):
        load_glue("sst2", None)


def test_one_row_is_one_row(tmp_path: Path) -> None:
    write(tmp_path / "qqp" / "train.jsonl", rows("qqp", 5))
    source = load_task("qqp", data=tmp_path).source
    assert source.endswith("so 1 training row is held out by hash as test; 1 training row for selection")


@pytest.mark.parametrize(
    ("name", "train", "selection", "validation"),
    [("sst2", 67_349, 1_031, 872), ("mrpc", 3_668, 367, 408), ("stsb", 5_749, 574, 1_500), ("rte", 2_490, 249, 277)],
)
def test_real_rows(real_data: Path, name: str, train: int, selection: int, validation: int) -> None:
    if not (real_data / name).is_dir():
        pytest.skip(f"{real_data} has no {name}")
    task = load_task(name, data=real_data)
    assert (len(task.train + task.selection + task.left_out), len(task.selection)) == (train, selection)
    assert {split: len(found) for split, found in task.test.items()} == {"validation": validation}
    held = {fingerprint(row) for row in task.selection}
    assert held.isdisjoint(map(fingerprint, task.train)) and held.isdisjoint(map(fingerprint, task.test["validation"]))
    assert "partial" not in task.source


def test_sst2_is_selected_on_sentences_like_those_it_is_tested_on(real_data: Path) -> None:
    """Rows held out by chance have 9 words on average, validation rows 19.5."""
    if not (real_data / "sst2").is_dir():
        pytest.skip(f"{real_data} has no sst2")
    task = load_task("sst2", data=real_data)
    deciles = [
        quantiles([len(row.text.split()) for row in rows], n=10) for rows in (task.selection, task.test["validation"])
    ]
    assert max(abs(ours - theirs) for ours, theirs in zip(*deciles, strict=True)) <= 2
    assert len(task.left_out) == 7_158 and "7,158 rows left out as pieces of these" in task.source
