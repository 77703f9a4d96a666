"""LengthDrop's lengths, LayerDrop's layers, the sandwich's loss, and the search that ends a run."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.baselines.tiny import LAYERS, TARGET, trainer_of
from tests.training.test_objective import batch_of
from tests.training.tiny import gated_model, quick, trainer_for, value_task
from thresher.baselines import lat
from thresher.baselines.evolution import Candidate
from thresher.baselines.lat import Lat, drop_lengths, sample_layers, shortest, uniform
from thresher.core.losses import distillation_loss, task_loss
from thresher.errors import ConfigError
from thresher.models.attach import gates_of
from thresher.models.rules import TopCount
from thresher.training.objective import model_inputs

# --- sampling --------------------------------------------------------------------------------------------------------


def test_the_smallest_by_hand() -> None:
    """A fifth of each layer's tokens goes, rounded in the tokens' favour."""
    assert drop_lengths(10, 0.2, shortest, layers=4) == (8, 7, 6, 5)
    assert drop_lengths(2, 0.4, shortest, layers=3) == (2, 2, 2)
    assert drop_lengths(3, 0.9, shortest, layers=3) == (1, 1, 1)


def test_a_layer_left_out_drops_nothing() -> None:
    assert drop_lengths(10, 0.2, shortest, layers=4, left_out=frozenset({1, 2})) == (8, 8, 8, 7)


@given(st.integers(1, 128), st.sampled_from((0.2, 0.25, 0.3, 0.35, 0.4)), st.integers(1, 12), st.integers(0, 999))
def test_sampled_lengths_stay_in_their_bounds(longest: int, rate: float, layers: int, seed: int) -> None:
    torch.manual_seed(seed)
    found = drop_lengths(longest, rate, uniform, layers=layers)
    for before, after in zip((longest, *found), found, strict=False):
        assert 1 <= after <= before and after >= (1 - rate) * before - 1e-9
    smallest = drop_lengths(longest, rate, shortest, layers=layers)
    assert all(low <= length for low, length in zip(smallest, found, strict=True))


def test_sampling_reaches_both_ends() -> None:
    torch.manual_seed(0)
    assert {drop_lengths(10, 0.4, uniform, layers=1)[0] for _ in range(200)} == {6, 7, 8, 9, 10}


def test_layers_are_left_out_with_their_probability() -> None:
    torch.manual_seed(0)
    counts = [len(sample_layers(12, 0.2)) for _ in range(500)]
    assert sum(counts) / len(counts) == pytest.approx(2.4, abs=0.2)
    assert sample_layers(12, 0.0) == frozenset()


# --- the loss of a step ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("regression", [False, True])
def test_the_sandwich_by_its_parts(regression: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full, smallest and two random ones, one after the other and without dropout, averaged."""
    model = gated_model(layers=LAYERS, dropout=0.0, outputs=1 if regression else 2)
    changes: dict[str, Any] = {"task": value_task()} if regression else {}
    trainer = trainer_of("lat", model=model, length_drop=0.4, **changes)
    method, gates, batch = trainer.method, gates_of(model), batch_of(regression=regression)
    assert isinstance(method, Lat)
    drawn: list[tuple[tuple[int, ...], frozenset[int]]] = []
    original = method._lengths

    def spy(rate: float, pick: Any, *, left_out: frozenset[int] = frozenset()) -> tuple[int, ...]:
        drawn.append((original(rate, pick, left_out=left_out), left_out))
        return drawn[-1][0]

    monkeypatch.setattr(method, "_lengths", spy)
    torch.manual_seed(3)
    counts = gates.rule.counts.tolist()  # type: ignore[union-attr, operator]
    method.before_hard_step(0.0)
    found = list(method.hard_loss(model, batch, teacher=None))
    assert len(drawn) == 3 and any(left_out for _, left_out in drawn)
    assert gates.rule.counts.tolist() == counts, "the step's lengths do not stay"  # type: ignore[union-attr, operator]
    assert gates.mode == "hard" and gates.left_out is None

    gates.set_mode("off")
    full: Tensor = model(**model_inputs(batch)).logits
    parts = [task_loss(full, batch["labels"])]
    gates.set_mode("hard")
    for lengths, left_out in drawn:
        assert isinstance(gates.rule, TopCount)
        gates.rule.set_counts(lengths)
        with gates.leaving_out(torch.tensor([layer in left_out for layer in range(LAYERS)])):
            small = model(**model_inputs(batch)).logits
        parts.append(distillation_loss(small, full.detach(), temperature=1.0))
    assert all(part > 0 for part in parts)
    torch.testing.assert_close(torch.stack([part.total for part in found]), torch.stack(parts) / 4)
    costs = [4 * part.flops.item() for part in found if part.flops is not None]
    assert costs[0] == 1 and len(costs) == 4 and all(0.1 < cost < 1 for cost in costs[1:])


def test_every_step_draws_anew_into_the_same_tensors() -> None:
    """A recorded step reads them there; chance is the step's, so that a resumed run draws the same."""
    method = trainer_of("lat", model=gated_model(layers=LAYERS), length_drop=0.4).method
    assert isinstance(method, Lat)
    seen = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        method.before_hard_step(0.0)
        assert method._drawn is not None
        seen.append(([drawn.data_ptr() for drawn in method._drawn], [drawn.tolist() for drawn in method._drawn]))
    assert seen[0] == seen[2] and seen[0][0] == seen[1][0] and seen[0][1] != seen[1][1]


def test_distillation_teaches_the_small_models_and_not_the_full_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing dropped the small models agree with the full one, and only the task is left to learn."""
    model = gated_model(layers=LAYERS, dropout=0.0)
    trainer = trainer_of("lat", model=model, layer_drop=0.0)
    monkeypatch.setattr(lat, "drop_lengths", lambda longest, rate, pick, *, layers, left_out: (longest,) * layers)
    batch = batch_of()
    trainer.method.before_hard_step(0.0)
    assert isinstance(trainer.method, Lat)
    total = torch.stack([part.total for part in trainer.method.hard_loss(model, batch, teacher=None)]).sum()
    gates_of(model).set_mode("off")
    task = task_loss(model(**model_inputs(batch)).logits, batch["labels"])
    torch.testing.assert_close(total, task / 4, atol=1e-5, rtol=1e-4)


def test_the_full_model_learns_from_the_dense_teacher_too() -> None:
    model = gated_model(layers=LAYERS, dropout=0.0)
    trainer = trainer_of("lat", model=model, distill=0.25)
    batch = batch_of()
    batch["targets"] = torch.randn(len(batch["labels"]), 2, generator=torch.Generator().manual_seed(4))
    trainer.method.before_hard_step(0.0)
    full, *_ = trainer.method.hard_loss(model, batch, teacher=None)  # type: ignore[misc]
    gates_of(model).set_mode("off")
    logits = model(**model_inputs(batch)).logits
    soft = distillation_loss(logits, batch["targets"], temperature=trainer.config.distill_temperature)
    expected = 0.75 * task_loss(logits, batch["labels"]) + 0.25 * soft
    torch.testing.assert_close(4 * full.total, expected)


def test_hidden_states_are_not_matched_which_is_said_before_training() -> None:
    with pytest.raises(ConfigError, match="distill_hidden = 0.5 matches hidden states, which method lat does not: its"):
        trainer_for(gated_model(), quick(method="lat", distill_hidden=0.5))


def test_a_layer_left_out_is_the_identity() -> None:
    model = gated_model(layers=LAYERS, dropout=0.0, thresholds=[0.0] * LAYERS).eval()
    inputs = model_inputs(batch_of())
    left_out = torch.tensor([layer in (1, 4) for layer in range(LAYERS)])
    with torch.inference_mode(), gates_of(model).leaving_out(left_out):
        states = model(**inputs, output_hidden_states=True).hidden_states
    same = [torch.equal(before, after) for before, after in zip(states, states[1:], strict=False)]
    assert same == [False, True, False, False, True, False]


# --- the search ------------------------------------------------------------------------------------------------------


def test_the_best_that_fits_is_chosen_and_the_cheapest_where_none_does() -> None:
    front = [Candidate((3,), 0.4, 0.6), Candidate((5,), 0.505, 0.8), Candidate((9,), 0.9, 0.9)]
    assert lat._choose(front, 0.5).lengths == (5,)
    assert lat._choose(front, 0.45).lengths == (3,)
    assert lat._choose(front, 0.1).lengths == (3,)


def test_the_search_improves_on_one_rate_and_its_front_is_kept() -> None:
    trainer = trainer_of("lat", search_rounds=4)
    state = trainer.fit()
    found = trainer.judge.evaluate(pruned=True)
    assert found["relative_flops"] <= TARGET + 0.01
    assert state.best_score is not None and found["score"] >= state.best_score - 1e-9
    front = gates_of(trainer.model).about["front"]
    assert [row["cost"] for row in front] == sorted(row["cost"] for row in front)
    assert [row["score"] for row in front] == sorted(row["score"] for row in front)
    assert all(row["lengths"] == sorted(row["lengths"], reverse=True) for row in front)
    assert gates_of(trainer.model).rule.counts.tolist() in [row["lengths"] for row in front]  # type: ignore[union-attr, operator]


def test_an_interrupted_search_measures_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same front as without the interruption, and every candidate is measured once."""
    measured: list[tuple[int, ...]] = []
    original = Lat._measure

    def measure(self: Lat, lengths: tuple[int, ...]) -> Candidate:
        if len(measured) == stop_at:
            raise KeyboardInterrupt
        measured.append(lengths)
        return original(self, lengths)

    monkeypatch.setattr(Lat, "_measure", measure)
    stop_at = -1
    whole = trainer_of("lat", work=tmp_path / "whole", search_rounds=3)
    whole.fit()
    wanted, stop_at = list(measured), len(measured) - 2
    measured.clear()
    with pytest.raises(KeyboardInterrupt):
        trainer_of("lat", work=tmp_path / "cut", search_rounds=3).fit()
    before, stop_at = list(measured), -1
    resumed = trainer_of("lat", work=tmp_path / "cut", search_rounds=3, resume=True)
    state = resumed.fit()
    assert len(measured) < len(before) + len(wanted) // 2, "whole rounds are not repeated"
    assert resumed.gates.about["front"] == whole.gates.about["front"]
    assert state.best_score == whole.state.best_score
    chosen = [row for row in whole.gates.about["front"] if row["lengths"] == whole.gates.rule.counts.tolist()]  # type: ignore[union-attr]
    assert state.best_score == chosen[0]["score"], "the score is that of the lengths that were chosen"


def test_without_a_search_one_rate_stays() -> None:
    trainer = trainer_of("lat", search_rounds=0)
    trainer.fit()
    assert "front" not in gates_of(trainer.model).about
    rule = gates_of(trainer.model).rule
    assert isinstance(rule, TopCount)
    assert rule.counts.tolist() == sorted(rule.counts.tolist(), reverse=True)
