"""Where numbers come from, and files that are never half written."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
import torch

from thresher import hardware, records
from thresher.records import commit, provenance, thresher_version, versions, write_json, write_text

# --- files -----------------------------------------------------------------------------------------------------------


def test_json_is_readable_and_complete(tmp_path: Path) -> None:
    file = tmp_path / "new" / "folder" / "summary.json"
    write_json(file, {"name": "Müller", "values": [1, 2.5, None]})
    assert file.read_bytes() == '{\n  "name": "Müller",\n  "values": [\n    1,\n    2.5,\n    null\n  ]\n}\n'.encode()
    assert os.listdir(file.parent) == ["summary.json"]
    assert oct(file.stat().st_mode & 0o777) == "0o644"


@pytest.mark.parametrize("value", [math.nan, math.inf, {"deep": [-math.inf]}, {1, 2}, object()])
def test_what_is_not_json_leaves_the_old_file(tmp_path: Path, value: object) -> None:
    file = tmp_path / "summary.json"
    write_json(file, {"old": True})
    with pytest.raises((ValueError, TypeError)):
        write_json(file, value)
    assert json.loads(file.read_text()) == {"old": True}
    assert os.listdir(tmp_path) == ["summary.json"]


@pytest.mark.parametrize("step", ["chmod", "replace"])
def test_a_failing_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    file = tmp_path / "a.txt"
    write_text(file, "old")

    def fail(*arguments: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(records.os, step, fail)
        with pytest.raises(OSError, match="no space left"):
            write_text(file, "new")
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]
    write_text(file, "new")
    assert file.read_text() == "new"


def test_text_that_cannot_be_encoded_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    write_text(file, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(file, "\ud800")
    assert (file.read_text(), os.listdir(tmp_path)) == ("old", ["a.txt"])


# --- provenance ------------------------------------------------------------------------------------------------------


def test_versions_name_what_decides_the_numbers() -> None:
    found = versions()
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert found["thresher"] == thresher_version()
    assert {"transformers", "tokenizers", "safetensors"} <= set(found)


def test_packages_that_are_absent_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "PACKAGES", ("torch", "no-such-package"))
    assert set(versions()) == {"python", "thresher", "torch"}

    def absent(name: str) -> str:
        raise records.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(records.metadata, "version", absent)
    assert thresher_version() == "source"


def test_provenance_is_complete_and_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/thresher", "prune", "model", "--seed", "3"])
    found = provenance(device="cpu", seed=3)
    assert set(found) == {"created", "command", "device", "versions", "commit", "seed"}
    assert found["command"] == "thresher prune model --seed 3"
    assert found["seed"] == 3
    assert datetime.fromisoformat(found["created"]).utcoffset() is not None
    assert str(os.cpu_count()) in found["device"]
    json.dumps(found, allow_nan=False)


def test_provenance_without_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [""])
    assert provenance(device="cpu", seed=None)["command"] == ""


def test_commit_of_a_source_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a checkout of its own: clean, then changed; and nothing where git is absent or the package is installed."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    source = tmp_path / "src" / "thresher"
    source.mkdir(parents=True)
    (source / "records.py").write_text("# one\n")

    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        return subprocess.run(
            ("git", *identity, *words), cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    monkeypatch.setattr(records, "__file__", str(source / "records.py"))
    head = git("rev-parse", "--short=12", "HEAD").strip()
    assert re.fullmatch("[0-9a-f]{12}", head)
    assert commit() == head
    (source / "records.py").write_text("# two\n")
    assert commit() == head + "+"

    # A package installed inside somebody's repository is not that repository's commit.
    site = tmp_path / "lib" / "thresher"
    site.mkdir(parents=True)
    monkeypatch.setattr(records, "__file__", str(site / "records.py"))
    assert commit() is None

    def absent(*arguments: object, **options: object) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr(records.subprocess, "run", absent)
    assert commit() is None
    monkeypatch.setattr(records, "ARCHIVED", "0123456789abcdef" * 2)
    assert commit() == "0123456789ab"


def test_an_archive_knows_its_commit(tmp_path: Path) -> None:
    """git archive fills the line in; in a checkout it stays as it is."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    source = (Path(records.__file__)).read_text(encoding="utf-8")
    root = Path(records.__file__).parents[2]
    if (root / ".git").exists():  # not where this runs from an archive itself
        assert 'ARCHIVED = "$Format:%H$"' in source
        asked = ("git", "check-attr", "export-subst", "src/thresher/records.py")
        found = subprocess.run(asked, cwd=root, check=True, capture_output=True, text=True).stdout
        assert found.strip().endswith("export-subst: set")
    (tmp_path / "records.py").write_text('ARCHIVED = "$Format:%H$"\n')
    (tmp_path / ".gitattributes").write_text("records.py export-subst\n")

    def git(*words: str) -> bytes:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        return subprocess.run(("git", *identity, *words), cwd=tmp_path, check=True, capture_output=True).stdout

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    packed = git("archive", "HEAD", "records.py")
    assert git("rev-parse", "HEAD").strip() in packed


# --- hardware --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quota", "cores"), [("150000 100000", 2), ("10000 100000", 1), ("900000 100000", 4), ("max 100000", 4), (None, 4)]
)
def test_a_container_has_no_more_cores_than_its_share_of_time(
    quota: str | None, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if quota is not None:
        (tmp_path / "cpu.max").write_text(quota + "\n")
    monkeypatch.setattr(hardware, "CPU_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1, 2, 3}, raising=False)
    assert hardware.usable_cores() == cores


def test_features_are_read_from_the_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "cpu_flags", lambda: frozenset({"avx2", "avx512f", "amx_bf16"}))
    assert hardware.features() == {
        "avx2": True,
        "avx512": True,
        "avx512_bf16": False,
        "avx512_vnni": False,
        "avx_vnni": False,
        "amx_bf16": True,
        "amx_int8": False,
    }
    assert hardware.native_bf16_on_cpu()
    monkeypatch.setattr(hardware, "cpu_flags", lambda: frozenset({"avx2", "avx512f"}))
    assert not hardware.native_bf16_on_cpu()


@pytest.mark.parametrize(
    ("wanted", "device", "native", "precision", "reason"),
    [
        ("fp32", "cuda", True, "fp32", "asked for"),
        ("bf16", "cpu", False, "bf16", "asked for"),
        ("auto", "cpu", True, "bf16", "the processor computes bfloat16 natively"),
        ("auto", "cpu", False, "fp32", "the processor has no native bfloat16"),
        ("auto", "cuda", True, "bf16", "the GPU computes bfloat16 natively"),
        ("auto", "cuda:1", False, "fp32", "the GPU has no bfloat16"),
    ],
)
def test_precision_is_chosen_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, wanted: str, device: str, native: bool, precision: str, reason: str
) -> None:
    monkeypatch.setattr(hardware, "native_bf16_on_cpu", lambda: native)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: native)
    found, why = hardware.choose_precision(wanted, device)
    assert found == precision and why.startswith(reason)


def test_summary_is_json_and_consistent() -> None:
    found = hardware.summary()
    assert found["device"] == ("cuda" if torch.cuda.is_available() else "cpu")
    assert len(found["cuda"]) == torch.cuda.device_count()
    assert found["cores"] == os.cpu_count() and found["cpu"]
    assert found["precision"] in ("fp32", "bf16")
    json.dumps(found)


def test_half_characters_are_written_as_json_escapes(tmp_path: Path) -> None:
    """A command's words may have them, and a run's description is written after hours of work."""
    value = {"command": "prune \udc80 schön"}
    records.write_json(tmp_path / "a.json", value)
    records.append_record(tmp_path / "a.jsonl", value)
    for name in ("a.json", "a.jsonl"):
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert json.loads(text) == value and "schön" in text and "\\udc80" in text
