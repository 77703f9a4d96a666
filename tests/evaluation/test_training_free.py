"""The search for thresholds: what it promises holds on a tiny random model, whatever the texts."""

import math
import random

import pytest

from tests.cli import tiny
from thresher.engine.engine import Engine
from thresher.engine.packed import PackedClassifier
from thresher.errors import ConfigError
from thresher.evaluation.training_free import (
    Goal,
    Sample,
    Trial,
    at_cost,
    check_reachable,
    dial,
    fit,
    refine,
    start,
)
from thresher.models.attach import prune_


def packed(outputs: int = 2) -> PackedClassifier:
    import torch
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(
        tiny.classifier_config(tuple(f"class{i}" for i in range(outputs))) if outputs > 1 else tiny.config(num_labels=1)
    ).eval()
    prune_(model)
    found = Engine.from_model(model, tiny.tokenizer(), backend="cpu", dtype="fp32").packed
    assert isinstance(found, PackedClassifier)
    return found


def sample(classifier: PackedClassifier, count: int = 96, *, seed: int = 0) -> Sample:
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


def test_dial_meets_a_cost(texts: Sample) -> None:
    found = dial(texts, start(4), Goal(flops=0.75).allows)
    assert 0.75 <= found.relative_flops < 0.79


def test_dial_where_nothing_is_allowed_prunes_nothing(texts: Sample) -> None:
    assert dial(texts, start(4), lambda trial: False).thresholds == (0, 0, 0, math.inf)


def test_dial_where_all_is_allowed_ends(texts: Sample) -> None:
    found = dial(texts, start(4), lambda trial: True)
    assert found.relative_flops == texts.at([0.0, *[99.0] * 2, math.inf]).relative_flops


@pytest.mark.parametrize("wanted", [0.8, 0.95, 1.0])
def test_fitted_thresholds_keep_the_agreement_at_no_more_cost(texts: Sample, wanted: float) -> None:
    fitted, one = fit(texts, Goal(agreement=wanted))
    assert fitted.agreement >= wanted and one.agreement >= wanted
    assert fitted.relative_flops <= one.relative_flops
    assert fitted.change <= one.change or one.change == 0
    assert fitted.thresholds[-1] == math.inf


def test_a_cost_is_met_with_no_more_change(texts: Sample) -> None:
    fitted, one = fit(texts, Goal(flops=0.8))
    assert fitted.change <= one.change
    assert fitted.relative_flops == pytest.approx(0.8, abs=0.04)


def test_a_regression_is_fitted_by_correlation() -> None:
    fitted, _ = fit(sample(packed(outputs=1)), Goal(agreement=0.9))
    assert fitted.agreement >= 0.9


def test_refining_never_makes_it_worse(texts: Sample) -> None:
    trial = dial(texts, start(4), Goal(flops=0.8).allows)
    better = refine(texts, trial, 1.5)
    assert better.change <= trial.change
    assert better.relative_flops == pytest.approx(trial.relative_flops, abs=0.05)


def test_at_cost_aims_at_the_cost(texts: Sample) -> None:
    trial = dial(texts, start(4), Goal(flops=0.8).allows)
    moved = [*trial.thresholds[:2], 1.5 * trial.thresholds[2], math.inf]
    before, aimed = texts.at(moved).relative_flops, at_cost(texts, moved, 0.8)
    after = texts.at(aimed.thresholds).relative_flops
    assert abs(after - 0.8) < abs(before - 0.8) and after == pytest.approx(0.8, abs=0.03)


def test_judging_gives_what_a_reader_needs(texts: Sample) -> None:
    judged = texts.judge([0.0, 0.0, 0.8, math.inf])
    assert judged.agreement.texts == 96 and len(judged.kept_per_layer) == 4
    assert judged.kept_per_layer[0] == pytest.approx(judged.mean_length)
    assert 0 < judged.relative_flops < judged.engine_relative_flops <= 1


def test_a_standard_error_stays_in_hand() -> None:
    trial = Trial((0.0,), relative_flops=0.8, agreement=1.0, assured=0.985, change=0.1)
    assert not Goal(agreement=0.99).allows(trial)
    assert Goal(agreement=0.98).allows(trial)
    assert Goal(agreement=1.0).allows(trial)  # no number of texts assures it


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
