"""What a trainer refuses before any work, and what it says of the rows and of the dense model."""

from dataclasses import replace

import pytest
import torch

from tests.training.tiny import (
    CLASSES,
    LAYERS,
    Recorder,
    gated_model,
    keyword_task,
    quick,
    stock_model,
    trainer_for,
    value_task,
)
from thresher.errors import ConfigError, DataError, ModelError
from thresher.models.attach import encoder_shape


def test_a_wrong_number_of_outputs_is_an_error() -> None:
    with pytest.raises(DataError) as error:
        trainer_for(gated_model(outputs=3))
    assert str(error.value) == (f"the model has 3 outputs, but task {CLASSES.name} needs 2; load it with num_labels=2")


def test_a_model_without_gates_is_an_error() -> None:
    with pytest.raises(ModelError, match="prune_"):
        trainer_for(stock_model())


def test_an_unreachable_target_is_refused_before_training() -> None:
    model = gated_model()
    with pytest.raises(ConfigError, match=r"target_flops = 0.1 cannot be reached: .* leaves 0\.\d+; ask for more"):
        trainer_for(model, quick(target_flops=0.1))
    assert encoder_shape(model).layers == LAYERS


@pytest.mark.parametrize(("batch_size", "rows"), [(8, 3), (8, 5)])
def test_more_micro_batches_than_rows_are_refused_before_training(batch_size: int, rows: int) -> None:
    with pytest.raises(ConfigError, match=rf"{rows} training rows cannot be split into 1 processes x accumulate = 6"):
        trainer_for(gated_model(), quick(batch_size=batch_size, accumulate=6), task=keyword_task(rows))
    trainer_for(gated_model(), quick(batch_size=batch_size, accumulate=rows), task=keyword_task(rows))


def test_long_rows_are_truncated_and_counted() -> None:
    trainer = trainer_for(gated_model(), quick(max_length=8))
    lengths = [len(example.text.split()) + 2 for example in keyword_task().train]
    assert max(trainer.rows.train.lengths) == 8
    assert trainer.rows.train.truncated == sum(length > 8 for length in lengths) > 0


def test_other_classes_are_refused_unless_the_head_is_trained_for_them() -> None:
    model = gated_model()
    model.config.id2label = {0: "awful", 1: "fine"}
    with pytest.raises(ModelError, match="the model's classes are awful, fine, the task's bad, good"):
        trainer_for(model, quick())
    trainer_for(model, quick(), finetune=True)
    assert model.config.id2label == {0: "bad", 1: "good"}


def test_classes_without_names_are_not_named_by_the_alphabet() -> None:
    """LABEL_0 may as well be the class whose name comes last: training would turn the model round in silence."""
    task = keyword_task()
    guessed = replace(task, spec=replace(task.spec, class_order="alphabet"))
    with pytest.raises(ModelError, match="LABEL_0, LABEL_1, those of the rows bad, good, and nothing says which"):
        trainer_for(gated_model(), quick(), task=guessed)
    trainer_for(gated_model(), quick(), task=guessed, finetune=True)
    model = gated_model()
    trainer_for(model, quick(), task=replace(task, spec=replace(task.spec, class_order="user")))
    assert model.config.id2label == {0: "bad", 1: "good"}


def test_classes_in_another_order_are_refused_before_any_work() -> None:
    model = gated_model()
    model.config.id2label = {0: "good", 1: "bad"}
    with pytest.raises(ModelError, match="the model's classes are in the order good, bad, the task's in the order bad"):
        trainer_for(model, quick())


def test_a_dense_model_with_one_answer_is_named() -> None:
    """Nothing can be lost by pruning it, and every drop would be zero."""
    for constant in (True, False):
        model, recorder = gated_model(), Recorder()
        if constant:
            with torch.no_grad():
                model.classifier.weight.zero_()
                model.classifier.bias.copy_(torch.tensor([0.0, 1.0]))
        trainer_for(model, quick(max_steps=1), progress=recorder).fit()
        said = [text for text in recorder.notes if "to every selection row" in text]
        assert len(said) == constant


def test_a_dense_model_below_chance_is_named() -> None:
    """As one whose classes were named the wrong way round would be."""
    model, task = gated_model(), keyword_task()
    judge = trainer_for(model, quick(), task=task).judge
    answers = judge.predict(judge.batches, pruned=False).logits.argmax(dim=-1).tolist()
    wrong = [replace(row, label=1 - answer) for row, answer in zip(task.selection, answers, strict=True)]
    for selection in (wrong, task.selection):
        recorder = Recorder()
        given = replace(task, selection=selection)
        trainer_for(gated_model(), quick(max_steps=1), task=given, progress=recorder).fit()
        assert any("guessing would be on 50.0%" in text for text in recorder.notes) == (selection is wrong)


def test_selection_rows_without_an_order_are_named_once() -> None:
    task = value_task()
    alike = replace(task, selection=[replace(row, label=0.5) for row in task.selection])
    for given in (task, alike):
        recorder = Recorder()
        trainer_for(gated_model(outputs=1), quick(max_steps=1), task=given, progress=recorder).fit()
        said = [text for text in recorder.notes if "all have the label 0.5, in which there is no order" in text]
        assert len(said) == (given is alike)
