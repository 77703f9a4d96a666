"""A method is named once: the trainer finds its class, and a score that was left open follows it."""

import json
from pathlib import Path

import pytest

import thresher
from tests.training.tiny import keyword_task, quick, stock_model, tiny_tokenizer
from thresher.config import AUTO, PruneConfig
from thresher.methods import METHODS, TABLE
from thresher.training.registry import method_named
from thresher.training.trainer import Trainer

LAYERS = 6  # three of them prune in SpAtten's schedule


def trained_with(method: str, config: PruneConfig | None = None) -> Trainer:
    model = stock_model(layers=LAYERS)
    thresher.prune_(model, config)
    settings = quick(method=method, target_flops=0.7, max_steps=1, search_rounds=0)
    return Trainer(model, tiny_tokenizer(), keyword_task(), settings, device="cpu")


@pytest.mark.parametrize("name", METHODS)
def test_the_configuration_names_method_and_score(name: str) -> None:
    trainer = trained_with(name)
    assert type(trainer.method) is method_named(name)
    assert trainer.method.learns == TABLE[name].learns
    assert trainer.gates.config.score == TABLE[name].score == ("value" if name == METHODS[0] else "attention")


@pytest.mark.parametrize("score", ["attention", "value"])
@pytest.mark.parametrize("method", ["thresher", "ltp"])
def test_a_score_that_was_chosen_stays(method: str, score: str) -> None:
    assert trained_with(method, PruneConfig(score=score)).gates.config.score == score


def test_no_gates_have_an_open_score() -> None:
    """The engine and a saved run need to know what tokens are judged by, trained or not."""
    model = stock_model()
    assert PruneConfig().score == AUTO
    thresher.prune_(model)
    gates = thresher.gates_of(model)
    assert gates.config.score == "attention" and gates.config == PruneConfig(score="attention", rejoin=0)
    gates.settle("thresher")
    gates.settle("ltp")
    assert gates.config.score == "value", "settled once"
    assert PruneConfig(protect=("first",)).for_method("thresher") == PruneConfig(score="value")


def test_a_saved_run_has_the_score_and_an_old_one_keeps_its_own(tmp_path: Path) -> None:
    trainer = trained_with("thresher")
    trainer.fit()
    thresher.save(trainer.model, tiny_tokenizer(), tmp_path / "run")
    file = tmp_path / "run" / "thresher.json"
    manifest = json.loads(file.read_text(encoding="utf-8"))
    assert manifest["prune"]["score"] == "value"
    del manifest["prune"]["score"]  # as runs were written when there was one score only
    file.write_text(json.dumps(manifest), encoding="utf-8")
    gates = thresher.gates_of(thresher.load(tmp_path / "run").model)
    assert gates.config.score == "attention"
    gates.settle("thresher")
    assert gates.config.score == "attention", "training a run further does not change what it judges by"
