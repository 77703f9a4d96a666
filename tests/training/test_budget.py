"""The FLOPs target: bounds by hand, the search on measured FLOPs, and the controller that holds it."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.training.tiny import gated_model, keyword_rows, keyword_task, quick, stock_model, tiny_tokenizer, trainer_for
from thresher.baselines import method_named
from thresher.core.cost import EncoderShape, lowest_flops
from thresher.errors import ConfigError, ModelError
from thresher.models.attach import encoder_shape, gates_of
from thresher.models.predict import Batch
from thresher.tasks.encode import encode, padded_batches
from thresher.training.budget import (
    SEARCH_STEPS,
    TOLERANCE,
    GateScaler,
    check_reachable,
    measured_flops,
    nudge,
    resting_from,
    scale_to_target,
)
from thresher.training.trainer import Trainer

# width 2, FFN 3: a layer that sees n tokens and keeps k costs 4 n^2 + 16 n + 12 k.
SHAPE = EncoderShape(layers=3, width=2, ffn_width=3)
LENGTHS = torch.tensor([10, 4])
DENSE = 3 * (400 + 160 + 120) + 3 * (64 + 64 + 48)


def data(rows: int = 96) -> list[Batch]:
    return padded_batches(
        encode(tiny_tokenizer(), keyword_rows(rows, seed=3), max_length=None, positions=None), pad_id=0
    )


def search(model: Any, target: float) -> tuple[float, list[float]]:
    batches, seen = data(), []
    scaler = GateScaler(model, floor=torch.zeros(4))
    return scale_to_target(scaler, lambda: measured_flops(model, batches), target, seen.append), seen


# --- bounds ----------------------------------------------------------------------------------------------------------


def test_lowest_flops_by_hand() -> None:
    """The first layer keeps all; the second sees all and keeps one; the third sees one and keeps one."""
    ten = (400 + 160 + 120) + (400 + 160 + 12) + (4 + 16 + 12)
    four = (64 + 64 + 48) + (64 + 64 + 12) + (4 + 16 + 12)
    assert lowest_flops(SHAPE, LENGTHS, [0.0, 0.5, math.inf]) == pytest.approx((ten + four) / DENSE)
    # A zero after a positive threshold changes nothing: what is dropped stays dropped.
    assert lowest_flops(SHAPE, LENGTHS, [0.0, 0.5, 0.0]) == pytest.approx((ten + four) / DENSE)


def test_protected_tokens_hold_the_cost_up() -> None:
    """Of ten and four tokens two and three stay, from the second layer on."""
    ten = (400 + 160 + 12 * 10) + (400 + 160 + 12 * 2) + (16 + 32 + 12 * 2)
    four = (64 + 64 + 12 * 4) + (64 + 64 + 12 * 3) + (36 + 48 + 12 * 3)
    staying = torch.tensor([2, 3])
    thresholds = [0.0, 0.5, math.inf]
    found = lowest_flops(SHAPE, LENGTHS, thresholds, protected=staying)
    assert found == pytest.approx((ten + four) / DENSE) and found > lowest_flops(SHAPE, LENGTHS, thresholds)
    with pytest.raises(ConfigError, match="dropping all but the protected tokens in every pruning layer leaves"):
        check_reachable(SHAPE, LENGTHS, thresholds, found - 0.01, protected=staying)
    check_reachable(SHAPE, LENGTHS, thresholds, found + 0.01, protected=staying)


@pytest.mark.parametrize("method", ["thresher", "ltp", "collapse"])
def test_a_target_that_protection_rules_out_is_refused_before_training(method: str) -> None:
    """All up to the first separator stays, and single texts have no other."""
    model = gated_model(protect=("first", "first_segment"), separator_id=tiny_tokenizer().sep_token_id)
    with pytest.raises(ConfigError, match="target_flops = 0.3 cannot be reached.*protected tokens"):
        trainer_for(model, quick(method=method, target_flops=0.3))


def test_lowest_flops_without_and_with_nothing_but_pruning_layers() -> None:
    assert lowest_flops(SHAPE, LENGTHS, [0.0, 0.0, 0.0]) == 1.0
    everywhere = (400 + 160 + 12) + (64 + 64 + 12) + 4 * (4 + 16 + 12)
    assert lowest_flops(SHAPE, LENGTHS, [0.1, 0.2, 0.3]) == pytest.approx(everywhere / DENSE)


def test_bounds_are_what_a_model_measures_at_the_extremes() -> None:
    ramp = [0.0, 0.4, 0.8, math.inf]
    batches = data(24)
    lengths = torch.cat([batch["attention_mask"].sum(dim=-1) for _, batch in batches])
    model = gated_model(thresholds=[0.0, 1e9, 1e9, math.inf])
    assert measured_flops(model, batches) == pytest.approx(lowest_flops(encoder_shape(model), lengths, ramp))
    gates_of(model).set_thresholds([0.0, 0.0, 0.0, math.inf])
    assert measured_flops(model, batches) == pytest.approx(
        lowest_flops(encoder_shape(model), lengths, [0.0, 0.0, 0.0, math.inf])
    )


def test_an_unreachable_target_is_refused_with_the_bound_and_the_way_out() -> None:
    thresholds = [0.0, 0.5, math.inf]
    lowest = lowest_flops(SHAPE, LENGTHS, thresholds)
    with pytest.raises(ConfigError) as error:
        check_reachable(SHAPE, LENGTHS, thresholds, 0.35)
    assert "target_flops = 0.35 cannot be reached" in str(error.value)
    assert f"leaves {lowest:.3f}" in str(error.value)
    assert "ramp = 'plain'" in str(error.value)
    check_reachable(SHAPE, LENGTHS, thresholds, lowest)
    check_reachable(SHAPE, LENGTHS, [0.1, 0.5, math.inf], 0.35)
    with pytest.raises(ConfigError, match="ask for more, or turn back$"):
        check_reachable(SHAPE, LENGTHS, thresholds, 0.35, way_out="turn back")
    with pytest.raises(ConfigError, match="ask for more$"):  # every layer prunes already
        check_reachable(SHAPE, LENGTHS, [0.1, 0.5, math.inf], 0.01, way_out="turn back")


# --- search ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [0.45, 0.6, 0.8])
def test_the_search_meets_the_target_in_measured_flops(target: float) -> None:
    model = gated_model()
    start = gates_of(model).thresholds.clone()
    reached, seen = search(model, target)
    assert reached == pytest.approx(target, abs=0.01)
    assert reached == seen[-1] and len(seen) <= SEARCH_STEPS
    # The thresholds that reach it stay in the model, as a multiple of where they started.
    assert measured_flops(model, data()) == reached
    now = gates_of(model).thresholds
    assert now[0] == 0 and now[3] == math.inf
    assert (now[1] / start[1]).item() == pytest.approx((now[2] / start[2]).item())


def test_the_search_starts_from_any_size_of_thresholds() -> None:
    for final in (0.05, 20.0):
        reached, _ = search(gated_model(final_threshold=final), 0.6)
        assert reached == pytest.approx(0.6, abs=0.02)


def test_the_search_finds_a_step_in_the_cost() -> None:
    """Few rows cost the same over wide ranges and then jump; the search must end beside the jump, not far from it."""
    model = gated_model(thresholds=[0.0, 1.0, 1.0, math.inf])
    for jump in (0.05, 0.7, 1.3, 30.0):
        scaler = GateScaler(model, floor=torch.zeros(4))

        def measure(jump: float = jump) -> float:
            return 0.9 if gates_of(model).thresholds[1] < jump else 0.3

        scale_to_target(scaler, measure, 0.6, lambda flops: None)
        assert gates_of(model).thresholds[1].item() == pytest.approx(jump, rel=0.1)
        gates_of(model).set_thresholds([0.0, 1.0, 1.0, math.inf])


def test_the_nearest_that_was_seen_stays() -> None:
    """Whole tokens make the cost a staircase; wherever the search ends, the step nearest to the target is applied."""

    class Stairs:
        factor = math.nan

        def apply(self, factor: float) -> None:
            self.factor = factor

        def cost(self) -> float:
            return math.ceil(4 / (1 + self.factor)) / 4

    for target in (0.3, 0.45, 0.6, 0.7, 0.9):
        stairs, seen = Stairs(), []
        reached = scale_to_target(stairs, stairs.cost, target, seen.append)
        assert reached == stairs.cost()
        assert abs(reached - target) == min(abs(cost - target) for cost in seen)


def test_the_search_stops_early_when_it_hits() -> None:
    scaler = GateScaler(gated_model(), floor=torch.zeros(4))
    asked: list[float] = []

    def measure() -> float:
        asked.append(0.5)
        return 0.5

    assert scale_to_target(scaler, measure, 0.5 + TOLERANCE / 2, lambda flops: None) == 0.5
    assert len(asked) == 1
    scale_to_target(scaler, measure, 0.5 + TOLERANCE * 2, lambda flops: None)
    assert len(asked) == 1 + SEARCH_STEPS


def test_the_search_of_what_cannot_be_reached_ends_at_the_nearest_end() -> None:
    low, seen = search(gated_model(), 0.01)
    assert low == min(seen) and len(seen) == SEARCH_STEPS
    high, seen = search(gated_model(), 1.0)
    assert high == max(seen)


# --- scaling ---------------------------------------------------------------------------------------------------------


def test_scaler_keeps_infinities_and_zeros_and_always_scales_from_the_start() -> None:
    model = gated_model(thresholds=[0.0, 0.5, 2.0, math.inf])
    scaler = GateScaler(model, floor=torch.zeros(4))
    scaler.apply(4.0)
    assert gates_of(model).thresholds.tolist() == [0.0, 2.0, 8.0, math.inf]
    scaler.apply(0.5)
    assert gates_of(model).thresholds.tolist() == [0.0, 0.25, 1.0, math.inf]


def test_scaler_lifts_thresholds_to_the_floor() -> None:
    """A threshold that learning pushed to zero or below could not be scaled up, or would be scaled the wrong way."""
    model = gated_model(thresholds=[-0.5, 0.0, 0.25, math.inf])
    scaler = GateScaler(model, floor=torch.tensor([0.0, 0.125, 0.125, math.inf]))
    assert gates_of(model).thresholds.tolist() == [0.0, 0.125, 0.25, math.inf]
    scaler.apply(2.0)
    assert gates_of(model).thresholds.tolist() == [0.0, 0.25, 0.5, math.inf]


def test_scaler_needs_gates() -> None:
    with pytest.raises(ModelError, match="no gates"):
        GateScaler(stock_model(), floor=torch.zeros(4))


# --- controller ------------------------------------------------------------------------------------------------------


def test_controller_pushes_towards_the_target() -> None:
    model = gated_model(thresholds=[0.0, 0.5, 1.0, math.inf])
    nudge(model, measured=0.9, target=0.5)  # too expensive: higher thresholds
    assert gates_of(model).thresholds[2].item() == pytest.approx(math.exp(0.04))
    nudge(model, measured=0.2, target=0.5)  # too cheap: lower ones
    assert gates_of(model).thresholds[2].item() == pytest.approx(math.exp(0.04 - 0.03))
    nudge(model, measured=0.5, target=0.5)
    expected = [0.0, 0.5 * math.exp(0.01), math.exp(0.01), math.inf]
    assert gates_of(model).thresholds.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(("steps", "first"), [(10, 9), (100, 90), (15, 13), (1, 0)])
def test_thresholds_rest_in_the_last_tenth(steps: int, first: int) -> None:
    assert resting_from(steps) == first


def test_thresholds_are_met_once_more_and_then_rest() -> None:
    """Wherever training left them: here at three times what they were."""
    model = gated_model(dropout=0.0)
    config = quick(method="manual", soft_epochs=0.0, hard_epochs=3.0, max_steps=None, target_flops=0.6)
    trainer = Trainer(model, tiny_tokenizer(), keyword_task(), config, method=method_named("manual"), device="cpu")
    method, seen = trainer.method, []
    original = method.after_hard_step

    def after_hard_step(step: int, **numbers: Any) -> None:
        original(step, **numbers)
        if step == resting_from(24) - 1:
            gates_of(model).thresholds.data.mul_(3.0)
        seen.append((gates_of(model).thresholds.tolist(), trainer.judge.evaluate(pruned=True)["relative_flops"]))

    method.after_hard_step = after_hard_step  # type: ignore[method-assign]
    trainer.fit()
    assert seen[20][1] < 0.5 and seen[21][1] == pytest.approx(0.6, abs=0.01)
    assert seen[21][0] == seen[22][0] == seen[23][0]


def test_the_target_is_one_for_selection_rows() -> None:
    """Their texts are three times as long here: training rows cost something else at the same thresholds, and are held
    at that."""
    longer = [replace(row, text=row.text + " worda" * 20) for row in keyword_rows(24, seed=2)]
    model = gated_model(dropout=0.0)
    config = quick(method="manual", soft_epochs=0.0, hard_epochs=2.0, max_steps=None, target_flops=0.6, max_length=40)
    task = replace(keyword_task(), selection=longer)
    trainer = Trainer(model, tiny_tokenizer(), task, config, method=method_named("manual"), device="cpu")
    trainer.fit()
    assert trainer.judge.evaluate(pruned=True)["relative_flops"] == pytest.approx(0.6, abs=0.02)
    assert abs(trainer.method._surplus) > 0.005  # type: ignore[attr-defined]
    assert trainer.method.run.longest == max(trainer.rows.selection.lengths)


def test_controller_brings_measured_flops_to_the_target() -> None:
    """The direction is right on a real model, not only on paper."""
    model, batches = gated_model(final_threshold=0.4), data(32)
    start = measured_flops(model, batches)
    for _ in range(30):
        nudge(model, measured=measured_flops(model, batches), target=0.6, gain=2.0)
    assert start > 0.65
    assert measured_flops(model, batches) == pytest.approx(0.6, abs=0.02)
