"""What is tried on answers: an output layer for every exit, and a guard for tokens that look like an answer's ends."""

from typing import Any

import pytest
import torch

from tests.training.test_tokens import QUESTIONS, model_for, task
from tests.training.tiny import LAYERS, QUICK, tiny_tokenizer
from thresher.config import TrainConfig
from thresher.errors import ConfigError
from thresher.experiments import token_tries
from thresher.experiments.token_tries import ExitOutputs, Exits, Guarded, likely
from thresher.methods import TABLE, Entry
from thresher.models.attach import gates_of
from thresher.models.heads import outputs_in
from thresher.training.trainer import Trainer


def tried(method: Any, means: str = "span", **settings: Any) -> Trainer:
    config = TrainConfig(**{**QUICK, "method": "thresher", "target_flops": 0.7, **settings})
    return Trainer(model_for(means), tiny_tokenizer(), task(means), config, method=method, device="cpu")


def batch_of(trainer: Trainer) -> dict[str, Any]:
    _, batch = trainer.judge.batches[0]
    return {name: value for name, value in batch.items() if name != "labels"}


def test_exits_are_copies_at_first_and_learn_apart() -> None:
    trainer = tried(Exits)
    model, batch = trainer.model.eval(), batch_of(trainer)
    gates = gates_of(model)
    gates.rule = None
    gates.set_thresholds([0.0, 1.0, 1.0, 1.0])
    with torch.no_grad():
        at_first = outputs_in(model(**batch))
        passed = torch.stack([alive.long() for alive in gates.trace.alive[1:]]).sum(dim=0)  # type: ignore[union-attr]
        model.exit_outputs.bias[2:4] += 1.0  # of the tokens that passed one layer
        shifted = outputs_in(model(**batch)) - at_first
        gates.set_mode("off")
        dense = outputs_in(model(**batch))
        model.exit_outputs.bias.zero_()
        assert torch.equal(outputs_in(model(**batch)), dense), "the dense model has its own output layer"
    left, alive = passed == 1, batch["attention_mask"].bool()
    assert bool((left & alive).any()) and bool((passed == LAYERS).any())
    torch.testing.assert_close(shifted[left], torch.ones_like(shifted[left]))
    assert float(shifted[~left].abs().max()) == 0.0


def test_an_exit_has_its_own_rows() -> None:
    outputs = torch.nn.Linear(3, 2)
    exits = ExitOutputs(outputs, exits=4)
    states, passed = torch.randn(2, 5, 3), torch.randint(0, 4, (2, 5))
    torch.testing.assert_close(exits(states, passed), outputs(states))


def test_likely_ends_are_live_and_above_the_limit() -> None:
    logits = torch.zeros(1, 40, 2)
    logits[0, 3, 0] = logits[0, 5, 1] = logits[0, 7, 0] = 5.0
    alive = torch.ones(1, 40, dtype=torch.bool)
    alive[0, 7] = False
    assert likely(logits, alive).nonzero()[:, 1].tolist() == [3, 5]


def test_the_guard_keeps_what_would_be_dropped() -> None:
    trainer = tried(Guarded)
    model, batch = trainer.model.eval(), batch_of(trainer)
    gates = gates_of(model)
    gates.rule = None
    gates.set_thresholds([0.0, *[float("inf")] * (LAYERS - 1)])
    with torch.no_grad():
        model.qa_outputs.weight.zero_()
        model(**batch)
        alone = gates.trace.kept()[:, -1]  # type: ignore[union-attr]
        model.qa_outputs.weight.normal_(std=10.0)
        model(**batch)
        trace = gates.trace
    assert trace is not None and bool((trace.kept()[:, -1] > alone).any())
    assert bool((trace.kept()[:, -1] < trace.lengths()).all())


@pytest.mark.parametrize("method", [Exits, Guarded])
def test_all_train_to_the_target(method: Any) -> None:
    trainer = tried(method, max_steps=12)
    trainer.fit()
    found = trainer.judge.evaluate(pruned=True)
    assert 0.55 < found["relative_flops"] < 0.85 and gates_of(trainer.model).about["tried"] == method.tried
    if method is Exits:
        rows = trainer.model.exit_outputs.weight.view(LAYERS + 1, 2, -1)
        assert not torch.equal(rows[1], rows[LAYERS]), "each exit learned its own"


def test_they_are_for_answers() -> None:
    assert QUESTIONS.means == "span"
    with pytest.raises(ConfigError, match="'exits' is tried on answers, and the model gives tags"):
        tried(Exits, means="tags")


def test_the_program_takes_the_place_of_method_thresher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLE, "thresher", TABLE["thresher"])  # taken back afterwards
    called = []
    monkeypatch.setattr("thresher.cli.main", lambda: called.append(TABLE["thresher"]))
    monkeypatch.setattr("sys.argv", ["token_tries"])
    token_tries.main(["guarded", "prune", "model"])
    assert called == [Entry("thresher.experiments.token_tries:Guarded", score="value")]
    with pytest.raises(SystemExit, match="'other' is not one of: exits, guarded"):
        token_tries.main(["other"])
