"""benchmarks/measuring.py: memory, record files and generated parts of a page; and the page itself."""

import importlib.util
from pathlib import Path
from typing import Any

import measuring
import pytest
import torch

from thresher.errors import RunError


def test_memory_of_work_is_its_peak_and_not_what_it_leaves() -> None:
    found = measuring.peak_increase_mib(lambda: torch.ones(20 * 2**18).sum())  # 20 MiB, freed at the end
    assert found is None or 19 < found < 30


def test_rows_replace_those_of_the_same_key(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "rows.jsonl"
    measuring.keep_rows(file, [{"a": 1, "b": 1}, {"a": 2, "b": 2}], lambda row: row["a"])
    measuring.keep_rows(file, [{"a": 1, "b": 3}], lambda row: row["a"])
    assert measuring.read_rows(file) == [{"a": 2, "b": 2}, {"a": 1, "b": 3}]


def test_a_figure_shows_the_setting_of_the_newest_row() -> None:
    rows = [{"run": "a", "x": 1}, {"run": "b", "x": 2}, {"run": "a", "x": 3}]
    assert measuring.latest_setting(rows, ["run"]) == [rows[0], rows[2]]


def test_only_the_marked_part_is_written_anew(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text("a\n<!-- one -->\nold\n<!-- end -->\nb\n<!-- two -->\n<!-- end -->\n", encoding="utf-8")
    measuring.write_between_marks("one", "new", file)
    measuring.write_between_marks("two", "too", file)
    expected = "a\n<!-- one -->\nnew\n<!-- end -->\nb\n<!-- two -->\ntoo\n<!-- end -->\n"
    assert file.read_text(encoding="utf-8") == expected
    with pytest.raises(RunError, match="no <!-- three -->"):
        measuring.write_between_marks("three", "new", file)


def test_paths_are_shown_without_the_machine(tmp_path: Path) -> None:
    assert measuring.shown(measuring.HERE.parent / "runs" / "demo") == "runs/demo"
    assert measuring.shown(tmp_path / "elsewhere") == "elsewhere"


MARKS = ("results", "quality", "where_time_goes", "scaling", "topk_vs_threshold", "dial", "agreement", "soak", "bulk")
MARKS += ("reranker", "long", "embedder", "answers", "of_tokens")


def test_the_page_has_a_place_for_every_table() -> None:
    page = (measuring.HERE / "README.md").read_text(encoding="utf-8")
    for mark in MARKS:
        assert page.count(f"<!-- {mark} -->\n") == 1
    assert page.count("<!-- end -->") == len(MARKS)


def loaded(file: str) -> Any:
    """A script of benchmarks/, by its file: pytest knows folders of tests by the same names."""
    spec = importlib.util.spec_from_file_location(Path(file).stem, measuring.HERE / file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("script", ["agreement", "bulk", "dial", "quality", "soak", "where_time_goes"])
def test_tables_are_those_of_the_records(script: str) -> None:
    """Nobody edits them by hand."""
    assert loaded(f"{script}.py").table() in (measuring.HERE / "README.md").read_text(encoding="utf-8")


def test_the_page_on_speed_shows_the_records() -> None:
    results = importlib.import_module("results")
    records = results.latest()
    page = (measuring.HERE / "README.md").read_text(encoding="utf-8")
    assert len(records) >= 2 and all(results.whole_table(record) in page for record in records)
    front = (measuring.HERE.parent / "docs" / "speed.md").read_text(encoding="utf-8")
    assert results.front_table([record for record in records if "mpnet" in record["run"]]) in front


def test_the_gpu_pages_show_their_records() -> None:
    report = loaded("gpu/report.py")
    page = report.PAGE.read_text(encoding="utf-8")
    for mark, made in report.parts().items():
        assert f"<!-- {mark} -->\n{made()}\n<!-- end -->" in page
    assert report.front_table() in (measuring.HERE.parent / "docs" / "speed.md").read_text(encoding="utf-8")


def test_a_part_that_failed_or_crashed_says_so_in_the_table_of_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    report = loaded("gpu/report.py")
    good = {"tool": "pytest", "commit": "1234567890", "passed": 5, "failed": 0, "error": 0, "memory_errors": None}
    given = [
        {**good, "part": "one", "status": 0},
        {**good, "part": "one", "status": 124},
        {**good, "part": "two", "status": 0},
        {**good, "part": "two", "failed": 2, "status": 124},
        {**good, "part": "three", "status": -11},
    ]
    monkeypatch.setattr(report, "read_rows", lambda file: given)
    cells = [line.split(" | ")[3:5] for line in report.checks_table().splitlines()[2:]]
    assert cells == [["5", "0"], ["5", "2"], ["5", "status -11"]]
