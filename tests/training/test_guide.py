"""What a guide decides in a training run, and that the trainer ends by its word alone."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.training.tiny import Recorder, gated_model, quick, trainer_for, weights_of
from thresher.training.guide import Guide, Stopped

STEPS = 4
CONFIG = quick(method="thresher", max_steps=STEPS, evals_per_stage=2)


class Asked(Guide):
    """Remembers what it was asked, and gives a reason the given time."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.asked: list[tuple[str, bool]] = []
        self._stop_at = stop_at

    def reason_to_stop(self, stage: str, score: float | None) -> str | None:
        self.asked.append((stage, score is not None))
        return "enough" if len(self.asked) == self._stop_at else None


def test_it_is_asked_after_every_step_but_the_last_of_a_stage() -> None:
    guide, seen = Asked(), Recorder()
    trainer_for(gated_model(), CONFIG, finetune=True, guide=guide, progress=seen).fit()
    searched = len([name for name, _ in seen.steps if name == "shares"])
    assert searched > 0  # for the target, before the hard stage
    finetune = [("finetune", False), ("finetune", True), ("finetune", False)]  # the second step is evaluated
    hard = [("hard", step == STEPS) for step in range(1, 2 * STEPS)]  # it has the soft stage's steps too
    assert guide.asked == finetune + [("hard", False)] * searched + hard


@pytest.mark.parametrize(("stop_at", "stage", "times"), [(2, "finetune", 2), (STEPS, "shares", 1)])
def test_its_reason_ends_training_at_once(stop_at: int, stage: str, times: int) -> None:
    seen = Recorder()
    trainer = trainer_for(gated_model(), CONFIG, finetune=True, guide=Asked(stop_at), progress=seen)
    with pytest.raises(Stopped, match="enough") as stopped:
        trainer.fit()
    assert stopped.value.reason == "enough"
    steps = [name for name, _ in seen.steps if name != "teacher"]
    assert steps[-1] == stage and steps.count(stage) == times


def test_it_gives_first_weights_and_teacher_logits_after_the_dense_model_is_the_teacher() -> None:
    class Other(Guide):
        def first_weights(self) -> dict[str, Tensor]:
            return {"classifier.bias": torch.tensor([7.0, -7.0])}

        def teacher_logits(self, predict: Callable[[], Tensor]) -> Tensor:
            return 0 * predict() + 3

    model = gated_model()
    dense = weights_of(model)
    trainer = trainer_for(model, quick(method="thresher", max_steps=1), guide=Other())
    trainer.fit()
    assert torch.equal(trainer.dense_weights()["classifier.bias"], dense["classifier.bias"])
    assert model.classifier.bias.tolist() == pytest.approx([7.0, -7.0], abs=0.1)  # but for two steps
    assert set(trainer.teacher_logits.flatten().tolist()) == {3.0}
