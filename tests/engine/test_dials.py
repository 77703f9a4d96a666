"""One engine at several dials, and which layer dropped which token: the same as loading it there, and as counting."""

import math

import pytest
import torch

from tests.cli.tiny import tokenizer as tiny_tokenizer
from tests.models.families import tiny_model
from thresher.config import PruneConfig
from thresher.engine.engine import Engine
from thresher.errors import ModelError
from thresher.evaluation.explain import explain
from thresher.models.attach import gates_of, prune_

TEXTS = ["good film with a plot", "bad film", "the cast is dull and the score is cold", "warm"]


def pruned_model(thresholds: list[float] | None = None) -> object:
    model = tiny_model("bert")
    prune_(model, PruneConfig(score="value"))
    layers = model.config.num_hidden_layers
    gates_of(model).set_thresholds(thresholds or [0.6 + 0.2 * layer for layer in range(layers)])
    return model


@pytest.mark.parametrize("dial", [0.0, 0.5, 1.0, 1.5])
def test_another_dial_is_what_loading_at_it_gives(dial: float) -> None:
    model = pruned_model()
    options = {"device": "cpu", "dtype": "fp32"}
    ours = Engine.from_model(model, tiny_tokenizer(), **options).at_dial(dial).predict_arrays(TEXTS)
    theirs = Engine.from_model(model, tiny_tokenizer(), **options, dial=dial).predict_arrays(TEXTS)
    assert ours.kept.tolist() == theirs.kept.tolist()
    torch.testing.assert_close(torch.from_numpy(ours.outputs), torch.from_numpy(theirs.outputs))


def test_weights_that_do_not_fit_a_plan_are_refused() -> None:
    model = pruned_model()
    layers = model.config.num_hidden_layers
    gates_of(model).set_thresholds([0.5] + [math.inf] * (layers - 1))
    engine = Engine.from_model(model, tiny_tokenizer(), device="cpu", dtype="fp32")
    assert engine.at_dial(2.0).executor.plan.dial == 2.0
    with pytest.raises(ModelError, match="load the model again"):
        engine.at_dial(0.0)
    dense = Engine.from_model(model, tiny_tokenizer(), device="cpu", dtype="fp32", dial=0.0)
    with pytest.raises(ModelError, match="no thresholds are left to scale; load the model again with dial = 0.5"):
        dense.at_dial(0.5)
    assert dense.at_dial(0).executor.plan == dense.executor.plan


def test_a_trace_says_of_every_token_what_explain_says() -> None:
    model = pruned_model()
    engine = Engine.from_model(model, tiny_tokenizer(), device="cpu", dtype="fp32")
    executor = engine.executor
    output, dropped = executor.trace(executor.pack(engine.read(TEXTS)))  # type: ignore[attr-defined]  # of the CPU's
    layers = executor.shape.layers
    for text, own, kept in zip(TEXTS, dropped, output.kept.tolist(), strict=True):
        alive = [sum(at is None or at > layer for at in own) for layer in range(1, layers + 1)]
        assert alive == kept
        # What the head does not read the engine drops last; the attached model may still count it.
        expected = explain(model, tiny_tokenizer(), text).dropped_at
        assert [at or layers for at in own[1:]] == [at or layers for at in expected[1:]] and own[0] is None
    assert any(at is not None and at < layers for own in dropped for at in own)
