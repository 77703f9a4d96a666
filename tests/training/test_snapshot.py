"""Saved states: plain files, whole or not at all, and enough to go on exactly."""

import json
import os
import pickletools
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from tests.training.tiny import gated_model, quick
from thresher.errors import RunError
from thresher.models import checkpoint
from thresher.models.attach import gates_of
from thresher.training import snapshot
from thresher.training.optimizer import make_optimizer
from thresher.training.snapshot import Memory, optimizer_tensors, read_snapshot, restore_optimizer, write_snapshot

INPUTS = {"input_ids": torch.tensor([[2, 5, 9, 10, 3]]), "attention_mask": torch.ones(1, 5, dtype=torch.long)}


def stored(work: Path) -> float:
    groups, about = read_snapshot(work)
    assert about["step"] == groups["model"]["w"].item()
    return float(about["step"])


def write(work: Path, step: int) -> None:
    write_snapshot(work, {"model": {"w": torch.tensor(float(step))}, "best": {}}, {"step": step})


def test_round_trip_keeps_values_types_and_infinities(tmp_path: Path) -> None:
    groups = {
        "model": {"a": torch.tensor([1.5, float("inf")]), "b": torch.arange(3)},
        "optimizer": {"a|step": torch.tensor(7.0)},
        "best": {},
    }
    about = {"config": {"lr": 1e-3, "lambda_": None}, "standing": {"history": [{"score": 0.1 + 0.2}]}}
    write_snapshot(tmp_path / "work", groups, about)
    found, told = read_snapshot(tmp_path / "work")
    assert told == about
    assert found.keys() == groups.keys()
    for name, tensors in groups.items():
        assert found[name].keys() == tensors.keys()
        for key, value in tensors.items():
            assert found[name][key].dtype == value.dtype and torch.equal(found[name][key], value)


def test_tensors_that_share_memory_can_be_saved(tmp_path: Path) -> None:
    shared = torch.arange(6.0)
    write_snapshot(tmp_path, {"model": {"a": shared, "b": shared, "c": shared[2:4]}}, {})
    found, _ = read_snapshot(tmp_path)
    assert torch.equal(found["model"]["b"], shared)
    assert found["model"]["c"].tolist() == [2.0, 3.0]


def test_transposed_tensors_can_be_saved(tmp_path: Path) -> None:
    transposed = torch.arange(6.0).view(2, 3).t()
    write_snapshot(tmp_path, {"model": {"a": transposed}}, {})
    found, _ = read_snapshot(tmp_path)
    assert torch.equal(found["model"]["a"], transposed)


def test_nothing_is_pickled(tmp_path: Path) -> None:
    write(tmp_path, 1)
    files = sorted(path.name for path in (tmp_path / "state").iterdir())
    assert files == ["about.json", "best.safetensors", "model.safetensors"]
    json.loads((tmp_path / "state" / "about.json").read_text(encoding="utf-8"))
    for path in (tmp_path / "state").glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            file.keys()
        with pytest.raises(ValueError):
            list(pickletools.genops(path.read_bytes()))


def test_a_later_state_replaces_the_earlier_and_leaves_nothing_behind(tmp_path: Path) -> None:
    write(tmp_path, 1)
    write(tmp_path, 2)
    assert stored(tmp_path) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize("broken", ["save_file", "write_json"])
def test_a_failure_in_the_middle_keeps_the_earlier_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    write(tmp_path, 1)
    original = getattr(snapshot, broken)

    def fail(*args: Any) -> None:
        original(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(snapshot, broken, fail)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, 2)
    assert stored(tmp_path) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    monkeypatch.undo()
    write(tmp_path, 3)
    assert stored(tmp_path) == 3


@pytest.mark.parametrize("failing", [1, 2])
def test_a_failed_rename_keeps_the_earlier_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
    """The folder is replaced in two renames; neither may be the one after which nothing is readable."""
    write(tmp_path, 1)
    renames: list[int] = []
    rename = os.replace

    def fail(source: Any, target: Any) -> None:
        if Path(source).is_dir():
            renames.append(1)
            if len(renames) == failing:
                raise OSError("no space left on device")
        rename(source, target)

    monkeypatch.setattr(checkpoint.os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        write(tmp_path, 2)
    monkeypatch.undo()
    assert stored(tmp_path) == 1


def test_nothing_to_resume_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=f"nothing to resume in {tmp_path}; start without --resume"):
        read_snapshot(tmp_path)
    (tmp_path / "state").mkdir()
    with pytest.raises(RunError, match="nothing to resume"):
        read_snapshot(tmp_path)


def test_a_restored_optimizer_makes_the_same_next_step(tmp_path: Path) -> None:
    def stepped(model: Any, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(**INPUTS).logits[0, 0].square().backward()
        optimizer.step()

    def start() -> tuple[Any, torch.optim.Optimizer]:
        model = gated_model(dropout=0.0)
        gates_of(model).set_mode("soft")
        return model, make_optimizer(model, quick(), lr=0.01, learn_thresholds=True)

    model, optimizer = start()
    for _ in range(3):
        stepped(model, optimizer)
    tensors = optimizer_tensors(model, optimizer)
    assert "bert.thresher_gates.thresholds|exp_avg" in tensors
    assert not any("word_embeddings" in name for name in tensors)
    write_snapshot(tmp_path, {"model": model.state_dict(), "optimizer": tensors}, {})

    other, fresh = start()
    groups, _ = read_snapshot(tmp_path)
    other.load_state_dict(groups["model"])
    restore_optimizer(other, fresh, groups["optimizer"])
    stepped(model, optimizer)
    stepped(other, fresh)
    ours, theirs = other.state_dict(), model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    # Without the moments the step would be another one.
    forgetful, new = start()
    forgetful.load_state_dict(groups["model"])
    stepped(forgetful, new)
    assert not torch.equal(forgetful.classifier.weight, model.classifier.weight)


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "9" * 5000], ids=["deep", "half", "digits"])
def test_descriptions_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    write_snapshot(tmp_path, {}, {})
    (tmp_path / "state" / "about.json").write_text(text, encoding="utf-8")
    with pytest.raises(RunError, match=r"^the saved state in .* is damaged \(.*; start anew with --overwrite$"):
        read_snapshot(tmp_path)
    for other in ("[]", '{"identity": []}'):
        (tmp_path / "state" / "about.json").write_text(other, encoding="utf-8")
        with pytest.raises(RunError, match=r"is damaged \(about.json is of another kind\); start anew"):
            read_snapshot(tmp_path)
    (tmp_path / "remembered.json").write_text(text, encoding="utf-8")
    with pytest.raises(RunError, match="remembered.json is not valid JSON"):
        Memory(tmp_path, resuming=True, writes=False).recall()
