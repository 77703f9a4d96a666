"""benchmarks/gpu/check.py: what it reads out of pytest's and the sanitizer's words, and that no GPU is no success."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "gpu"))

import check


@pytest.mark.parametrize(
    ("said", "passed", "failed", "error", "memory_errors"),
    [
        ("....\n63 passed, 37 deselected in 140.31s (0:02:20)\n", 63, 0, 0, None),
        ("E 9 failed before\n=== 1 failed, 2 passed, 3 errors in 1.20s ===\n", 2, 1, 3, None),
        ("28 passed, 72 deselected in 18.06s\n========= ERROR SUMMARY: 0 errors\n", 28, 0, 0, 0),
        ("1 passed in 2.0s\n========= ERROR SUMMARY: 5 errors\n", 1, 0, 0, 5),
        ("killed", 0, 0, 0, None),
    ],
)
def test_counts(said: str, passed: int, failed: int, error: int, memory_errors: int | None) -> None:
    found = {"passed": passed, "failed": failed, "error": error, "memory_errors": memory_errors}
    assert check.counts(said) == found


def test_every_kernel_is_in_a_part_and_checked_for_its_memory() -> None:
    """Of the files beside the kernels' cases, those with tests for a GPU; the sanitizer runs what compares with a twin,
    and finds something to run in each of them."""
    files = sorted(Path(check.KERNELS).glob("test_*.py"))
    text = {str(file): file.read_text(encoding="utf-8") for file in files}
    on_gpus = {file for file, words in text.items() if "DEVICES" in words or "mark.gpu" in words}
    parts = [file for part in check.CHECKED for file in check.PARTS[part]]
    assert sorted(parts) == sorted(on_gpus), "each in one part"
    assert len(on_gpus) >= 11 and {Path(file).stem for file in set(text) - on_gpus} == {
        "test_compiling",
        "test_toolchain",
    }
    for file in on_gpus:
        marked = re.findall(r"DEVICES\)\n(?:@.*\n)*def (\w+)", text[file])
        assert any("twin" in name for name in marked), f"{file}: no test of the sanitizer's -k twin runs on a GPU"


def test_every_file_with_tests_for_a_gpu_is_in_a_part() -> None:
    given = {file for places in check.PARTS.values() for file in check.with_gpu_tests(places)}
    assert given == {file for file in check.with_gpu_tests(["tests"]) if file.parent != check.KERNELS} | {
        Path(file) for part in check.CHECKED for file in check.PARTS[part]
    }


def test_a_file_that_a_signal_ends_is_no_success_and_each_has_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside one of the same name in another folder, whose tests pass."""
    places = [tmp_path / name / "test_one.py" for name in ("good", "bad")]
    for place, body in zip(places, ("pass", "os.kill(os.getpid(), 9)"), strict=True):
        place.parent.mkdir()
        place.write_text(f"import os, pytest\n@pytest.mark.gpu\ndef test_it():\n    {body}\n", encoding="utf-8")
    monkeypatch.setattr(check, "PARTS", {"both": [str(place) for place in places]})
    monkeypatch.setattr(check, "CHECKED", ())
    out, logs = tmp_path / "checks.jsonl", tmp_path / "logs"
    monkeypatch.setattr(sys, "argv", ["check.py", "--out", str(out), "--logs", str(logs)])
    with pytest.raises(SystemExit) as end:
        check.main()
    assert end.value.code == 1
    (row,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert (row["passed"], row["status"], row["good"]) == (1, -9, False)
    assert len(list(logs.iterdir())) == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_without_a_gpu_nothing_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "PARTS", {"attention": ["tests/engine/kernels/test_attention.py"]})
    monkeypatch.setattr(check, "CHECKED", ())
    out = tmp_path / "checks.jsonl"
    monkeypatch.setattr(sys, "argv", ["check.py", "--out", str(out), "--logs", str(tmp_path / "logs")])
    with pytest.raises(SystemExit) as end:
        check.main()
    assert end.value.code == 1
    (row,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert row["passed"] == 0 and row["status"] == 0
