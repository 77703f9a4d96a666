"""The race between shapes: they take turns, are compared at the same cost, and the nearest to the dense model stays."""

import math
from typing import Any

import pytest
import torch

from tests.training.tiny import gated_model, keyword_task, quick, trainer_for
from thresher.core.losses import distillation_loss
from thresher.models.attach import gates_of
from thresher.models.gating import Trace
from thresher.models.predict import predict
from thresher.training.falling import ByQuantile
from thresher.training.thresher import Race, Thresher
from thresher.training.trainer import Trainer

LAYERS, TARGET = 6, 0.6


def racing(steps: int | None = 20, **settings: Any) -> tuple[Trainer, Thresher, Race]:
    model = gated_model(layers=LAYERS, **{name: settings.pop(name) for name in ("scale",) if name in settings})
    more = {"hard_epochs": 0.0, "soft_epochs": 0.0} if steps is None else {"max_steps": steps}
    config = quick(method="thresher", target_flops=TARGET, **more, **settings)
    trainer = trainer_for(model, config, task=keyword_task(96, selection=120))
    rule = gates_of(model).rule
    assert isinstance(rule, Race) and isinstance(trainer.method, Thresher)
    return trainer, trainer.method, rule


@pytest.mark.parametrize("end", [0.3, 0.6, 0.9])
def test_shapes_take_turns_and_each_step_moves_its_own(end: float, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, method, rule = racing(race_end=end)
    used: list[int] = []
    moved: list[int] = []

    def before(progress: float) -> None:
        found = [i for i in rule.in_race() if torch.equal(rule.thresholds[i], rule.current)]
        assert len(found) == 1, "a step has the thresholds of one shape that is in the race"
        used.append(found[0])

    plain = Race.track
    monkeypatch.setattr(method, "before_hard_step", before)
    monkeypatch.setattr(Race, "track", lambda self, i, kept: (moved.append(i), plain(self, i, kept)))
    trainer.fit()
    first, last = (int(share * trainer._hard_steps) + 1 for share in (end / 2, end))
    assert used[:first] == [step % 4 for step in range(first)]
    assert len(set(used[first:last])) == 2 and len(set(used[last:])) == 1
    assert moved == used[: len(moved)]


def test_shapes_are_compared_at_the_same_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thresholds drift while others train; here they run away."""
    monkeypatch.setattr(Race, "track", lambda self, index, kept: self.thresholds[index].mul_(1.5))
    trainer, method, _ = racing()
    costs: list[float] = []
    plain = trainer.judge.divergence_from

    def divergence(logits: torch.Tensor) -> float:
        costs.append(method.run.cost())
        return plain(logits)

    monkeypatch.setattr(trainer.judge, "divergence_from", divergence)
    trainer.fit()
    assert len(costs) == 6 and costs == pytest.approx([TARGET] * 6, abs=0.03)


def test_the_nearest_to_the_dense_model_stays() -> None:
    trainer, method, rule = racing()
    trainer.fit()
    first, last = method.about()["race"]
    for found in (first, last):
        assert all(value > 0 for value in found["divergence_by_width"].values())
    ranked = sorted(first["divergence_by_width"], key=lambda width: first["divergence_by_width"][width])
    assert set(last["divergence_by_width"]) == set(ranked[:2])
    (left,) = rule.in_race()
    assert method._name(left) == min(last["divergence_by_width"], key=last["divergence_by_width"].get)


def test_the_divergence_is_that_of_plain_probabilities() -> None:
    trainer, _, _ = racing()
    dense = torch.randn(120, 2, generator=torch.Generator().manual_seed(3))
    ours = predict(trainer.model, trainer.judge.batches, pruned=True).logits
    assert trainer.judge.divergence_from(dense) == pytest.approx(float(distillation_loss(ours, dense, temperature=1.0)))


@pytest.mark.parametrize("shapes", [2, 3, 5, 6, 7])
def test_however_many_there_are_the_one_that_stays_meets_the_target(shapes: int) -> None:
    trainer, method, rule = racing(widths=[2.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0][:shapes])
    found = trainer.fit()
    assert len(rule.racing) == shapes and len(rule.in_race()) == 1
    assert len(method.about()["race"][-1]["divergence_by_width"]) > 1
    assert found.history[-1]["relative_flops"] == pytest.approx(TARGET, abs=0.03)


def test_without_a_step_the_nearest_is_taken_too(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, method, rule = racing(steps=None)
    dictated = {0: 0.4, 1: 0.3, 2: 0.1, 3: 0.2}
    plain = Thresher._divergence_of
    monkeypatch.setattr(Thresher, "_divergence_of", lambda self, i: (plain(self, i), dictated[i])[1])
    found = trainer.fit()
    gates = gates_of(trainer.model)
    assert rule.in_race() == [2] and torch.equal(gates.thresholds, rule.thresholds[2])
    assert found.best_score == trainer.judge.evaluate(pruned=True)["score"]
    assert method.about()["race"] == [{"step": 0, "divergence_by_width": {"1": 0.4, "1.5": 0.3, "2.5": 0.1, "4": 0.2}}]


@pytest.mark.parametrize(("later", "judged"), [(False, {"2.5", "4"}), (True, {"1", "2.5"})])
def test_the_narrowest_may_be_judged_at_the_end(later: bool, judged: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the farthest from the dense model halfway, and would be gone."""
    _, method, rule = racing(narrow_later=later)
    dictated = {0: 0.4, 1: 0.3, 2: 0.1, 3: 0.2}
    monkeypatch.setattr(Thresher, "_divergence_of", lambda self, i: dictated[i])
    kept = method._best_of(rule.in_race(), 2, 5)
    assert {method._name(index) for index in kept} == judged
    assert method._best_of(kept, 1, 10) == [2], "at the end nothing counts but the distance"


@pytest.mark.parametrize("scale", ["relative", "paper"])
def test_the_cost_that_is_said_is_the_cost_that_shapes_have(scale: str) -> None:
    """Scores that are divided by the length are small in long texts: batches of like lengths would not agree."""
    trainer, method, rule = racing(scale=scale)
    said = method.meet(TARGET)
    gates_of(trainer.model).set_mode("hard")
    for index in rule.in_race():
        rule.take(index)
        assert method.run.cost() == pytest.approx(said, abs=0.02)


def test_a_threshold_is_the_mean_over_tokens() -> None:
    """Two batches, of three tokens and of one beside the first: the larger counts more."""
    rule = ByQuantile([0.0, 0.5])
    seen = []
    for scores in ([9.0, 0.1, 0.5, 0.9], [9.0, 0.3]):
        alive = torch.ones(1, len(scores), dtype=torch.bool)
        protected = torch.zeros_like(alive)
        protected[0, 0] = True
        rule.keep(1, torch.tensor([scores]), Trace(protected=protected, alive=[alive]))
        rule.keep(0, torch.tensor([scores]), Trace(protected=protected, alive=[alive]))
        single = ByQuantile([0.0, 0.5])
        single.keep(0, torch.tensor([scores]), Trace(protected=protected, alive=[alive]))
        single.keep(1, torch.tensor([scores]), Trace(protected=protected, alive=[alive]))
        seen.append((single.thresholds()[1], len(scores)))
    assert seen[0][0] != seen[1][0]
    expected = sum(value * count for value, count in seen) / sum(count for _, count in seen)
    assert rule.thresholds() == [math.inf, pytest.approx(expected)]
