"""One trial of a search: train at one FLOPs target from a looser trial's weights, then measure on selection rows."""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from numpy.typing import NDArray
from torch import Tensor

from thresher.config import PruneConfig, TrainConfig
from thresher.core.cost import lowest_flops, relative_flops
from thresher.errors import PredictionError
from thresher.models.attach import gates_of, prune_
from thresher.models.checkpoint import load_dense, replacing_folder
from thresher.models.predict import predict
from thresher.tasks.encode import EncodedSet
from thresher.tasks.task import Task
from thresher.tasks.truth import Truth
from thresher.training.guide import Guide, Stopped
from thresher.training.progress import Silent
from thresher.training.snapshot import STATE, read_snapshot, write_snapshot
from thresher.training.trainer import Trainer

# Thresholds times a factor below 1 prune less: points between the trained ones, for one pass over the selection rows.
DIAL = (1.0, 0.85, 0.7)
EVALUATIONS = 2  # a trial keeps its best evaluation; the more there are, the more the best one flatters it
DENSE = "dense"


HOPELESS, DIVERGED, NO_TIME = "hopeless", "its predictions or gradients are not numbers", "time is up"


@dataclass(frozen=True)
class Setup:
    """What every trial shares; it travels to worker processes. `folder` holds the state of the whole search."""

    folder: Path
    task: Task
    prune: PruneConfig
    train: TrainConfig
    share: float
    device: str | None
    deadline: float | None  # time.time() at which to stop
    selection: EncodedSet | None = None  # the selection rows, where outputs are of tokens and read by their windows

    def place(self, target: float) -> Path:
        return self.folder / "trials" / f"{target:.4f}"


@dataclass(frozen=True)
class Point:
    """One measured model: the weights of a trial with its thresholds times `factor`. logits: (rows, outputs)."""

    target: float
    factor: float
    start: float | None  # target of the trial it was trained on from; None: from the dense model
    relative_flops: float
    metrics: dict[str, float]
    seconds: float
    logits: NDArray[Any]

    @property
    def trained(self) -> bool:
        return self.factor == 1.0


@dataclass(frozen=True)
class Ended:
    """How a trial ended: at some relative cost, or given up for a reason."""

    cost: float | None = None
    given_up: str | None = None


@dataclass(frozen=True)
class TrialGuide(Guide):
    """Starts from another trial's weights, but learns from the dense model, whose predictions it keeps on disk.
    Ends the trial when time is up, or when the hard stage scores below `hopeless`."""

    setup: Setup
    start: float | None = None  # target of that trial; None: from the dense model
    hopeless: float | None = None

    def first_weights(self) -> dict[str, Tensor]:
        return {} if self.start is None else weights_of(self.setup, self.start)  # the method's own rule is not there

    def teacher_logits(self, predict: Callable[[], Tensor]) -> Tensor:
        folder = self.setup.folder / "teacher"
        if not (folder / STATE).is_dir():
            write_snapshot(folder, {"teacher": {"logits": predict()}}, {})
        return read_snapshot(folder)[0]["teacher"]["logits"]

    def reason_to_stop(self, stage: str, score: float | None) -> str | None:
        if stage == "hard" and score is not None and self.hopeless is not None and score < self.hopeless:
            return HOPELESS
        deadline = self.setup.deadline
        return NO_TIME if deadline is not None and time.time() > deadline else None


class WithoutNotes(Silent):
    """Shows a trial's steps: a search has many trials, whose notes would bury its own."""

    def __init__(self, shown: Silent) -> None:
        self._shown = shown

    def begin(self, name: str, *, total: int, done: int = 0) -> None:
        self._shown.begin(name, total=total, done=done)

    def step(self, **numbers: float | None) -> None:
        self._shown.step(**numbers)

    def __enter__(self) -> Self:
        self._shown.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shown.__exit__(kind, error, trace)


def first_trial(
    setup: Setup,
    model: Any,
    tokenizer: Any,
    *,
    target: float,
    finetune: bool,
    progress: Silent,
) -> list[Point]:
    """The whole recipe at the loosest target, from the dense model, which is fine-tuned first if it has no head.

    Leaves the dense model as a Hugging Face folder, from which all other trials start.
    """
    config = replace(setup.train, target_flops=target, lambda_=None, evals_per_stage=EVALUATIONS)
    trainer = _trainer(TrialGuide(setup), model, tokenizer, config, target, progress, finetune=finetune)
    for text in trainer.rows.truncation():
        progress.note(text)
    run = trainer.method.run
    lowest = lowest_flops(
        run.shape,
        run.lengths,
        [1.0] * run.shape.layers,
        protected=run.protected,
        rejoin=gates_of(model).config.rejoined,
    )
    seconds = trainer.fit().seconds
    dense = trainer.dense_weights()
    with replacing_folder(setup.folder / DENSE) as folder:
        model.save_pretrained(folder, state_dict=dict(dense))  # it empties the dictionary that it is given
        tokenizer.save_pretrained(folder)
    pruned = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict({**pruned, **dense})
    found = predict(model, trainer.judge.batches, pruned=False)
    model.load_state_dict(pruned)
    dense_logits = found.logits.numpy()
    metrics = setup.task.score(dense_logits, truth_of(setup, dense_logits))
    write_snapshot(
        setup.folder / "baseline", {"dense": {"logits": found.logits}}, {"metrics": metrics, "lowest": lowest}
    )
    return _measure(setup, trainer, target=target, start=None, seconds=seconds)


def run_trial(setup: Setup, target: float, start: float, hopeless: float, shown: Silent | None) -> Ended:
    """Train one trial, in this process or a worker's; one that had ended before the search was killed is not redone."""
    guide = TrialGuide(setup, start=start, hopeless=hopeless)
    try:
        points = points_of(setup, target) or next_trial(guide, target=target, progress=shown or Silent())
    except Stopped as stopped:
        return Ended(given_up=stopped.reason)
    except PredictionError:
        return Ended(given_up=DIVERGED)
    return Ended(cost=points[0].relative_flops)


def next_trial(guide: TrialGuide, *, target: float, progress: Silent) -> list[Point]:
    """A short hard stage at another target, from the weights and thresholds of the trial that the guide starts from."""
    setup = guide.setup
    model, tokenizer = load_dense(setup.folder / DENSE, whole=True)
    prune_(model, setup.prune)
    config = replace(
        setup.train,
        target_flops=target,
        lambda_=None,
        soft_epochs=0.0,
        hard_epochs=setup.train.hard_epochs * setup.share,
        evals_per_stage=EVALUATIONS,
    )
    trainer = _trainer(guide, model, tokenizer, config, target, progress)
    return _measure(setup, trainer, target=target, start=guide.start, seconds=trainer.fit().seconds)


def baseline(setup: Setup) -> tuple[NDArray[Any], dict[str, Any]]:
    """(rows, outputs) logits of the dense model on the selection rows; its metrics and the lowest reachable FLOPs."""
    groups, about = read_snapshot(setup.folder / "baseline")
    return groups["dense"]["logits"].numpy(), about


def points_of(setup: Setup, target: float) -> list[Point]:
    """What a finished trial measured, as trained first; nothing if it has not finished."""
    place = setup.place(target) / "points"
    if not (place / STATE).is_dir():
        return []
    groups, about = read_snapshot(place)
    return [Point(**row, logits=groups["logits"][str(row["factor"])].numpy()) for row in about["points"]]


def weights_of(setup: Setup, target: float) -> dict[str, Tensor]:
    return read_snapshot(setup.place(target) / "weights")[0]["model"]


def truth_of(setup: Setup, dense: NDArray[Any]) -> Truth:
    """What the selection rows are judged against: their labels, or without any the dense model's outputs `dense`. They
    also choose the null threshold."""
    return setup.task.spec.truth(setup.task.selection, dense=dense, data=setup.selection).with_threshold(None)


def _trainer(
    guide: TrialGuide, model: Any, tokenizer: Any, config: TrainConfig, target: float, progress: Silent, **options: Any
) -> Trainer:
    """A trial that was interrupted goes on from its own saved state."""
    setup = guide.setup
    work = setup.place(target)
    return Trainer(
        model,
        tokenizer,
        setup.task,
        config,
        work=work,
        resume=(work / STATE).is_dir(),
        progress=WithoutNotes(progress),
        guide=guide,
        device=setup.device,
        **options,
    )


def _measure(setup: Setup, trainer: Trainer, *, target: float, start: float | None, seconds: float) -> list[Point]:
    """The trained model and looser settings of its dial on the selection rows, saved with its weights."""
    model, gates = trainer.model, gates_of(trainer.model)
    trained = gates.thresholds.detach().cpu().clone()
    truth, points = truth_of(setup, baseline(setup)[0]), []
    for factor in DIAL:
        gates.set_thresholds(trained * factor)
        found = predict(model, trainer.judge.batches, pruned=True)
        assert found.kept is not None  # pruned=True records them
        logits = found.logits.numpy()
        cost = float(relative_flops(trainer.shape, found.lengths, found.kept))
        metrics = setup.task.score(logits, truth)
        points.append(Point(target, factor, start, cost, metrics, round(seconds, 1), logits))
    gates.set_thresholds(trained)
    write_snapshot(setup.place(target) / "weights", {"model": model.state_dict()}, {})
    rows = [{name: value for name, value in vars(point).items() if name != "logits"} for point in points]
    logits_of = {str(point.factor): torch.from_numpy(point.logits) for point in points}
    write_snapshot(setup.place(target) / "points", {"logits": logits_of}, {"points": rows})
    shutil.rmtree(setup.place(target) / STATE, ignore_errors=True)  # the optimizer's moments have served
    return points
