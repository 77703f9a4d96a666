"""Find the cheapest model whose quality drops at most a given amount, from one dense model.

One full run at a loose target, then a chain of short hard stages, each from the weights and thresholds of the nearest
looser trial (`trial`), at targets that close in on the limit (`plan`). What is taken is decided on the
selection rows with noise considered (`choice`); every trial is on disk as soon as it ends (`store`).
"""

import os
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from thresher.config import SearchConfig, TrainConfig
from thresher.core.heads import OF_TOKENS
from thresher.errors import ConfigError, RunError
from thresher.models.attach import gates_of, prune_, weights_without_gates
from thresher.models.checkpoint import load_dense
from thresher.models.defaults import mean_by_
from thresher.tasks.encode import EncodedSet
from thresher.tasks.said import drop_or_gain
from thresher.tasks.splits import counted
from thresher.tasks.task import Task
from thresher.training.guide import Stopped
from thresher.training.judge import doubts
from thresher.training.progress import Silent
from thresher.training.sample import encoded
from thresher.training.search.plan import Tried, next_target, start_for
from thresher.training.search.store import (
    check_identity,
    check_installed,
    given_up,
    identity_of,
    open_study,
    record,
    requeue_killed,
    shown_number,
    tell,
    waiting,
)
from thresher.training.search.table import Table, hopeless_score, measured, report
from thresher.training.search.trial import (
    DENSE,
    NO_TIME,
    Ended,
    Point,
    Setup,
    baseline,
    first_trial,
    points_of,
    run_trial,
    weights_of,
)
from thresher.training.search.workers import executor_of


@dataclass(frozen=True)
class Found:
    """The chosen model with its gates, the dense weights it is compared with, and everything that was measured."""

    model: Any
    dense: dict[str, Tensor]
    report: dict[str, Any]
    out_of_time: bool  # with more, the same call goes on


def check_settings(settings: SearchConfig, train: TrainConfig) -> None:
    """Refuse, before anything is loaded, what cannot be searched here."""
    check_installed()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if settings.workers > cores:
        raise ConfigError(
            f"workers = {settings.workers} is more than the {counted(cores, 'core')} here; each needs one"
        )
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("a search starts its own processes; run it without accelerate launch, with --workers N")
    if train.method != "thresher":
        raise ConfigError(f"method = '{train.method}': a search is for method thresher; leave the method out")


def search(
    model: Any,
    tokenizer: Any,
    task: Task,
    train: TrainConfig,
    settings: SearchConfig,
    *,
    folder: Path,
    finetune: bool = False,
    device: str | None = None,
    progress: Callable[[], Silent] = Silent,
) -> Found:
    """Search with a model that has gates (see `prune_`), whose weights as they are, or fine-tuned first, are the dense
    model. `folder` keeps the state: a second call with the same arguments goes on from it. `progress` makes what shows
    one trial."""
    check_settings(settings, train)
    gates_of(model).settle(train.method)  # before the settings go to every trial
    setup = Setup(
        folder=folder,
        task=task,
        prune=gates_of(model).config,
        train=train,
        share=settings.trial_share,
        device=device,
        deadline=None if settings.budget_minutes is None else time.time() + 60 * settings.budget_minutes,
        selection=_selection(model, tokenizer, task, train),
    )
    study = open_study(folder)
    check_identity(study, identity_of(setup, settings, model, finetune=finetune))
    start = settings.start_flops
    if not points_of(setup, start):
        _first(setup, study, model, tokenizer, start=start, finetune=finetune, progress=progress)
        logits, dense = baseline(setup)
        rows = counted(len(task.selection), "selection row")
        progress().note(f"dense: score {100 * dense['metrics']['score']:.2f} on {rows}")
        for text in doubts(task, logits, dense["metrics"]):
            progress().note(text)
        _show(measured(setup, settings), settings, {"target": start, "given_up": None, "head": "trial 1"}, progress())
    _chain(setup, study, settings, progress)
    table = measured(setup, settings)
    chosen, dense = _load(setup, table.points[table.choice.index])
    found = report(setup, settings, table, given_up=given_up(study))
    return Found(chosen, dense, found, out_of_time=_time_over(setup))


def _selection(model: Any, tokenizer: Any, task: Task, train: TrainConfig) -> EncodedSet | None:
    if task.spec.means not in OF_TOKENS:
        return None
    return encoded(model, tokenizer, task.spec, task.selection, max_length=train.max_length)


def _first(
    setup: Setup,
    study: Any,
    model: Any,
    tokenizer: Any,
    *,
    start: float,
    finetune: bool,
    progress: Callable[[], Silent],
) -> None:
    progress().note(f"trial 1: the whole recipe at {100 * start:.0f}% of the FLOPs, from the dense model")
    try:
        found = first_trial(setup, model, tokenizer, target=start, finetune=finetune, progress=progress())
    except Stopped as error:
        raise RunError(
            "the minutes were over before the first trial was, so there is nothing to choose from yet; "
            "go on with --resume and more --budget-minutes"
        ) from error
    record(study, target=start, cost=found[0].relative_flops)


def _chain(setup: Setup, study: Any, settings: SearchConfig, progress: Callable[[], Silent]) -> None:
    """Train trials until another would tell nothing new, or trials or time run out."""

    def number(target: float) -> int:
        return shown_number(study, target, first=settings.start_flops)

    for target in requeue_killed(study):
        progress().note(f"resuming: trial {number(target)}, target {target:.3f}, goes on")
    lowest = baseline(setup)[1]["lowest"]
    running: dict[Future[Ended], Any] = {}
    with executor_of(settings.workers) as executor:
        while True:
            while len(running) < settings.workers and not _time_over(setup):
                table = measured(setup, settings)
                pending = [trial.params["target"] for trial in running.values()]
                if not waiting(study) and not _enqueue(study, table, settings, pending=pending, lowest=lowest):
                    break
                trial = study.ask()
                target, start = trial.suggest_float("target", 0.0, 1.0), trial.user_attrs["start"]
                hopeless = hopeless_score(setup, settings, table)
                shown = progress() if settings.workers == 1 else None  # a worker has no screen
                running[executor.submit(run_trial, setup, target, start, hopeless, shown)] = trial
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                trial, ended = running.pop(future), future.result()
                tell(study, trial, cost=ended.cost, hopeless=ended.given_up != NO_TIME)
                target = trial.params["target"]
                head = f"trial {number(target)} from {trial.user_attrs['start']:.3f}"
                said = {"head": head, "target": target, "given_up": ended.given_up}
                _show(measured(setup, settings), settings, said, progress())


def _enqueue(study: Any, table: Table, settings: SearchConfig, *, pending: list[float], lowest: float) -> bool:
    """Queue the next trial; False when there is nothing more to try."""
    trained = [point.target for point in table.points if point.trained]
    lost = given_up(study)
    if len(trained) + len(lost) + len(pending) >= settings.max_trials:
        return False
    tried = [Tried(target, good=False) for target in lost]
    for point, drop in zip(table.points, table.expected, strict=True):
        good = bool(drop <= settings.max_drop)
        if point.trained:
            tried.append(Tried(point.target, good))
        elif good:  # closes the gap from above as well as a trained one does
            tried.append(Tried(point.relative_flops, good))
    # A little above what no threshold reaches: there the controller has something to turn.
    target = next_target(tried, pending, lowest=lowest + 0.02)
    if target is not None:
        start = start_for(target, trained)
        study.enqueue_trial({"target": target}, user_attrs={"start": start})
    return target is not None


def _time_over(setup: Setup) -> bool:
    return setup.deadline is not None and time.time() >= setup.deadline


def _show(table: Table, settings: SearchConfig, said: dict[str, Any], shown: Silent) -> None:
    head = f"{said['head']}, target {said['target']:.3f}"
    if said["given_up"]:
        shown.note(f"{head}: given up, {said['given_up']}")
    for index, point in enumerate(table.points):
        if point.trained and point.target == said["target"]:
            shown.note(
                f"{head}: FLOPs {100 * point.relative_flops:.1f}%, {drop_or_gain(table.drops[index])}, "
                f"expected {drop_or_gain(table.expected[index])}, a drop of at most {100 * table.bounds[index]:.2f} "
                f"({settings.confidence:.0%} sure), {point.seconds:.0f} s"
            )
    best = "  ".join(f"{100 * table.points[i].relative_flops:.1f}%: {100 * table.drops[i]:+.2f}" for i in table.front)
    shown.note(f"front (FLOPs: drop in points, a gain below 0): {best}")


def _load(setup: Setup, point: Point) -> tuple[Any, dict[str, Tensor]]:
    """The chosen model with its gates, and the dense weights."""
    model, _ = load_dense(setup.folder / DENSE, whole=True)
    mean_by_(model, setup.task.spec.means)
    prune_(model, setup.prune)
    dense = {name: value.clone() for name, value in weights_without_gates(model).items()}
    model.load_state_dict(weights_of(setup, point.target))
    gates = gates_of(model)
    gates.set_thresholds(gates.thresholds.detach() * point.factor)
    recipe = replace(setup.train, target_flops=point.target, lambda_=None)
    gates.about = {"task": setup.task.describe(), "recipe": recipe.to_dict()}
    return model.eval(), dense
