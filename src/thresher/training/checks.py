"""What a training run refuses before any work."""

from typing import Any

from thresher.config import TrainConfig
from thresher.errors import ConfigError, DataError
from thresher.models.classes import check_class_order, check_classes
from thresher.tasks.task import Task
from thresher.training.method import Method


def check_given(model: Any, task: Task, config: TrainConfig, method: type[Method], *, new_head: bool) -> None:
    """Model, rows and settings must fit together; a new head may have been called anything."""
    if method.name != config.method:
        raise ConfigError(
            f"method = '{config.method}', but the trainer was given '{method.name}'; "
            "pass method=thresher.baselines.method_named(config.method)"
        )
    if model.config.num_labels != task.spec.num_labels:
        raise DataError(
            f"the model has {model.config.num_labels} outputs, but task {task.spec.name} needs "
            f"{task.spec.num_labels}; load it with num_labels={task.spec.num_labels}"
        )
    check = check_class_order if new_head else check_classes
    check(model, task.spec.labels, order=task.spec.class_order)
    for name, rows in (("train", task.train), ("selection", task.selection)):
        if not rows:
            raise DataError(f"task {task.spec.name} has no rows in its {name} split; training needs both")


def check_parts(config: TrainConfig, *, rows: int, processes: int) -> None:
    """Every process and every part of an accumulated step needs a row."""
    if min(config.batch_size, rows) < processes * config.accumulate:
        raise ConfigError(
            f"batch_size = {config.batch_size} and {rows} training rows cannot be split "
            f"into {processes} processes x accumulate = {config.accumulate}"
        )
