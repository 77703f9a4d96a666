"""Folders that somebody else made: their code is not run, and they take no more memory than their weights fill."""

import ast
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.models.saved import edit, refused
from thresher.engine.engine import Engine
from thresher.errors import CheckpointError, ModelError
from thresher.models import folder as module
from thresher.models.checkpoint import has_head, load, load_dense
from thresher.models.folder import Held, held_by, read_config
from thresher.models.manifest import is_run

SOURCE = Path(module.__file__).parents[1]


@pytest.fixture
def nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader, which would allocate, is not reached; nor do the library's own classes count up labels."""
    import transformers

    def reached(*args: Any, **settings: Any) -> Any:
        raise AssertionError("the loader was called")

    monkeypatch.setattr(transformers.AutoModelForSequenceClassification, "from_pretrained", reached)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", reached)


OPENERS: tuple[Callable[[Path], object], ...] = (load_dense, Engine.load)


@pytest.mark.usefixtures("nothing_is_loaded")
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"vocab_size": 5_000_000}, "has vocab_size = 5,000,000 in its config.json, but its weights allow for "),
        ({"num_hidden_layers": 20_000}, "has num_hidden_layers = 20,000 in its config.json, but its weights allow for"),
        ({"num_labels": 50_000_000, "id2label": None}, "has num_labels = 50,000,000 in its config.json, but"),
        ({"hidden_size": 10**9}, "has hidden_size = 1,000,000,000 in its config.json, but"),
        ({"intermediate_size": 10**12}, "has intermediate_size = 1,000,000,000,000 in its config.json, but"),
        ({"max_position_embeddings": 2**31}, "has max_position_embeddings = 2,147,483,648 in its config.json, but"),
        ({"type_vocab_size": 2**31}, "has type_vocab_size = 2,147,483,648 in its config.json, but"),
        ({"num_hidden_layers": 0}, "has num_hidden_layers = 0 in its config.json; it must be a whole number, at least"),
        ({"num_hidden_layers": -1}, "has num_hidden_layers = -1 in its config.json; it must be a whole number"),
        ({"num_hidden_layers": True}, "has num_hidden_layers = True in its config.json; it must be a whole number"),
        ({"num_hidden_layers": 1.5}, "has num_hidden_layers = 1.5 in its config.json; it must be a whole number"),
        ({"hidden_size": "wide"}, "has hidden_size = 'wide' in its config.json; it must be a whole number"),
        ({"num_labels": [2]}, "has num_labels = [2] in its config.json; it must be a whole number"),
        ({"id2label": {"0": "a", "5": "b"}}, "has 2 names in id2label in its config.json, but none for class 1; "),
        ({"id2label": {}}, "has id2label = {} in its config.json; it must give every class a name"),
        ({"id2label": ["a", "b"]}, "has id2label = ['a', 'b'] in its config.json; it must give every class a name"),
        ({"id2label": 5}, "has id2label = 5 in its config.json; it must give every class a name"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_sizes_are_believed_only_where_weights_have_them(saved: Path, changes: dict[str, Any], says: str) -> None:
    (saved / "thresher.json").unlink()
    edit(saved, "config.json", **changes)
    for opener in (*OPENERS, has_head):
        with refused(ModelError, f"'{saved}' {says}"):
            opener(saved)


@pytest.mark.usefixtures("nothing_is_loaded")
def test_sizes_that_single_weights_have_but_not_all_together(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A width as large as the vocabulary passes for a size, and would take its square."""
    (saved / "thresher.json").unlink()
    largest = held_by(str(saved)).largest  # type: ignore[union-attr]  # it is there
    edit(saved, "config.json", hidden_size=largest - largest % 4, intermediate_size=largest)
    monkeypatch.setattr(module, "SPARE_NUMBERS", 0)
    for opener in OPENERS:
        with refused(ModelError, f"'{saved}' lacks weights: its configuration asks for ", "its files hold "):
            opener(saved)


@pytest.mark.usefixtures("nothing_is_loaded")
def test_a_run_whose_configuration_is_of_another_depth(saved: Path) -> None:
    edit(saved, "config.json", num_hidden_layers=6)
    for opener in (load, Engine.load):
        with refused(CheckpointError, "thresher.json: 4 thresholds given for a model with 6 layers"):
            opener(saved)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"vocab_size": ' + "9" * 5000 + "}", "[]", "7", "\x00"])
def test_a_configuration_that_cannot_be_read(saved: Path, text: str) -> None:
    (saved / "config.json").write_text(text, encoding="utf-8")
    for opener in (load, load_dense, has_head):
        with refused(ModelError, f"cannot read a model configuration from '{saved}': "):
            opener(saved)


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("model_type", ["mine", "bert"])
def test_code_in_a_folder_is_neither_run_nor_asked_for(
    saved: Path, file: str, model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal, and to somebody who answers yes to everything."""
    names = ("AutoConfig", "AutoModelForSequenceClassification")
    auto = {**dict.fromkeys(names, "own.Own"), "AutoTokenizer": ["own.Own", None]}
    (saved / "own.py").write_text(f"open({str(saved / 'ran')!r}, 'w')\nclass Own: pass\n", encoding="utf-8")
    edit(saved, file, auto_map=auto)
    edit(saved, "config.json", model_type=model_type)
    asked: list[str] = []

    def yes(prompt: str = "") -> str:
        asked.append(prompt)
        return "y"

    monkeypatch.setattr("builtins.input", yes)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    for opener in (load_dense, Engine.load, has_head):
        try:
            opener(saved)
        except (ModelError, CheckpointError):
            pass  # refused, or loaded as the stock model it is
    assert not asked and not (saved / "ran").exists()


def test_every_automatic_class_is_told_to_run_no_code() -> None:
    """A call that leaves it open asks on a terminal."""
    calls = [call for file in SOURCE.rglob("*.py") for call in automatic_calls(file)]
    assert len(calls) >= 5
    for place, call in calls:
        given = {word.arg: ast.unparse(word.value) for word in call.keywords}
        assert given.get("trust_remote_code") == "False", f"{place}: give trust_remote_code=False"


def automatic_calls(file: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = ast.unparse(node.func.value)
            if owner.startswith("Auto") and node.func.attr in ("from_pretrained", "from_config"):
                yield f"{file.relative_to(SOURCE)}:{node.lineno}", node


# --- what weights there are, read from headers -----------------------------------------------------------------------


def test_what_files_hold(tmp_path: Path) -> None:
    tensors = {"a": torch.zeros(3, 5), "b": torch.zeros(7)}
    assert held_by(str(tmp_path)) is None
    (tmp_path / "pytorch_model.bin").write_bytes(bytes(100))
    assert held_by(str(tmp_path)) == Held(None, 50, largest=50)
    for name, tensor in tensors.items():
        save_file({name: tensor}, tmp_path / f"part-{name}.safetensors")
    index = {"weight_map": {name: f"part-{name}.safetensors" for name in tensors}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    assert held_by(str(tmp_path)) == Held(2, 22, largest=7)
    save_file({"a": tensors["a"]}, tmp_path / "model.safetensors")
    assert held_by(str(tmp_path)) == Held(1, 15, largest=5)


@pytest.mark.parametrize("named", [None, [], {}, {"a": 5}, {"a": "../part"}, {"a": "absent"}, {"a": "x\x00"}])
def test_an_index_that_names_no_files(tmp_path: Path, named: Any) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": named}), encoding="utf-8")
    with refused(ModelError, "has a model.safetensors.index.json that does not name the files beside it"):
        held_by(str(tmp_path))


def test_sharded_weights_load(saved: Path) -> None:
    weights = load_file(saved / "model.safetensors")
    (saved / "model.safetensors").unlink()
    names = sorted(weights)
    parts = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
    for file, keys in parts.items():
        save_file({key: weights[key] for key in keys}, saved / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {key: file for file, keys in parts.items() for key in keys}}
    (saved / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    assert torch.equal(load(saved).model.state_dict()[names[0]], weights[names[0]])


def test_a_hub_name_is_checked_in_its_cache(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.utils.hub.cached_file", lambda name, file: str(saved / file))
    edit(saved, "config.json", num_hidden_layers=20_000)
    with refused(ModelError, "'somebody/model' has num_hidden_layers = 20,000 in its config.json"):
        read_config("somebody/model")


@pytest.mark.parametrize("name", ["a\x00b", "~no-such-user-here/model", "x" * 5000, "a/" + "x" * 300, "a\udc80"])
def test_names_that_can_be_no_folder(name: str) -> None:
    assert not is_run(name)
    for opener in (load_dense, has_head):
        with refused(ModelError, ""):
            opener(name)
    with refused(CheckpointError, "is not a thresher run"):
        load(name)


def test_a_panic_of_a_loader_is_one_line(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    class PanicException(BaseException):
        pass

    for error, kind in ((PanicException("index out of range"), ModelError), (KeyboardInterrupt(), KeyboardInterrupt)):

        def fails(*args: Any, error: BaseException = error, **settings: Any) -> Any:
            raise error

        monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", fails)
        with pytest.raises(kind):
            load(saved)
