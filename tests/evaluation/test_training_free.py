"""The search for thresholds: what it promises holds on a tiny random model, whatever the texts."""

import math
import random
from dataclasses import replace

import pytest
import torch

from tests.cli import tiny
from thresher.config import PruneConfig
from thresher.engine.engine import Engine
from thresher.engine.packed import PackedExecutor
from thresher.errors import ConfigError
from thresher.evaluation.training_free import (
    WIDTHS,
    Goal,
    Sample,
    check_reachable,
    fall,
    farthest,
    fit,
    limit,
)
from thresher.models.attach import prune_


def packed(outputs: int = 2) -> PackedExecutor:
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(
        tiny.classifier_config(tuple(f"class{i}" for i in range(outputs))) if outputs > 1 else tiny.config(num_labels=1)
    ).eval()
    prune_(model, PruneConfig(score="value"))
    found = Engine.from_model(model, tiny.tokenizer(), backend="cpu", dtype="fp32").executor
    assert isinstance(found, PackedExecutor)
    return found


def sample(classifier: PackedExecutor, count: int = 96, *, seed: int = 0) -> Sample:
    draw = random.Random(seed)
    texts = [[2, *draw.choices(range(4, 4 + len(tiny.WORDS)), k=draw.randint(4, 20)), 3] for _ in range(count)]
    return Sample(classifier, [(ids, None) for ids in texts], on_trial=lambda: None)


@pytest.fixture(scope="module")
def texts() -> Sample:
    return sample(packed())


def test_nothing_pruned_agrees_in_everything(texts: Sample) -> None:
    trial = texts.at([0.0] * 3 + [math.inf])
    assert trial.agreement == 1 and trial.change == 0
    assert trial.relative_flops < 1  # the last layer's saving is free


def test_trials_are_remembered(texts: Sample) -> None:
    asked = []
    counted = Sample(packed(), [([2, 4, 5, 3], None)], on_trial=lambda: asked.append(1))
    counted.at([0.0, 0.0, 0.5, math.inf])
    counted.at((0.0, 0.0, 0.5, math.inf))
    assert len(asked) == 1


@pytest.mark.parametrize("shares", [[0.8, 0.5, 0.25, 0.0], [1.0, 1.0, 0.6, 0.0], [0.4, 0.0, 0.0, 0.0]])
def test_thresholds_leave_the_shares(texts: Sample, shares: list[float]) -> None:
    """Of the tokens but the first, which is protected; a token more or less is what interpolation does."""
    thresholds = texts.holding(shares)
    kept = torch.tensor(texts.judge(thresholds).kept_per_layer) - 1
    wanted = (float(texts.lengths.double().mean()) - 1) * torch.tensor(shares)
    assert (kept - wanted).abs().max() < 0.05
    assert [math.isinf(value) for value in thresholds] == [share == 0 for share in shares]


def test_a_fall_goes_from_nothing_to_everything(texts: Sample) -> None:
    for width in WIDTHS:
        assert fall(texts, width)(0.0) == [0, 0, 0, math.inf]
        assert fall(texts, width)(1.0) == [math.inf] * 4
        costs = [texts.at(fall(texts, width)(way)).relative_flops for way in (0.0, 0.3, 0.5, 0.7, 1.0)]
        assert costs == sorted(costs, reverse=True) and len(set(costs)) > 3


def test_the_farthest_that_is_allowed(texts: Sample) -> None:
    way = fall(texts, WIDTHS[1])
    assert 0.75 <= farthest(texts, way, lambda trial: trial.relative_flops >= 0.75).relative_flops < 0.77
    assert farthest(texts, way, lambda trial: False).thresholds == (0, 0, 0, math.inf)
    assert farthest(texts, way, lambda trial: True).relative_flops < 0.32


@pytest.mark.parametrize("wanted", [0.8, 0.95])
def test_the_cheapest_fall_that_keeps_the_agreement(texts: Sample, wanted: float) -> None:
    allows = limit(texts, Goal(agreement=wanted))
    costs = [farthest(texts, fall(texts, width), allows).relative_flops for width in WIDTHS]
    fitted = fit(texts, Goal(agreement=wanted))
    assert fitted.agreement >= wanted and allows(fitted)
    assert fitted.relative_flops == min(costs) < max(costs)
    assert fitted.thresholds[-1] == math.inf


def test_all_decisions_are_kept_by_changing_nothing(texts: Sample) -> None:
    assert fit(texts, Goal(agreement=1.0)).change == 0


def test_more_agreement_allows_less_change(texts: Sample) -> None:
    """At 99% in proportion to where many decisions change; a standard error stays in hand."""
    many = farthest(texts, fall(texts, WIDTHS[1]), lambda trial: trial.agreement >= 0.93)
    most = 0.01 * many.change / (1 - many.assured)
    assert 0 < most < 0.01 * many.change / (1 - many.agreement)
    allows = limit(texts, Goal(agreement=0.99))
    trial = replace(many, agreement=0.99, change=0.999 * most)
    assert allows(trial) and not allows(replace(trial, change=1.001 * most))
    assert not allows(replace(trial, agreement=0.98)), "nor may the texts themselves say otherwise"


def test_a_cost_is_met_with_the_least_change(texts: Sample) -> None:
    falls = [farthest(texts, fall(texts, width), lambda trial: trial.relative_flops >= 0.8) for width in WIDTHS]
    changes = [trial.change for trial in falls]
    fitted = fit(texts, Goal(flops=0.8))
    assert fitted.change == min(changes) < max(changes)
    assert 0.8 <= fitted.relative_flops < 0.82


def test_a_regression_is_fitted_by_correlation() -> None:
    fitted = fit(sample(packed(outputs=1)), Goal(agreement=0.9))
    assert fitted.agreement >= 0.9 and fitted.relative_flops < 0.9


def test_a_correlation_is_lost_by_the_square_of_the_change() -> None:
    texts = sample(packed(outputs=1))
    many = farthest(texts, fall(texts, WIDTHS[1]), lambda trial: trial.agreement >= 0.9)
    most = many.change * math.sqrt(0.1 / (1 - many.assured))
    allows = limit(texts, Goal(agreement=0.9))
    assert allows(replace(many, change=0.999 * most)) and not allows(replace(many, change=1.001 * most))


def test_judging_gives_what_a_reader_needs(texts: Sample) -> None:
    judged = texts.judge([0.0, 0.0, 0.8, math.inf])
    assert judged.agreement.texts == 96 and len(judged.kept_per_layer) == 4
    assert judged.kept_per_layer[0] == pytest.approx(judged.mean_length)
    assert 0 < judged.relative_flops < judged.engine_relative_flops <= 1


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"agreement": 99.0}, "agreement = 99 must be above 50%"),
        ({"agreement": 0.5}, "above 50%"),
        ({"agreement": math.nan}, "above 50%"),
        ({"flops": 0.0}, "target_flops = 0 must be above 0"),
        ({"flops": 1.5}, "target_flops = 1.5"),
        ({}, "give exactly one"),
        ({"agreement": 0.9, "flops": 0.9}, "give exactly one"),
    ],
)
def test_goals_without_sense(wanted: dict[str, float], says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("(", "\\(")):
        Goal(**wanted)


def test_a_cost_out_of_reach_is_refused(texts: Sample) -> None:
    with pytest.raises(ConfigError, match="target_flops = 0.2 cannot be reached"):
        check_reachable(texts.shape, texts.lengths.tolist(), Goal(flops=0.2))
    check_reachable(texts.shape, texts.lengths.tolist(), Goal(flops=0.9))
    check_reachable(texts.shape, texts.lengths.tolist(), Goal(agreement=0.99))
