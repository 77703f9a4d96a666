"""Rows without labels in the batches of the hard stage: they come on top, and teach by the dense model alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.test_objective import SOME, batch_of, hard
from tests.training.test_resume import interrupt, train
from tests.training.test_stage import SETTINGS, rows_of
from tests.training.tiny import differing, gated_model, keyword_rows, keyword_task, quick, trainer_for, value_task
from thresher.core.losses import distillation_loss, task_loss
from thresher.errors import DataError, RunError
from thresher.models.attach import gates_of
from thresher.tasks.task import Example, Task, TaskSpec
from thresher.training.objective import taught_loss
from thresher.training.stage import StagePlan, _plan_batches


def beside(task: Task, count: int = 20) -> Task:
    return replace(task, more=[Example(row.text, None, None) for row in keyword_rows(count, seed=7)])


@pytest.mark.parametrize("regression", [False, True])
def test_the_loss_is_the_mean_over_rows(regression: bool) -> None:
    """Of six rows four have labels: these learn from both, the others from the teacher."""
    batch = batch_of(regression=regression)
    outputs = 1 if regression else 2
    logits, targets = torch.randn(2, 6, outputs, generator=torch.Generator().manual_seed(0))
    config = quick(distill=0.25)
    own = {**batch, "labels": batch["labels"][:4], "targets": targets}
    task = task_loss(logits[:4], own["labels"])
    first, more = (
        distillation_loss(logits[part], targets[part], temperature=config.distill_temperature)
        for part in (slice(0, 4), slice(4, 6))
    )
    wanted = (4 * (0.75 * task + 0.25 * first) + 2 * more) / 6
    torch.testing.assert_close(taught_loss(logits, own, config=config), wanted)


def test_the_target_is_held_on_rows_with_labels() -> None:
    batch, model = batch_of(), gated_model(thresholds=SOME, dropout=0.0)
    targets = torch.zeros(6, 2)
    own = {name: value[:4] for name, value in batch.items()}
    found = hard(model, {**batch, "labels": batch["labels"][:4]}, logits=targets)
    alone = hard(model, own, logits=targets[:4])
    assert found.flops is not None and found.kept is not None and alone.flops is not None and alone.kept is not None
    torch.testing.assert_close(found.flops, alone.flops)
    torch.testing.assert_close(found.kept, alone.kept)
    assert not torch.equal(found.kept, hard(model, batch, logits=targets).kept)  # type: ignore[arg-type]


def test_they_come_on_top_of_the_batches_there_are() -> None:
    rows, more = rows_of(50), rows_of(20)
    plain = StagePlan(name="hard", steps=12, loss=lambda model, batch: pytest.fail("not asked"))
    with_more = replace(plain, more=more, more_in_batch=5)
    found = list(_plan_batches(with_more, rows, start=0, settings=SETTINGS))
    assert [part[:2] for part in found] == [part[:2] for part in _plan_batches(plain, rows, start=0, settings=SETTINGS)]
    assert list(_plan_batches(with_more, rows, start=7, settings=SETTINGS)) == found[7:]
    for epoch in range(3):  # 20 rows make 4 batches of 5
        assert sorted(row for _, _, part in found[4 * epoch : 4 * epoch + 4] for row in part) == list(range(50, 70))


@pytest.mark.parametrize("method", ["thresher", "ltp", "dense", "lat"])
def test_all_methods_learn_from_them(method: str) -> None:
    """The control gets the same rows, so that what is left of a difference is due to pruning."""
    found = []
    for task in (keyword_task(), beside(keyword_task())):
        model = gated_model(dropout=0.0)
        target = 1.0 if method == "dense" else 0.6
        config = quick(
            method=method, target_flops=target, max_steps=3, **({"search_rounds": 0} if method == "lat" else {})
        )
        trainer = trainer_for(model, config, task=task)
        trainer.fit()
        assert len(trainer.teacher_logits) == len(task.train) + len(task.more)
        found.append(model.state_dict())
    assert "classifier.weight" in differing(*found)


def test_they_teach_where_labelled_rows_do_not_distil() -> None:
    trainer = trainer_for(gated_model(), quick(max_steps=2, distill=0.0), task=beside(keyword_task()))
    trainer.fit()
    assert len(trainer.teacher_logits) == 84


@pytest.mark.parametrize(("ratio", "wanted"), [(0.5, 4), (1.0, 8), (0.01, 1)])
def test_how_many_there_are(ratio: float, wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from thresher.training import trainer as module

    plans: list[Any] = []
    plain = module.run_stage
    monkeypatch.setattr(module, "run_stage", lambda plan, *args, **kw: (plans.append(plan), plain(plan, *args, **kw)))
    trainer_for(gated_model(), quick(max_steps=2, more_ratio=ratio), task=beside(keyword_task())).fit()
    assert [(plan.name, plan.more_in_batch) for plan in plans] == [("soft", 0), ("hard", wanted)]


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    config, task = quick(max_steps=5, accumulate=2, method="thresher"), beside(keyword_task())
    whole, state, _ = train(None, config=config, finetune=False, task=task)
    interrupt(tmp_path, "hard", 7, config=config, finetune=False, task=task)
    weights, again, _ = train(tmp_path, resume=True, seed=9, config=config, finetune=False, task=task)
    assert differing(weights, whole) == [] and again.history == state.history
    with pytest.raises(RunError, match="had other settings for: data;"):
        train(tmp_path, resume=True, config=config, finetune=False, task=beside(keyword_task(), 21))


def test_numbers_learn_from_them_too() -> None:
    trainer = trainer_for(gated_model(outputs=1), quick(max_steps=2), task=beside(value_task()))
    trainer.fit()
    assert gates_of(trainer.model).mode == "hard" and trainer.teacher_logits.shape == (84, 1)


def test_a_task_that_has_no_use_for_them_is_refused() -> None:
    spec = TaskSpec(name="e", text_column="text", pair_column=None, labels=(), metrics=("spearman",), means="embedding")
    rows = [Example("good", None, None)]
    with pytest.raises(DataError, match="need none; put them there"):
        trainer_for(gated_model(), quick(), task=Task(spec, rows, rows, {}, "", more=rows))
