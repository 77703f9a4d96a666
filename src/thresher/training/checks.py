"""What a training run refuses before any work."""

from typing import Any

from thresher.config import TrainConfig
from thresher.errors import ConfigError, DataError
from thresher.models.classes import check_class_order, check_classes
from thresher.tasks.more import check_beside
from thresher.tasks.task import Task, labelled
from thresher.training.method import Method
from thresher.training.registry import method_named


def check_given(
    model: Any, task: Task, config: TrainConfig, method: type[Method] | None, *, finetune: bool
) -> type[Method]:
    """Model, rows and settings must fit together; a new head, about to be trained, may have been called anything.

    Returns the method, by default the one that `config` names."""
    spec, method = task.spec, method or method_named(config.method)
    if method.name != config.method:
        raise ConfigError(
            f"method = '{config.method}', but the trainer was given '{method.name}'; "
            "leave method= out: the configuration names it"
        )
    if spec.num_labels and model.config.num_labels != spec.num_labels:
        raise DataError(
            f"the model has {model.config.num_labels} outputs, but task {spec.name} needs "
            f"{spec.num_labels}; load it with num_labels={spec.num_labels}"
        )
    if spec.labels:
        check = check_class_order if finetune else check_classes
        check(model, spec.labels, order=spec.class_order)
    for name, rows in (("train", task.train), ("selection", task.selection)):
        if not rows:
            raise DataError(f"task {spec.name} has no rows in its {name} split; training needs both")
        if spec.means == "score" and rows[0].pair is None:
            raise DataError(f"task {spec.name} is for a reranker, whose rows are a query and a document; name both")
    labelled(task.train, name=spec.name)  # all rows of a split have labels, or none
    if labelled(task.selection, name=spec.name):
        spec.truth(task.selection)  # refuses rows that nothing can be judged by
    if task.more:
        check_beside(task)
    if finetune and spec.training_rows(task.train)[0].label is None:
        raise ConfigError(
            f"finetune trains a head on labels, and the training rows of task {spec.name} have none to train on; "
            "give a model whose head is trained, with finetune=False (--finetune never)"
        )
    return method


def check_parts(config: TrainConfig, *, rows: int, processes: int) -> None:
    """Every process and every part of an accumulated step needs a row."""
    if min(config.batch_size, rows) < processes * config.accumulate:
        raise ConfigError(
            f"batch_size = {config.batch_size} and {rows} training rows cannot be split "
            f"into {processes} processes x accumulate = {config.accumulate}"
        )
