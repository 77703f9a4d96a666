"""Saved folders: ordinary ones for everybody else, exact ones for us, and never half of one."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

import thresher
from tests.models.families import FAMILIES, LAYERS, SEPARATOR, logits_of, prune_with_, pruned_model, ragged, tiny_model
from tests.models.saved import contents, edit, refused
from thresher.config import PruneConfig
from thresher.core.heads import Head
from thresher.engine.engine import Engine
from thresher.errors import CheckpointError, ModelError
from thresher.models import checkpoint
from thresher.models.attach import gates_of
from thresher.models.checkpoint import MANIFEST, load, load_dense, replacing_folder, save
from thresher.models.rules import TopCount, TopShare

# --- there and back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_round_trip(name: str, tmp_path: Path, tokenizer: Any) -> None:
    settings = {"scale": "paper", "protect": ("first", "separators"), "separator_id": SEPARATOR, "score_queries": 2}
    thresholds = (-math.inf, 0.09, 1 / 7, math.inf)
    model = pruned_model(name, thresholds, **settings).float()
    inputs = ragged(model)
    wanted = logits_of(model, inputs)
    save(model, tokenizer, tmp_path / "deep" / "run")
    found = load(tmp_path / "deep" / "run")
    assert torch.equal(logits_of(found.model, inputs), wanted)
    assert torch.equal(gates_of(found.model).thresholds, gates_of(model).thresholds)
    assert gates_of(found.model).config == PruneConfig(score="attention", collapse_last=False, rejoin=0, **settings)
    assert gates_of(found.model).mode == "hard" and not found.model.training
    assert found.tokenizer.get_vocab() == tokenizer.get_vocab()


@pytest.mark.parametrize("name", FAMILIES)
def test_opens_everywhere_else_as_a_dense_model(name: str, tmp_path: Path, tokenizer: Any) -> None:
    stock = tiny_model(name).float()
    inputs = ragged(stock)
    wanted = logits_of(stock, inputs)
    prune_with_(stock)
    save(stock, tokenizer, tmp_path / "run")
    with safe_open(tmp_path / "run" / "model.safetensors", framework="pt") as file:
        keys = list(file.keys())
    assert keys and not any("thresher" in key for key in keys)
    dense, report = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run", output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert type(dense) is type(tiny_model(name))
    assert torch.equal(logits_of(dense.eval(), inputs), wanted)
    assert "thresher" not in (tmp_path / "run" / "config.json").read_text()
    assert len(AutoTokenizer.from_pretrained(tmp_path / "run")) == len(tokenizer)


def test_saving_leaves_the_model_as_it_was(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    inputs, before = ragged(model), list(model.state_dict())
    wanted = logits_of(model, inputs)
    save(model, tokenizer, tmp_path / "run")
    assert list(model.state_dict()) == before
    assert torch.equal(logits_of(model, inputs), wanted)


def test_manifest_is_strict_json(saved: Path) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    manifest = json.loads((saved / MANIFEST).read_text(encoding="utf-8"), parse_constant=refuse)
    assert manifest == {
        "format_version": 1,
        "model_type": "bert",
        "head": Head().to_dict(),
        "layers": LAYERS,
        "thresholds": ["-inf", torch.tensor(0.1).item(), torch.tensor(0.9).item(), "inf"],
        "prune": {
            "scale": "relative",
            "protect": ["first"],
            "ramp": "late",
            "final_threshold": 1.0,
            "collapse_last": False,
            "separator_id": None,
        },
        "recipe": "default",
        "quality": {"accuracy": 0.5},
    }
    assert load(saved).manifest == manifest


def test_nothing_is_pickled(saved: Path) -> None:
    names = sorted(contents(saved))
    assert {"config.json", "model.safetensors", MANIFEST, "tokenizer.json"} <= set(names)
    assert {Path(name).suffix for name in names} <= {".json", ".safetensors"}
    for name in names:
        assert json.loads((saved / name).read_bytes()) if name.endswith("json") else load_file(saved / name)
    assert oct(saved.stat().st_mode & 0o777) == "0o755" and oct((saved / MANIFEST).stat().st_mode & 0o777) == "0o644"


def test_dense_weights_beside_the_pruned_ones(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    other = tiny_model("bert", seed=9).float()
    save(model, tokenizer, tmp_path / "run", dense=other.state_dict())
    inputs = ragged(model)
    beside, _ = load_dense(tmp_path / "run" / "dense")
    assert torch.equal(logits_of(beside.eval(), inputs), logits_of(other, inputs))
    assert torch.equal(logits_of(load(tmp_path / "run").model, inputs), logits_of(model, inputs))
    assert not (tmp_path / "run" / "dense" / MANIFEST).exists()


def test_a_model_without_gates_is_not_saved(tmp_path: Path, tokenizer: Any) -> None:
    with refused(ModelError, "the model has no gates; call thresher.prune_"):
        save(tiny_model("bert"), tokenizer, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rule", [TopShare([1.0, 0.8, 1 / 3, 0.1], order="cumulative"), TopCount([9, 5, 3, 2])])
def test_a_rule_is_saved_in_a_format_that_older_versions_refuse(rule: Any, tmp_path: Path, tokenizer: Any) -> None:
    model = pruned_model("bert", (0.0,) * LAYERS).float()
    gates_of(model).rule = rule
    inputs = ragged(model)
    wanted = logits_of(model, inputs)
    save(model, tokenizer, tmp_path / "run")
    found = load(tmp_path / "run")
    assert torch.equal(logits_of(found.model, inputs), wanted)
    assert found.manifest["format_version"] == 2 and found.manifest["rule"] == rule.to_dict()
    loaded = gates_of(found.model).rule
    assert loaded is not None and loaded.to_dict() == rule.to_dict()


def test_a_damaged_rule(saved: Path) -> None:
    edit(saved, rule={"name": "top_count", "counts": [3, 2]})
    with refused(CheckpointError, MANIFEST, "rule 'top_count' needs a list 'counts' of 4 numbers, one per layer"):
        load(saved)


# --- whole or not at all ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("culprit", ["model", "tokenizer", "manifest", "about"])
@pytest.mark.parametrize("before", [True, False])
def test_a_failing_save_changes_nothing(
    tmp_path: Path, model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, culprit: str, before: bool
) -> None:
    target = tmp_path / "run"
    if before:
        save(model, tokenizer, target, about={"seed": 1})
    old = contents(tmp_path)

    def full(*arguments: Any, **options: Any) -> None:
        raise OSError("no space left on device")

    if culprit == "model":
        monkeypatch.setattr(type(model), "save_pretrained", full)
    elif culprit == "tokenizer":
        monkeypatch.setattr(type(tokenizer), "save_pretrained", full)
    elif culprit == "manifest":
        monkeypatch.setattr(checkpoint, "write_json", full)
    about = {"accuracy": math.nan} if culprit == "about" else {"seed": 2}
    with pytest.raises(ValueError if culprit == "about" else OSError):
        save(model, tokenizer, target, about=about)
    assert contents(tmp_path) == old
    assert [path.name for path in tmp_path.iterdir()] == (["run"] if before else [])


def test_saving_again_replaces_the_folder_whole(saved: Path, model: Any, tokenizer: Any) -> None:
    (saved / "left-over.txt").write_text("from another run")
    save(model, tokenizer, saved, about={"seed": 2})
    assert load(saved).manifest["seed"] == 2
    assert not (saved / "left-over.txt").exists()
    assert [path.name for path in saved.parent.iterdir()] == ["run"]


def test_an_interruption_is_cleaned_up(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), replacing_folder(tmp_path / "run") as folder:
        (folder / "half").write_text("")
        assert folder.parent == tmp_path, "renaming works only on one disk"
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("calls", [1, 2])
def test_an_interruption_between_the_renames_keeps_one_of_the_runs(
    saved: Path, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes when a rename has just been done."""
    stock, done = os.replace, 0

    def told(*names: Any) -> None:
        nonlocal done
        stock(*names)
        done += 1
        if done == calls:
            raise KeyboardInterrupt

    before = contents(saved)
    monkeypatch.setattr(checkpoint.os, "replace", told)
    with pytest.raises(KeyboardInterrupt), replacing_folder(saved) as folder:
        (folder / "new").write_text("")
    monkeypatch.undo()
    assert contents(saved) == (before if calls == 1 else {"new": b""})
    assert os.listdir(saved.parent) == ["run"]


def test_what_is_no_run_is_not_replaced(saved: Path, model: Any, tokenizer: Any) -> None:
    """A slip such as save(model, tokenizer, "runs") must not cost all runs."""
    before = contents(saved)
    with refused(CheckpointError, "holds something else than a thresher run"):
        save(model, tokenizer, saved.parent)
    assert contents(saved) == before


def test_others_may_read_a_run(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    """Who trains and who serves may be two users."""
    save(model, tokenizer, tmp_path / "run", dense=model.state_dict())
    for path in (tmp_path / "run", *(tmp_path / "run").rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644), path


def test_a_run_that_is_opened_and_saved_again_knows_its_task_and_recipe(
    model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    """Else it would truncate nowhere. What was measured of the first is not said of the second."""
    known = {"task": {"name": "rows"}, "recipe": {"max_length": 8}, "base_model": "somewhere"}
    save(model, tokenizer, tmp_path / "run", about={**known, "quality": {"test": 1.0}})
    opened = load(tmp_path / "run")
    save(opened.model, opened.tokenizer, tmp_path / "again")
    found = load(tmp_path / "again").manifest
    assert {name: found[name] for name in known} == known and "quality" not in found


def test_a_run_with_a_methods_former_name_opens_with_the_present_one(saved: Path) -> None:
    edit(saved, recipe={"recipe": "paper", "method": "soft", "soft_epochs": 2.0})
    assert load(saved).manifest["recipe"] == {"recipe": "paper", "method": "ltp", "soft_epochs": 2.0}


def test_a_home_folder_is_found_when_saving_too(
    model: Any, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    save(model, tokenizer, "~/run")
    assert load("~/run").manifest == load(tmp_path / "run").manifest


def test_public_names() -> None:
    assert thresher.save is save and thresher.load is load


@pytest.mark.parametrize("lost", ["encoder.layer.1.output.dense.weight", "classifier.weight"])
def test_a_run_with_missing_weights_is_refused(saved: Path, lost: str) -> None:
    """The library would make the weights up and go on."""
    file = saved / "model.safetensors"
    weights = {name: value for name, value in load_file(file).items() if not name.endswith(lost)}
    save_file(weights, file, metadata={"format": "pt"})
    with refused(ModelError, "lacks weights that its configuration asks for", lost):
        load(saved)


def test_an_encoder_is_not_called_damaged_for_its_lack_of_a_head(saved: Path) -> None:
    (saved / MANIFEST).unlink()
    bare = AutoModel.from_pretrained(saved)
    bare.save_pretrained(saved)
    with refused(ModelError, "has no classification head; fine-tune it first, for example with: thresher prune"):
        Engine.load(saved)
    weights = load_file(saved / "model.safetensors")
    weights.pop("encoder.layer.1.output.dense.weight")
    save_file(weights, saved / "model.safetensors", metadata={"format": "pt"})
    with refused(ModelError, "lacks weights that its configuration asks for"):
        Engine.load(saved)


def test_an_encoder_without_a_pooler_gets_a_new_one_with_its_head(saved: Path) -> None:
    AutoModel.from_pretrained(saved, add_pooling_layer=False).save_pretrained(saved)
    assert not any("pooler" in name for name in load_file(saved / "model.safetensors"))
    model, _ = load_dense(saved, num_labels=3)
    assert model.classifier.out_features == 3


def test_a_configuration_of_another_size_is_refused(saved: Path) -> None:
    edit(saved, "config.json", intermediate_size=80)
    with refused(ModelError, "lacks weights that its configuration asks for"):
        load(saved)


def test_a_folder_cannot_replace_a_file(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    with refused(CheckpointError, "is a file; a folder is written there"), replacing_folder(tmp_path / "run"):
        pass
    assert (tmp_path / "run").read_text() == "mine" and len(list(tmp_path.iterdir())) == 1


def test_a_failing_rename_puts_the_old_folder_back(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, rename = contents(saved), os.replace

    def fail_to_replace(source: Any, target: Any) -> None:
        if Path(target) == saved and not str(source).endswith(".old"):
            raise OSError("no space left")
        rename(source, target)

    monkeypatch.setattr(os, "replace", fail_to_replace)
    with pytest.raises(OSError, match="no space left"), replacing_folder(saved) as folder:
        (folder / "new").write_text("new")
    assert contents(saved) == before and len(list(saved.parent.iterdir())) == 1


def test_what_is_said_about_a_run_cannot_change_its_gates(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    save(model, tokenizer, tmp_path / "run", about={"layers": 99, "thresholds": []})
    assert load(tmp_path / "run").manifest["layers"] == LAYERS
