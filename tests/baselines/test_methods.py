"""Every method through the one trainer: what it costs, what it saves, and that it goes on after an interruption."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import thresher
from tests.baselines.tiny import LAYERS, TARGET, settings, trainer_of
from tests.training.test_resume import Interrupted, Interrupting
from tests.training.tiny import (
    Recorder,
    differing,
    gated_model,
    keyword_task,
    sentence,
    tiny_tokenizer,
    trainer_for,
    value_task,
    weights_of,
)
from thresher.baselines import method_named
from thresher.config import LEARNING_METHODS, METHODS, TrainConfig
from thresher.errors import ConfigError, ModelError
from thresher.models.attach import gates_of, weights_without_gates
from thresher.models.checkpoint import load, save
from thresher.models.predict import predict
from thresher.tasks.encode import encode, padded_batches
from thresher.training.trainer import Trainer

AS_THRESHOLDS = ("thresher", "ltp", "manual", "collapse", "dense")
RANKED = tuple(name for name in METHODS if name not in AS_THRESHOLDS)


def batches() -> Any:
    return padded_batches(encode(tiny_tokenizer(), keyword_task().selection, max_length=32, positions=None), pad_id=0)


@pytest.fixture(scope="module", params=METHODS)
def trained(request: pytest.FixtureRequest) -> tuple[Trainer, Recorder]:
    recorder = Recorder()
    trainer = trainer_of(request.param, progress=recorder, finetune=True)
    trainer.fit()
    return trainer, recorder


def test_names_are_those_of_the_settings() -> None:
    assert [method_named(name).name for name in METHODS] == list(METHODS)
    assert [name for name in METHODS if method_named(name).learns] == list(LEARNING_METHODS)
    with pytest.raises(ConfigError, match="method = 'best' is not one of: thresher, ltp, manual, spatten, lat"):
        method_named("best")


def test_the_cost_is_what_was_asked_for(trained: tuple[Trainer, Recorder]) -> None:
    trainer, _ = trained
    cost = trainer.judge.evaluate(pruned=True)["relative_flops"]
    name = trainer.method.name
    if name == "dense":
        assert cost == 1.0
    elif name in ("collapse", "lat"):  # a layer more or less is a big step; the search takes what is good and fits
        assert TARGET - 0.3 < cost <= TARGET + 0.02
    else:
        assert cost == pytest.approx(TARGET, abs=0.05)


def test_all_methods_train_for_as_long(trained: tuple[Trainer, Recorder]) -> None:
    trainer, recorder = trained
    stages = [name for name, _ in recorder.steps if name in ("soft", "hard")]
    assert len(stages) == 8
    assert ("soft" in stages) == (trainer.method.name in LEARNING_METHODS)
    assert len(recorder.losses("finetune")) == 4


def test_tokens_never_return_and_the_first_one_stays(trained: tuple[Trainer, Recorder]) -> None:
    trainer, _ = trained
    gates = gates_of(trainer.model)
    for _, batch in batches():
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        with torch.inference_mode():
            trainer.model(**inputs)
        assert gates.trace is not None
        for before, after in zip(gates.trace.alive, gates.trace.alive[1:], strict=False):
            assert not bool((after & ~before).any()) and bool(after[:, 0].all())


def test_a_saved_run_decides_as_before(trained: tuple[Trainer, Recorder], tmp_path: Path) -> None:
    trainer, _ = trained
    save(trainer.model, tiny_tokenizer(), tmp_path / "run")
    again = load(tmp_path / "run")
    expected, found = (predict(model, batches(), pruned=True) for model in (trainer.model, again.model))
    assert torch.equal(found.kept, expected.kept)  # type: ignore[arg-type]  # pruned=True records them
    torch.testing.assert_close(found.logits, expected.logits)
    ranked = trainer.method.name in RANKED
    assert again.manifest["format_version"] == (2 if ranked else 1)
    assert ("rule" in again.manifest) == ranked
    assert again.manifest["recipe"]["method"] == trainer.method.name


def test_a_text_alone_is_the_text_in_a_batch(trained: tuple[Trainer, Recorder]) -> None:
    trainer, _ = trained
    together = predict(trainer.model, batches(), pruned=True)
    one = encode(tiny_tokenizer(), keyword_task().selection[:1], max_length=32, positions=None)
    alone = predict(trainer.model, padded_batches(one, pad_id=0), pruned=True)
    assert torch.equal(alone.kept[0], together.kept[0])  # type: ignore[index]
    torch.testing.assert_close(alone.logits[0], together.logits[0], atol=1e-5, rtol=1e-5)


def test_the_engine_runs_thresholds_and_names_what_it_cannot(trained: tuple[Trainer, Recorder], tmp_path: Path) -> None:
    trainer, _ = trained
    save(trainer.model, tiny_tokenizer(), tmp_path / "run")
    if trainer.method.name in RANKED:
        name = "top_share" if trainer.method.name in ("spatten", "random") else "top_count"
        with pytest.raises(ModelError, match=f"prunes by thresholds, and this model by the rule '{name}'"):
            thresher.Engine.load(tmp_path / "run", device="cpu", backend="reference", dtype="fp32")
        return
    engine = thresher.Engine.load(tmp_path / "run", device="cpu", backend="reference", dtype="fp32")
    texts = [example.text for example in keyword_task().selection]
    wanted = predict(trainer.model, batches(), pruned=True).logits.argmax(-1).tolist()
    labels = [trainer.model.config.id2label[index] for index in wanted]
    assert [found.label for found in engine.classify(texts)] == labels


def test_explain_shows_every_rule(trained: tuple[Trainer, Recorder]) -> None:
    import random

    trainer, _ = trained
    found = thresher.explain(trainer.model, tiny_tokenizer(), sentence(random.Random(0), "good", words=(12, 12)))
    assert found.dropped_at[0] is None and len(found.kept_per_layer) == LAYERS
    assert (found.relative_flops < 1) == (trainer.method.name != "dense")


@pytest.mark.parametrize("name", METHODS)
def test_regression(name: str) -> None:
    trainer = trainer_of(name, task=value_task(), max_steps=2, search_rounds=1)
    before = weights_without_gates(trainer.model)["classifier.weight"].clone()
    state = trainer.fit()
    assert math.isfinite(state.history[-1]["score"])
    assert not torch.equal(weights_without_gates(trainer.model)["classifier.weight"], before)


# --- interruption ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "stage", "step"),
    [
        ("spatten", "hard", 5),
        ("collapse", "hard", 4),
        ("random", "retain ratio", 1),
        ("power", "soft", 3),
        ("power", "hard", 2),
        ("lat", "hard", 7),
        ("lat", "search", 1),
        ("dense", "hard", 5),
        ("thresher", "hard", 3),
        ("thresher", "hard", 7),
    ],
)
def test_a_resumed_run_is_the_uninterrupted_one(name: str, stage: str, step: int, tmp_path: Path) -> None:
    whole = trainer_of(name, finetune=True)
    expected = whole.fit()
    with pytest.raises(Interrupted):
        trainer_of(name, work=tmp_path, finetune=True, progress=Interrupting(stage, step)).fit()
    # The resumed process starts with other random weights: everything must come from the saved state.
    other = gated_model(layers=LAYERS, seed=9)
    resumed = trainer_of(name, work=tmp_path, resume=True, finetune=True, model=other)
    assert resumed.fit().history == expected.history
    assert differing(weights_of(resumed.model), weights_of(whole.model)) == []
    assert resumed.method.about() == whole.method.about()


def test_fit_again_changes_nothing() -> None:
    trainer = trainer_of("lat")
    trainer.fit()
    before = weights_of(trainer.model)
    trainer.fit()
    assert differing(weights_of(trainer.model), before) == []


# --- refusals --------------------------------------------------------------------------------------------------------


def test_settings_and_method_must_agree() -> None:
    with pytest.raises(ConfigError, match="'spatten', but the trainer was given 'thresher'; leave method= out"):
        trainer_for(gated_model(layers=LAYERS), settings("spatten"), method=method_named("thresher"))


@pytest.mark.parametrize("name", [name for name in METHODS if name not in (*LEARNING_METHODS, "dense")])
def test_lambda_has_nothing_to_price(name: str) -> None:
    with pytest.raises(ConfigError, match=f"method = '{name}' learns nothing that lambda_ = 0.1 could price"):
        TrainConfig(method=name, target_flops=None, lambda_=0.1)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "dense"])
def test_a_target_out_of_reach_is_refused_before_training(name: str) -> None:
    with pytest.raises(ConfigError, match=r"target_flops = 0.02 cannot be reached: .* leaves 0\.\d+; ask for more"):
        trainer_of(name, target_flops=0.02)


def test_the_way_out_of_a_shallow_model() -> None:
    """Three layers are SpAtten's quiet ones, so nothing is pruned at all."""
    with pytest.raises(ConfigError, match=r"leaves 1\.000; ask for more, or choose a method that prunes the first"):
        trainer_of("spatten", model=gated_model(layers=3), target_flops=0.9)


def test_collapse_needs_the_first_token() -> None:
    with pytest.raises(ConfigError, match="method = 'collapse' keeps only protected tokens; add 'first' to protect"):
        trainer_of("collapse", prune={"protect": ("none",), "collapse_last": False})


def test_a_model_trained_by_value_runs_in_the_engine(tmp_path: Path) -> None:
    trainer = trainer_of("thresher", prune={"score": "value"})
    assert trainer.fit().best_score is not None
    save(trainer.model, tiny_tokenizer(), tmp_path / "run")
    expected = predict(trainer.model, batches(), pruned=True)
    rows = encode(tiny_tokenizer(), keyword_task().selection, max_length=32, positions=None).rows
    engine = thresher.Engine.load(tmp_path / "run", device="cpu", dtype="fp32")
    found = engine.executor.compute([row.input_ids for row in rows])
    assert torch.equal(found.kept[:, :-1], expected.kept[:, :-1])
    torch.testing.assert_close(found.outputs, expected.logits, atol=1e-4, rtol=1e-4)
