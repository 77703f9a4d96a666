"""The trainer's parts: it repeats itself, each stage does its own, the right checkpoint is kept, families."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.training.tiny import (
    LAYERS,
    Recorder,
    differing,
    gated_model,
    keyword_task,
    quick,
    tiny_tokenizer,
    tokenizer_for,
    trainer_for,
    value_task,
    weights_of,
)
from thresher.config import RECIPES, TrainConfig
from thresher.models.attach import gates_of
from thresher.models.predict import Predictions
from thresher.tasks.encode import encode, padded_batches
from thresher.training import trainer as trainer_module
from thresher.training.budget import measured_flops
from thresher.training.method import Ltp

# --- repetition ------------------------------------------------------------------------------------------------------


def short_run(*, seed: int = 0, **changes: Any) -> dict[str, Tensor]:
    model = gated_model()
    trainer_for(model, quick(seed=seed, max_steps=3, **changes), finetune=True).fit()
    return weights_of(model)


def test_the_same_seed_gives_the_same_model_to_the_bit() -> None:
    torch.manual_seed(1)
    first = short_run()
    torch.manual_seed(2)  # what the caller did with random numbers before is of no consequence
    assert differing(short_run(), first) == []
    other = differing(short_run(seed=1), first)
    assert "bert.thresher_gates.thresholds" in other and "classifier.weight" in other


def test_accumulation_is_nearly_the_same_run() -> None:
    """Dropout masks differ, and the soft stage's price is per micro-batch; the thresholds must still agree closely."""
    whole, split = short_run(), short_run(accumulate=4)
    ours, theirs = (run["bert.thresher_gates.thresholds"][:3] for run in (split, whole))
    torch.testing.assert_close(ours, theirs, atol=0.05, rtol=0.1)


# --- stages ----------------------------------------------------------------------------------------------------------


def test_each_stage_has_its_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[float, bool, str]] = []
    model = gated_model()
    original = trainer_module.make_optimizer

    def spy(model: Any, config: TrainConfig, *, lr: float, learn_thresholds: bool) -> Any:
        made.append((lr, learn_thresholds, gates_of(model).mode))
        return original(model, config, lr=lr, learn_thresholds=learn_thresholds)

    monkeypatch.setattr(trainer_module, "make_optimizer", spy)
    trainer_for(model, quick(max_steps=1, lr=0.002, hard_lr=0.001), finetune=True).fit()
    assert made == [(0.002, False, "off"), (0.002, True, "soft"), (0.001, False, "hard")]


def test_the_controller_holds_the_target_in_the_hard_stage() -> None:
    """log g += 0.1 (measured - target) after every step, the target being what training rows cost where selection rows
    cost 0.6; a tenth before the end it is searched for anew, and rests."""
    thresholds: list[float] = []
    flops: list[float] = []

    class Watch(Recorder):
        def begin(self, name: str, *, total: int, done: int = 0) -> None:
            super().begin(name, total=total, done=done)
            if name == "hard":
                thresholds.append(gates_of(model).thresholds[2].item())

        def step(self, **numbers: float | None) -> None:
            super().step(**numbers)
            if self.stage == "hard":
                thresholds.append(gates_of(model).thresholds[2].item())
                flops.append(numbers["flops"] or math.nan)

    model = gated_model()
    trainer = trainer_for(model, quick(max_steps=20, target_flops=0.6), progress=Watch())
    trainer.fit()
    assert isinstance(trainer.method, Ltp)
    target = 0.6 + trainer.method._surplus
    assert target == pytest.approx(0.6, abs=0.05)
    moves = [math.log(after / before) for before, after in zip(thresholds, thresholds[1:], strict=False)]
    assert moves[:18] == pytest.approx([0.1 * (measured - target) for measured in flops[:18]], abs=1e-5)
    assert max(abs(move) for move in moves[:18]) > 1e-3
    assert moves[19] == 0.0


def test_the_best_fine_tuned_checkpoint_becomes_the_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores that fall from one evaluation to the next: the first checkpoint is the teacher, not the last."""
    model = gated_model()
    trainer = trainer_for(model, quick(max_steps=4), finetune=True)
    seen: list[dict[str, Tensor]] = []

    def falling(found: Predictions) -> dict[str, float]:
        seen.append(weights_of(model))
        return {"score": 1.0 - 0.1 * len(seen)} | ({} if found.kept is None else {"relative_flops": 0.6})

    monkeypatch.setattr(trainer.judge, "score", falling)
    state = trainer.fit()
    assert [row["score"] for row in state.history[:2]] == pytest.approx([0.9, 0.8])
    assert not torch.equal(seen[0]["classifier.weight"], seen[1]["classifier.weight"])
    dense = trainer.dense_weights()
    assert all(torch.equal(value, seen[0][name]) for name, value in dense.items())
    # The third evaluation is the dense model's own, and it is that checkpoint too.
    assert differing(seen[2], seen[0]) == []
    # The hard stage scores 0.5 and 0.4: its first checkpoint is what the model ends as.
    assert differing(weights_of(model), seen[5]) == []


def test_a_model_with_a_head_is_its_own_teacher() -> None:
    model = gated_model()
    start = weights_of(model)
    trainer, recorder = trainer_for(model, quick(max_steps=1)), Recorder()
    trainer.progress = recorder
    state = trainer.fit()
    assert [row["stage"] for row in state.history] == ["soft", "hard"]
    assert "finetune" not in [name for name, _, _ in recorder.begun]
    dense = trainer.dense_weights()
    assert all(torch.equal(value, start[name]) for name, value in dense.items())
    assert {*start} - {*dense} == {"bert.thresher_gates.thresholds"}


def test_the_temperature_falls_geometrically() -> None:
    class Watch(Recorder):
        def step(self, **numbers: float | None) -> None:
            super().step(**numbers)
            if self.stage == "soft":
                temperatures.append(gates_of(model).temperature)

    temperatures: list[float] = []
    model = gated_model()
    trainer_for(model, quick(max_steps=8, temperature=0.4, final_temperature=0.04), progress=Watch()).fit()
    assert len(temperatures) == 8 and temperatures[0] == pytest.approx(0.4)
    ratios = [after / before for before, after in zip(temperatures, temperatures[1:], strict=False)]
    assert ratios == pytest.approx([ratios[0]] * 7) and ratios[0] < 1
    assert 0.04 * 0.999 <= temperatures[-1] <= 0.04 / ratios[0] * 1.001


def test_no_soft_and_no_hard_steps_still_meet_the_target() -> None:
    model = gated_model()
    before = weights_of(model)
    state = trainer_for(model, quick(soft_epochs=0.0, hard_epochs=0.0, target_flops=0.6)).fit()
    assert differing(weights_of(model), before) == ["bert.thresher_gates.thresholds"]
    assert state.best_score is not None and gates_of(model).mode == "hard"
    rows = padded_batches(encode(tiny_tokenizer(), keyword_task().train, max_length=32, positions=None), pad_id=0)
    assert measured_flops(model, rows) == pytest.approx(0.6, abs=0.01)


def test_the_paper_recipe_runs_as_written() -> None:
    """Plain ramp in the paper's scale, no FLOPs target: thresholds move in the soft stage and only there."""
    literal = gates_of(gated_model(**RECIPES["paper"]["prune"]))
    assert literal.config.scale == "paper"
    assert literal.thresholds.tolist() == pytest.approx([0.0025, 0.005, 0.0075, 0.01])
    # The paper's 0.01 is for 128 tokens; on ten tokens, with scores near 0.1, its gates would be open to the last bit.
    model = gated_model(**{**RECIPES["paper"]["prune"], "final_threshold": 0.2})
    gates, recorder = gates_of(model), Recorder()
    ramp = gates.thresholds.tolist()
    # The paper's rate of 2e-5 with the paper's thousands of steps; five steps need a larger one to be seen.
    config = TrainConfig.recipe_named("paper", precision="fp32", max_steps=5, batch_size=8, threshold_lr=1e-3)
    assert config.target_flops is None and config.soft_mask == "plain" and config.distill == 0
    trainer = trainer_for(model, config, progress=recorder)
    after_soft: list[list[float]] = []
    original = trainer._hard

    def hard() -> None:
        after_soft.append(gates.thresholds.tolist())
        original()

    trainer._hard = hard  # type: ignore[method-assign]
    state = trainer.fit()
    assert [name for name, _, _ in recorder.begun] == ["dense", "soft", "hard"]
    moved = [abs(now - then) for now, then in zip(gates.thresholds.tolist(), ramp, strict=True)]
    assert all(1e-5 < distance < 1e-2 for distance in moved), moved
    assert gates.thresholds.tolist() == after_soft[0]
    assert gates.soft_mask == "plain" and gates.temperature == pytest.approx(1e-3)
    assert state.best_fits
    assert not torch.equal(model.get_input_embeddings().weight, gated_model().get_input_embeddings().weight)


def test_lambda_pulls_thresholds_up() -> None:
    """A dear token is a dropped token: with a large lambda every threshold ends above its start."""
    model = gated_model(ramp="plain", collapse_last=False)
    start = gates_of(model).thresholds.clone()
    config = quick(target_flops=None, lambda_=100.0, max_steps=5, threshold_lr=1e-2)
    trainer_for(model, config).fit()
    assert (gates_of(model).thresholds > start + 0.01).all()


@pytest.mark.parametrize("states", ["first_token", "kept", "embeddings"])
@pytest.mark.parametrize("method", ["ltp", "thresher", "dense"])
def test_hidden_distillation_changes_the_hard_stage(method: str, states: str) -> None:
    """The control has it, too."""
    own = {"method": method, "target_flops": 1.0 if method == "dense" else 0.6}
    plain, hidden = short_run(**own), short_run(**own, distill_hidden=5.0, distill_states=states)
    assert any("encoder" in name for name in differing(plain, hidden))


# --- which checkpoint is kept ----------------------------------------------------------------------------------------


def considered(*found: tuple[float, float], target: float | None = 0.5) -> tuple[float | None, bool, int | None]:
    """Show (score, relative FLOPs) one after the other; returns the best score, whether it fits, and which one."""
    price: dict[str, Any] = {"target_flops": target} if target is not None else {"target_flops": None, "lambda_": 0.1}
    model = gated_model()
    trainer = trainer_for(model, quick(**price))
    for index, (score, flops) in enumerate(found):
        with torch.no_grad():
            model.classifier.bias.fill_(float(index))
        trainer._consider({"score": score, "relative_flops": flops})
    with torch.no_grad():
        model.classifier.bias.fill_(-1.0)
    trainer._restore_best()
    chosen = int(model.classifier.bias[0])
    return trainer.state.best_score, trainer.state.best_fits, chosen


def test_among_those_within_the_target_the_best_score_wins() -> None:
    assert considered((0.7, 0.48), (0.9, 0.5), (0.8, 0.4)) == (0.9, True, 1)


def test_within_the_target_beats_any_score() -> None:
    assert considered((0.99, 0.7), (0.6, 0.5)) == (0.6, True, 1)
    assert considered((0.6, 0.5), (0.99, 0.7)) == (0.6, True, 0)


def test_a_hundredth_over_the_target_still_fits() -> None:
    assert considered((0.6, 0.45), (0.9, 0.5099)) == (0.9, True, 1)
    assert considered((0.6, 0.45), (0.9, 0.5101)) == (0.6, True, 0)


def test_where_none_fits_the_best_score_wins() -> None:
    assert considered((0.7, 0.8), (0.9, 0.9), (0.8, 0.6)) == (0.9, False, 1)


def test_the_later_of_equals_wins_because_it_trained_longer() -> None:
    assert considered((0.7, 0.4), (0.7, 0.5)) == (0.7, True, 1)


def test_without_a_target_only_the_score_counts() -> None:
    assert considered((0.7, 0.2), (0.9, 0.9), (0.8, 0.1), target=None) == (0.9, True, 1)


# --- other tasks, models and precisions ------------------------------------------------------------------------------


def test_regression_is_learned() -> None:
    model = gated_model(outputs=1)
    config = quick(
        max_steps=None, batch_size=16, lr=2e-3, finetune_epochs=12, soft_epochs=2, hard_epochs=4, target_flops=0.6
    )
    trainer = trainer_for(model, config, task=value_task(128), finetune=True)
    state = trainer.fit()
    assert state.dense["pearson"] > 0.8
    found = trainer.judge.evaluate(pruned=True)
    assert found["pearson"] > 0.7
    assert found["score"] == pytest.approx((found["pearson"] + found["spearman"]) / 2)
    assert trainer.teacher_logits.shape == (128, 1)


@pytest.mark.parametrize("name", ["bert", "mpnet", "albert"])
def test_families_train(name: str) -> None:
    model = gated_model(name)
    start = weights_of(model)
    trainer = trainer_for(model, quick(max_steps=2, distill_hidden=0.1), tokenizer=tokenizer_for(name), finetune=True)
    state = trainer.fit()
    assert [row["step"] for row in state.history] == [1, 2] * 3
    still = {known for known, value in weights_of(model).items() if torch.equal(value, start[known])}
    # A key's bias adds the same to every key, so softmax leaves it without gradient; a zero stays without decay.
    frozen = {known for known in still if known.endswith(("word_embeddings.weight", "position_ids", "token_type_ids"))}
    assert {known for known in still - frozen if not known.endswith((".k.bias", "key.bias"))} == set()
    assert len(gates_of(model).thresholds) == LAYERS
    assert abs(measured_flops(model, _train_batches(name)) - 0.6) < 0.1


def _train_batches(name: str) -> Any:
    data = encode(tokenizer_for(name), keyword_task().train, max_length=32, positions=None)
    return padded_batches(data, pad_id=0)


def test_bf16_keeps_scores_and_thresholds_in_float32() -> None:
    seen: dict[str, set[torch.dtype]] = {"scores": set(), "gates": set(), "products": set()}
    steps: list[str] = []

    class Watch(Recorder):
        def step(self, **numbers: float | None) -> None:
            super().step(**numbers)
            trace = gates_of(model).trace
            if trace is not None and self.stage in ("soft", "hard"):  # an evaluation leaves none
                steps.append(self.stage)
                seen["scores"] |= {value.dtype for value in trace.scores}
                if self.stage == "soft":
                    seen["gates"] |= {value.dtype for value in trace.gates}

    model = gated_model()

    def note_dtype(module: Any, inputs: Any, output: Tensor) -> None:
        if module.training:
            seen["products"].add(output.dtype)

    model.bert.encoder.layer[1].intermediate.dense.register_forward_hook(note_dtype)
    trainer = trainer_for(model, quick(precision="bf16", max_steps=3, evals_per_stage=1), progress=Watch())
    trainer.fit()
    assert trainer.precision == "bf16"
    assert set(steps) == {"soft", "hard"}
    assert seen["products"] == {torch.bfloat16}  # or the test proves nothing
    assert seen["scores"] == {torch.float32} and seen["gates"] == {torch.float32}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
