"""Folders that are damaged, or something else: one clear error each, before anything is loaded."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.models.saved import edit, refused
from thresher.engine.engine import Engine
from thresher.errors import CheckpointError, ModelError
from thresher.models import checkpoint
from thresher.models.checkpoint import FORMAT_VERSION, MANIFEST, load, load_dense, read_manifest
from thresher.records import thresher_version

HERE = thresher_version()

# --- damaged manifests -----------------------------------------------------------------------------------------------


def test_newer_format(saved: Path) -> None:
    edit(saved, format_version=FORMAT_VERSION + 1)
    with refused(CheckpointError, MANIFEST, "has format version 3, newer than 2, the newest known here; upgrade"):
        load(saved)


@pytest.mark.parametrize("version", [None, "1", 0, -3, 1.5])
def test_no_format(saved: Path, version: Any) -> None:
    edit(saved, format_version=version)
    with refused(CheckpointError, MANIFEST, "has no format_version; it was not written by thresher"):
        load(saved)


@pytest.mark.parametrize("text", ["[1, 2]", '"thresher"', "3", "null"])
def test_manifest_of_another_shape(saved: Path, text: str) -> None:
    (saved / MANIFEST).write_text(text)
    with refused(CheckpointError, MANIFEST, "has no format_version"):
        load(saved)


@pytest.mark.parametrize("damage", [b"", b"{", b'{"format_version": 1,}', b"\xff\xfe\x00", b"not json"])
def test_damaged_json(saved: Path, damage: bytes) -> None:
    (saved / MANIFEST).write_bytes(damage)
    with refused(CheckpointError, MANIFEST, "is not valid JSON"):
        load(saved)


@pytest.mark.parametrize(
    ("name", "value"),
    [("model_type", None), ("model_type", 3), ("layers", "4"), ("thresholds", None), ("thresholds", {}), ("prune", [])],
)
def test_missing_and_mistyped_entries(saved: Path, name: str, value: Any) -> None:
    edit(saved, **{name: value})
    with refused(CheckpointError, MANIFEST, f"has no valid '{name}'; the file is damaged"):
        load(saved)


def test_number_of_thresholds_against_the_manifest(saved: Path) -> None:
    edit(saved, thresholds=[1.0, 1.0, 1.0])
    with refused(CheckpointError, MANIFEST, "has 3 thresholds for 4 layers"):
        load(saved)


def test_number_of_thresholds_against_the_model(saved: Path) -> None:
    edit(saved, thresholds=[1.0] * 6, layers=6)
    with refused(CheckpointError, MANIFEST, "6 thresholds given for a model with 4 layers"):
        load(saved)


@pytest.mark.parametrize("value", [math.nan, "nan", "high", [], {}])
def test_threshold_that_is_no_number(saved: Path, value: Any) -> None:
    edit(saved, thresholds=[1.0, value, 1.0, 1.0])
    with refused(CheckpointError, MANIFEST, "has a threshold that is not a number:"):
        load(saved)


@pytest.mark.parametrize(
    ("prune", "text"),
    [
        ({"scale": "absolute"}, "scale = 'absolute' is not one of: relative, paper"),
        ({"speed": 1}, "unknown setting 'speed', as a newer version than"),
        ({"protect": []}, "protect is empty"),
    ],
)
def test_settings_that_break_their_rule(saved: Path, prune: dict[str, Any], text: str) -> None:
    edit(saved, prune=prune)
    with refused(CheckpointError, MANIFEST, text):
        load(saved)


@pytest.mark.parametrize(
    ("provenance", "said"),
    [
        ({"versions": {"thresher": "9.1.0"}}, " writes it (the run was made by '9.1.0'); upgrade thresher"),
        ({"versions": ["9.1.0"]}, " writes it; upgrade thresher"),
        ({}, " writes it; upgrade thresher"),
    ],
)
def test_a_setting_of_a_newer_version(saved: Path, provenance: Any, said: str) -> None:
    settings = json.loads((saved / MANIFEST).read_text())["prune"]
    edit(saved, prune={**settings, "later": 2}, provenance=provenance)
    with refused(CheckpointError, MANIFEST, f"has the unknown setting 'later', as a newer version than {HERE}{said}"):
        load(saved)


def test_model_of_another_type(saved: Path) -> None:
    edit(saved, model_type="roberta")
    with refused(CheckpointError, MANIFEST, "is for model type 'roberta', but the folder holds a 'bert'"):
        load(saved)


def test_manifest_is_checked_before_weights_are_read(saved: Path) -> None:
    (saved / "model.safetensors").unlink()
    edit(saved, thresholds=[1.0])
    with refused(CheckpointError, "has 1 thresholds for 4 layers"):
        load(saved)


# --- folders that are something else ---------------------------------------------------------------------------------


def test_folder_without_manifest(saved: Path) -> None:
    (saved / MANIFEST).unlink()
    with refused(CheckpointError, str(saved), "is not a thresher run: it has no thresher.json; make one with: thresh"):
        load(saved)
    dense, _ = load_dense(saved)
    assert dense.config.model_type == "bert"


def test_no_folder_at_all(tmp_path: Path) -> None:
    with refused(CheckpointError, "is not a thresher run: it has no thresher.json"):
        load(tmp_path / "absent")
    with refused(CheckpointError, "is not a thresher run"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("name", ["/absent/model", "./absent", "~/absent-model-folder", "a/b/c", "absent/"])
def test_model_folder_that_does_not_exist(name: str) -> None:
    with refused(ModelError, f"model folder {Path(name).expanduser() if name[0] == '~' else name} does not exist"):
        load_dense(name)


def test_a_name_below_a_folder_that_is_here_is_no_hub_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for opener in (load_dense, Engine.load, checkpoint.has_head):
        with refused(ModelError, "model folder runs/absent does not exist; runs is a folder here"):
            opener("runs/absent")


@pytest.mark.parametrize("name", ["absent-model", "somebody/absent-model"])
def test_hub_name_that_cannot_be_reached(name: str) -> None:
    """Tests are offline, so any hub name will do."""
    with refused(ModelError, f"cannot read a model configuration from '{name}': ", f"; there is no folder {name} eit"):
        load_dense(name)


def test_folder_without_config(saved: Path) -> None:
    (saved / "config.json").unlink()
    for opener in (load, load_dense):
        with refused(ModelError, str(saved), "is not a Hugging Face model folder: it has no config.json"):
            opener(saved)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"model_type": "flan-9000"}'])
def test_damaged_config(saved: Path, text: str) -> None:
    (saved / "config.json").write_text(text)
    with refused(ModelError, f"cannot read a model configuration from '{saved}': "):
        load_dense(saved)


@pytest.mark.parametrize("family", ["deberta", "gpt2", "eurobert", "t5"])
def test_unsupported_family_is_refused_before_anything_is_loaded(tmp_path: Path, family: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    with refused(ModelError, f"model family '{family}' is not supported; supported: bert, roberta, "):
        load_dense(tmp_path)


def test_folder_without_weights(saved: Path) -> None:
    (saved / "model.safetensors").unlink()
    with refused(ModelError, f"cannot load model and tokenizer from '{saved}': "):
        load(saved)


@pytest.mark.parametrize("size", [0, 100, 5000])
def test_truncated_weights(saved: Path, size: int) -> None:
    file = saved / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    with refused(ModelError, f"cannot load model and tokenizer from '{saved}': "):
        load(saved)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite(saved: Path, value: float) -> None:
    file = saved / "model.safetensors"
    weights = load_file(file)
    weights["bert.encoder.layer.1.output.dense.weight"][3, 2] = value
    save_file(weights, file, metadata={"format": "pt"})
    with refused(
        ModelError, f"weight 'bert.encoder.layer.1.output.dense.weight' of '{saved}' contains NaN or infinity"
    ):
        load(saved)


def test_new_head_for_another_number_of_labels(saved: Path) -> None:
    """The folder's head has three outputs; the encoder's weights must survive the change of head."""
    kept, _ = load_dense(saved)
    changed, _ = load_dense(saved, num_labels=5)
    assert kept.classifier.out_features == 3 and changed.classifier.out_features == 5
    for name, value in kept.bert.state_dict().items():
        assert torch.equal(changed.bert.state_dict()[name], value)
    assert checkpoint.has_head(saved, 3) and not checkpoint.has_head(saved, 5)
