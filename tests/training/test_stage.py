"""One stage: how many steps, which batches, which learning rate, and micro-batches that change nothing."""

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.training.tiny import Recorder, gated_model, keyword_rows, quick, tiny_tokenizer, value_task, weights_of
from thresher.baselines import method_named
from thresher.errors import PredictionError
from thresher.models.attach import encoder_shape, gates_of
from thresher.tasks.encode import Encoded, encode
from thresher.tasks.task import Task
from thresher.training.objective import Loss, Losses, finetune_loss, hard_loss
from thresher.training.optimizer import make_optimizer
from thresher.training.snapshot import STATE
from thresher.training.stage import (
    LoopSettings,
    StagePlan,
    _schedule,
    _seed_for,
    _shares,
    _step_batches,
    check_passed_over,
    run_stage,
    total_steps,
)
from thresher.training.targets import Targets
from thresher.training.trainer import Trainer

SETTINGS = LoopSettings(
    batch_size=8, accumulate=1, warmup=0.1, clip=1.0, max_steps=None, bf16=False, seed=0, dropout=True
)


def rows_of(count: int) -> list[Encoded]:
    return encode(tiny_tokenizer(), keyword_rows(count, seed=1), max_length=None, positions=None).rows


def train(model: Any, plan: StagePlan, settings: LoopSettings, **changes: Any) -> Recorder:
    """Run a stage on 48 rows; the optimizer has a plain, constant configuration."""
    recorder = Recorder()
    optimizer = changes.pop("optimizer", None) or make_optimizer(model, quick(), lr=1e-3, learn_thresholds=False)
    arguments: dict[str, Any] = {"start": 0, "checkpoints": set(), "on_checkpoint": lambda step: None} | changes
    arguments = {"passed_over": torch.zeros(()), "after_step": lambda step, metric: None} | arguments
    run_stage(
        plan,
        model,
        optimizer,
        rows_of(48),
        pad_id=0,
        settings=settings,
        accelerator=Accelerator(cpu=True),
        progress=recorder,
        **arguments,
    )
    return recorder


# --- arithmetic ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "epochs", "max_steps", "steps"),
    [
        (80, 3.0, None, 30),
        (87, 3.0, None, 30),  # the incomplete batch of an epoch is no step
        (80, 0.25, None, 3),
        (80, 0.0, None, 0),
        (3, 2.0, None, 2),  # fewer rows than a batch: one step an epoch
        (80, 3.0, 7, 7),
        (80, 0.5, 7, 5),
    ],
)
def test_total_steps(rows: int, epochs: float, max_steps: int | None, steps: int) -> None:
    assert total_steps(rows, epochs, replace(SETTINGS, max_steps=max_steps)) == steps


def test_schedule_rises_and_then_falls_to_nearly_zero() -> None:
    rates = [_schedule(step, 100, 0.1) for step in range(100)]
    assert rates[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert rates[10] == 1.0
    drops = [before - after for before, after in zip(rates[10:], rates[11:], strict=False)]
    assert drops == pytest.approx([1 / 90] * 89)
    assert rates[99] == pytest.approx(1 / 90)
    assert _schedule(100, 100, 0.1) == 0.0


@given(steps=st.integers(1, 300), warmup=st.floats(0, 1))
def test_schedule_never_stops_or_overshoots(steps: int, warmup: float) -> None:
    rates = [_schedule(step, steps, warmup) for step in range(steps)]
    assert all(0 < rate <= 1 for rate in rates)
    assert max(rates) == 1.0
    peak = rates.index(1.0)
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)


@pytest.mark.parametrize(
    ("asked", "labelled", "found"), [(None, True, True), (None, False, False), (True, False, True)]
)
def test_dropout_is_for_rows_with_labels_unless_asked_for(asked: bool | None, labelled: bool, found: bool) -> None:
    settings = LoopSettings.of(quick(dropout=asked), bf16=False, labelled=labelled)
    assert settings.dropout == found
    seen: list[bool] = []
    model = gated_model()

    def loss(model: Any, batch: dict[str, Tensor]) -> Loss:
        seen.append(model.training)
        return finetune_loss(model, batch)

    plan = StagePlan(name="hard", steps=3, loss=loss)
    train(model, plan, replace(SETTINGS, dropout=found), checkpoints={1}, on_checkpoint=lambda step: 0.5)
    assert seen == [found] * 3


@given(count=st.integers(0, 60), parts=st.integers(1, 12))
def test_shares_are_even_and_lose_nothing(count: int, parts: int) -> None:
    items = list(range(count))
    shares = _shares(items, parts)
    assert len(shares) == parts
    assert [item for share in shares for item in share] == items
    sizes = {len(share) for share in shares}
    assert max(sizes) - min(sizes) <= 1


def test_shares_by_hand() -> None:
    assert _shares([7, 3, 9, 1, 5], 2) == [[7, 3], [9, 1, 5]]


def test_every_step_has_its_own_seed() -> None:
    seeds = {
        _seed_for(seed, stage, step, rank)
        for seed in range(3)
        for stage in ("finetune", "soft", "hard")
        for step in range(50)
        for rank in range(2)
    }
    assert len(seeds) == 3 * 3 * 50 * 2
    assert _seed_for(1, "soft", 2, 0) == _seed_for(1, "soft", 2, 0)
    assert all(0 <= seed < 2**63 for seed in seeds)


# --- batches ---------------------------------------------------------------------------------------------------------


def test_batches_depend_on_the_seed_only() -> None:
    rows = rows_of(50)
    first = list(_step_batches(rows, 20, start=0, settings=SETTINGS))
    again = list(_step_batches(rows, 20, start=0, settings=SETTINGS))
    other = list(_step_batches(rows, 20, start=0, settings=replace(SETTINGS, seed=1)))
    assert first == again
    assert first != other
    assert [step for step, _ in first] == list(range(20))
    assert all(len(batch) == 8 for _, batch in first)
    for epoch in range(3):  # 50 rows make 6 whole batches; no row comes twice in an epoch
        chosen = [row for _, batch in first[6 * epoch : 6 * epoch + 6] for row in batch]
        assert len(set(chosen)) == 48
    assert first[:6] != [(step - 6, batch) for step, batch in first[6:12]]


def test_batches_from_the_middle_are_the_rest() -> None:
    rows = rows_of(50)
    whole = list(_step_batches(rows, 20, start=0, settings=SETTINGS))
    for start in (1, 6, 13, 20):
        assert list(_step_batches(rows, 20, start=start, settings=SETTINGS)) == whole[start:]


def test_fewer_rows_than_a_batch() -> None:
    found = list(_step_batches(rows_of(3), 4, start=0, settings=SETTINGS))
    assert [sorted(batch) for _, batch in found] == [[0, 1, 2]] * 4


# --- the loop --------------------------------------------------------------------------------------------------------


def hard_with_teacher(model: Any) -> Callable[[nn.Module, dict[str, Tensor]], Loss]:
    def loss(wrapped: nn.Module, batch: dict[str, Tensor]) -> Loss:
        return hard_loss(wrapped, batch, config=quick(), shape=encoder_shape(model), teacher=None)

    return loss


@pytest.mark.parametrize("stage", ["finetune", "hard"])
@pytest.mark.parametrize("accumulate", [3, 4])
def test_micro_batches_make_the_same_step(stage: str, accumulate: int) -> None:
    """Plain gradient descent, because Adam's first step is blind to the gradient's size; 3 parts are uneven."""

    def step(parts: int) -> tuple[dict[str, Tensor], Recorder]:
        model = gated_model(dropout=0.0)
        gates_of(model).set_mode("off" if stage == "finetune" else "hard")
        targets = Targets(torch.randn(48, 2, generator=torch.Generator().manual_seed(5)))
        loss = finetune_loss if stage == "finetune" else hard_with_teacher(model)
        plan = StagePlan(name=stage, steps=1, loss=loss, targets=None if stage == "finetune" else targets)
        settings = replace(SETTINGS, accumulate=parts, clip=1e9)
        recorder = train(model, plan, settings, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
        return weights_of(model), recorder

    start, (whole, one), (split, many) = weights_of(gated_model(dropout=0.0)), step(1), step(accumulate)
    moved = max(float((whole[name] - start[name]).abs().nan_to_num().max()) for name in start)
    assert moved > 0.01
    for name in whole:
        torch.testing.assert_close(
            split[name], whole[name], atol=1e-6, rtol=1e-5, msg=lambda text, n=name: f"{n}: {text}"
        )
    assert many.losses(stage) == pytest.approx(one.losses(stage), rel=1e-5)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("bf16", [False, True])
def test_a_loss_in_parts_makes_the_same_step_with_one_part_in_memory_at_a_time(accumulate: int, bf16: bool) -> None:
    happened: list[str] = []

    def step(loss: Callable[[nn.Module, dict[str, Tensor]], Losses]) -> tuple[dict[str, Tensor], Recorder]:
        model = gated_model(dropout=0.0)
        gates_of(model).set_mode("off")
        model.classifier.register_full_backward_hook(lambda *_: happened.append("backward"))
        plan = StagePlan(name="finetune", steps=1, loss=loss)
        settings = replace(SETTINGS, clip=1e9, accumulate=accumulate, bf16=bf16)
        recorder = train(model, plan, settings, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
        return weights_of(model), recorder

    def in_parts(model: nn.Module, batch: dict[str, Tensor]) -> Iterator[Loss]:
        for share in (0.25, 0.75):
            happened.append("forward")
            yield Loss(total=share * finetune_loss(model, batch).total)

    whole, one = step(finetune_loss)
    happened.clear()
    split, many = step(in_parts)
    assert happened == ["forward", "backward"] * 2 * accumulate
    off = 1e-2 if bf16 else 1e-6
    for name in whole:
        torch.testing.assert_close(split[name], whole[name], atol=off, rtol=10 * off)
    assert many.losses("finetune") == pytest.approx(one.losses("finetune"), rel=10 * off)


def test_cudnn_does_not_compute_attention_in_training() -> None:
    """Its gradients are not finite at some lengths. Other choices stay, and this one comes back after the step."""
    seen: list[bool] = []

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Loss:
        seen.append(torch.backends.cuda.cudnn_sdp_enabled())
        return finetune_loss(model, batch)

    before = torch.backends.cuda.cudnn_sdp_enabled()
    model = gated_model()
    gates_of(model).set_mode("off")
    train(model, StagePlan(name="finetune", steps=2, loss=loss), SETTINGS)
    assert seen == [False, False] and torch.backends.cuda.cudnn_sdp_enabled() is before


def test_training_follows_the_schedule_and_gives_the_rates_back() -> None:
    model = gated_model()
    gates_of(model).set_mode("off")
    optimizer = make_optimizer(model, quick(), lr=0.5, learn_thresholds=False)
    seen, told = [], []
    plan = StagePlan(
        name="finetune",
        steps=6,
        loss=finetune_loss,
        before_step=told.append,
        after_step=lambda step, flops, kept: seen.append((step, flops, optimizer.param_groups[0]["lr"])),
    )
    train(model, plan, replace(SETTINGS, warmup=0.5, clip=1e-9), optimizer=optimizer)
    assert told == pytest.approx([step / 6 for step in range(6)])
    assert [(step, flops) for step, flops, _ in seen] == [(step, None) for step in range(6)]
    assert [rate for _, _, rate in seen] == pytest.approx([0.5 * _schedule(step, 6, 0.5) for step in range(6)])
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5]


def test_checkpoints_come_after_their_steps_and_their_metric_is_shown() -> None:
    model = gated_model()
    gates_of(model).set_mode("off")
    asked: list[int] = []

    def on_checkpoint(step: int) -> float:
        asked.append(step)
        model.eval()  # an evaluation that forgets to switch back must not end training mode
        return 0.25 * step

    training: list[bool] = []

    def loss(wrapped: nn.Module, batch: dict[str, Tensor]) -> Loss:
        training.append(wrapped.training)
        return finetune_loss(wrapped, batch)

    plan = StagePlan(name="finetune", steps=6, loss=loss)
    recorder = train(model, plan, SETTINGS, checkpoints={2, 6}, on_checkpoint=on_checkpoint)
    assert asked == [2, 6]
    assert [numbers["metric"] for _, numbers in recorder.steps] == [None, 0.5, None, None, None, 1.5]
    assert training == [True] * 6


def test_a_stage_that_is_done_does_nothing() -> None:
    model = gated_model()
    before = weights_of(model)
    recorder = train(model, StagePlan(name="finetune", steps=6, loss=finetune_loss), SETTINGS, start=6)
    assert recorder.steps == [] and recorder.begun == []
    assert all(torch.equal(value, before[name]) for name, value in weights_of(model).items())


def test_gradients_are_clipped_over_the_whole_batch() -> None:
    """With plain gradient descent at rate 1 the whole step is exactly as long as the limit."""
    model = gated_model(dropout=0.0)
    gates_of(model).set_mode("off")
    start = weights_of(model)
    plan = StagePlan(name="finetune", steps=1, loss=finetune_loss)
    settings = replace(SETTINGS, accumulate=2, clip=0.01)
    train(model, plan, settings, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
    parts = [(value - start[name]).square().nan_to_num().sum() for name, value in weights_of(model).items()]
    assert math.sqrt(sum(float(part) for part in parts)) == pytest.approx(0.01, rel=1e-3)


# --- gradients that are not finite ------------------------------------------------------------------------------------


def spoiled_task(rows: int, *, spoiled: int) -> Task:
    task = value_task(rows)
    bad = [replace(row, label=math.nan) for row in task.train[:spoiled]]
    return replace(task, train=bad + task.train[spoiled:])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_step_without_finite_gradients_changes_nothing(device: str) -> None:
    """Its batch has a label that is no number; the other steps train, and the run says what happened."""
    said = Recorder()
    model = gated_model(outputs=1, dropout=0.0)
    config = quick(
        max_steps=None, hard_epochs=1.0, soft_epochs=0.0, batch_size=4, lr=1e-3, method="manual", distill=0.0
    )
    trainer = Trainer(
        model,
        tiny_tokenizer(),
        spoiled_task(64, spoiled=1),
        config,
        method=method_named("manual"),
        progress=said,
        device=device,
    )
    before = {name: value.cpu().clone() for name, value in model.state_dict().items()}
    state = trainer.fit()
    after = {name: value.cpu() for name, value in model.state_dict().items()}
    assert all(bool(torch.isfinite(value).all()) for name, value in after.items() if "thresholds" not in name)
    assert any(not torch.equal(after[name], before[name]) for name in after)
    assert state.best_score is not None
    assert "1 of 16 steps were passed over: their gradients were not finite" in said.notes
    assert state.history[-1]["passed_over"] == 1


def test_a_stage_of_spoiled_steps_is_an_error(tmp_path: Path) -> None:
    """At the first evaluation, before anything is saved that a resumed run would take for trained."""
    config = quick(max_steps=None, hard_epochs=1.0, soft_epochs=0.0, batch_size=4, method="manual", distill=0.0)
    trainer = Trainer(
        gated_model(outputs=1),
        tiny_tokenizer(),
        spoiled_task(64, spoiled=64),
        config,
        method=method_named("manual"),
        device="cpu",
        work=tmp_path,
    )
    with pytest.raises(PredictionError, match=r"8 of 8 steps of the hard stage had gradients that are not finite"):
        trainer.fit()
    assert not (tmp_path / STATE).exists()


@pytest.mark.parametrize(
    ("passed_over", "steps", "wrong"), [(0, 1, False), (1, 3, False), (2, 3, True), (10, 100, False), (11, 100, True)]
)
def test_an_accident_and_no_training(passed_over: int, steps: int, wrong: bool) -> None:
    with pytest.raises(PredictionError) if wrong else nullcontext():
        check_passed_over(passed_over, "hard", steps=steps)
