"""The benchmarks of families, tried on tiny shapes: what fails is a row, and the page is drawn from rows."""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from thresher.engine.backends.linear import check_int8
from thresher.errors import ConfigError

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
ENGINES = ["thresher dense", "thresher pruned", "unpadded, plain torch", "stock, padded", "disentangled-flash"]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    import families  # type: ignore[import-not-found]  # from benchmarks/, see conftest.py

    monkeypatch.setattr(families, "WORDS", 60)
    monkeypatch.setattr(families, "LENGTHS", {"qnli": (6, 2, 4, 9)})
    deberta = ("deberta-v2", {**TINY, **families.DEBERTA})
    shapes = {"roberta": ("roberta", TINY), "deberta-v3": deberta, "modernbert": ("none such", {})}
    monkeypatch.setattr(families, "SHAPES", shapes)
    return families


def recorded(script: Any, out: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> list[dict[str, Any]]:
    words = ["families.py", "--texts", "3", "--rounds", "1", "--dtype", "fp32", "--out", str(out), *more]
    monkeypatch.setattr(sys, "argv", words)
    script.main()
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def test_what_fails_is_a_row_and_the_others_go_on(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = recorded(script, tmp_path / "rows.jsonl", monkeypatch, "--shapes", "modernbert,roberta,deberta-v3")
    unknown, *measured = rows
    assert unknown["engine"] == "all" and "none such" in unknown["refused"]
    assert [row["engine"] for row in measured] == [*ENGINES[:4], *ENGINES]
    refused = {row["engine"]: row["refused"] for row in measured if "refused" in row}
    assert "disentangled positions" in refused["unpadded, plain torch"]
    assert "computes on GPUs alone" in refused["disentangled-flash"]
    assert all(row["texts_per_second"] > 0 for row in measured if "refused" not in row)

    import families_page  # type: ignore[import-not-found]

    table = families_page.speed(rows)
    assert "RoBERTa-base" in table and "disentangled-flash" not in table and "100.0%" in table
    assert "- DeBERTa-v3-base, unpadded, plain torch: ModelError: " in families_page.refusals(rows)


def test_a_shape_that_is_not_there(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        recorded(script, tmp_path / "rows.jsonl", monkeypatch, "--shapes", "bart")
    assert "--shapes bart is not known; there are: roberta, deberta-v3, modernbert" in capsys.readouterr().err


def dtype_with_scales() -> str:
    """int8-static goes the way of all others, and is given scales besides."""
    try:
        check_int8()
    except ConfigError:
        return "fp32"
    return "int8-static"


@pytest.mark.slow
def test_the_same_sources_before_and_after(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old ones as an archive leaves them, with their commit in them."""
    import before_after  # type: ignore[import-not-found]

    dtype = dtype_with_scales()
    old, out = tmp_path / "src", tmp_path / "rows.jsonl"
    shutil.copytree(before_after.SOURCES / "thresher", old / "thresher", ignore=shutil.ignore_patterns("__pycache__"))
    records = old / "thresher" / "records.py"
    text = records.read_text(encoding="utf-8")
    assert "$Format:%H$" in text or re.search(r'ARCHIVED = "[0-9a-f]{40}"', text)
    records.write_text(re.sub(r'ARCHIVED = ".*?"', f'ARCHIVED = "{40 * "e"}"', text), encoding="utf-8")
    words = ["before_after.py", "--old", str(old), "--turns", "2", "--batches", "2", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", [*words, "--dtype", dtype, "--lengths", "sst2,qnli"])
    before_after.main()
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row["engine"] for row in rows] == ["thresher dense"] * 2 + ["thresher pruned"] * 2
    assert [row["lengths"] for row in rows] == ["sst2", "qnli"] * 2
    assert all(row["old_commit"] == 12 * "e" and row["dtype"] == dtype for row in rows)
    assert all(row["old_ms"] > 0 and row["new_ms"] > 0 and row["speedup"] > 0 for row in rows)
