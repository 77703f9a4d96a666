"""The search job: the cheapest model whose quality drops at most a given amount, as a run with its measured front."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thresher.config import SearchConfig
from thresher.errors import ConfigError
from thresher.jobs.measure import Version, measure, plain, remarks_on, remember_thresholds_, with_thresholds
from thresher.jobs.places import alone
from thresher.jobs.prune import trained_as
from thresher.jobs.request import Note, heard
from thresher.jobs.settings import SEARCH_SETTINGS, search_settings
from thresher.jobs.training import Job, TrainingRequest, configured, gated_model, job_of, save_run
from thresher.quiet import quiet

if TYPE_CHECKING:
    from thresher.evaluation.quality import Quality
    from thresher.tasks.bootstrap import Drop
    from thresher.training.progress import Silent
    from thresher.training.search.chain import Found


@dataclass(frozen=True, kw_only=True)
class SearchRequest(TrainingRequest):
    """What `search` is asked for: the largest drop of the score ('1%' or 0.01), and the limits of `SearchConfig`, whose
    defaults stand where nothing is given."""

    max_drop: str | float = "1%"
    confidence: float | None = None
    budget_minutes: float | None = None
    max_trials: int | None = None
    start_flops: float | None = None
    trial_share: float | None = None
    workers: int | None = None

    def limits(self) -> SearchConfig:
        names = [name for name in SEARCH_SETTINGS if name != "max_drop"]
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return search_settings(self.max_drop, **given)


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The chosen run. `quality`, with `remarks` on it, and `held_out_drop` are of the test rows, by split; `selection`
    is what was measured of it on the selection rows, and `within` says whether the drop is within the limit there."""

    out: Path
    task: str
    quality: "dict[str, dict[str, Quality]]"
    held_out_drop: "dict[str, Drop]"
    selection: dict[str, Any]
    statement: str
    within: bool
    seconds: float
    remarks: tuple[str, ...]
    model: Any = field(repr=False, compare=False)  # with its gates, as it was saved
    tokenizer: Any = field(repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        return {
            "out": str(self.out),
            "quality": plain(self.quality),
            "held_out_drop": {split: drop.to_dict() for split, drop in self.held_out_drop.items()},
            "selection": self.selection,
            "statement": self.statement,
            "within": self.within,
            "seconds": self.seconds,
        }


def search(
    model: str | Path | SearchRequest, *, progress: "Silent | None" = None, note: Note | None = None, **given: Any
) -> SearchResult:
    """Train from loose to tight and save the cheapest model within the allowed drop, with pareto.json and a figure.

    `given` are fields of `SearchRequest` and settings of `TrainConfig` and `PruneConfig`:
    `search("my-encoder", out="runs/mrpc", task="mrpc", data="glue", max_drop="1%")`.
    """
    from thresher.training.search.chain import check_settings

    shown, say = heard(progress, note)
    request = trained_as(SearchRequest, model, given)
    limits = request.limits()
    if {"target_flops", "lambda_"} & set(request.settings):
        raise ConfigError(f"--max-drop {request.max_drop} finds the cost itself; leave out --target-flops and --lambda")
    with alone(request.out):
        check_settings(limits, configured(request)[0])
        job = job_of(request)
        with quiet():
            return _search_job(job, limits, shown, say)


def _search_job(job: Job, limits: SearchConfig, progress: "Silent", note: Note) -> SearchResult:
    from thresher.training.search.chain import search as find

    model, tokenizer, finetune = gated_model(job)
    if not job.resume:
        shutil.rmtree(job.work, ignore_errors=True)
    note(f"data: {job.task.source}")
    found = find(
        model,
        tokenizer,
        job.task,
        job.train,
        limits,
        folder=job.work,
        finetune=finetune,
        device=job.device,
        progress=progress.anew,
    )
    note(f"chosen: {found.report['statement']}")
    result = _measured(job, found, tokenizer, progress)
    for split, drop in result.held_out_drop.items():
        note(f"{split}: {_said(drop)}")
    _save(job, found, result, dense=found.dense if finetune else None)
    if found.out_of_time:
        note(f"time was up; --resume with more --budget-minutes goes on, from {job.work}")
    return result


def _measured(job: Job, found: "Found", tokenizer: Any, progress: "Silent") -> SearchResult:
    """On the test rows, which took no part in training or in the choice."""
    from thresher.evaluation.bootstrap import held_out_drop

    length = job.train.max_length
    versions = {"dense": Version(found.dense, pruned=False), "pruned": Version({}, pruned=True)}
    found.model.to(job.device)
    (chosen,) = (point for point in found.report["points"] if point["chosen"])
    versions = with_thresholds(found.model, tokenizer, job.task, versions, max_length=length)
    quality = measure(found.model, tokenizer, job.task, versions, max_length=length, progress=progress)
    remember_thresholds_(found.model, versions)
    return SearchResult(
        out=job.out,
        task=job.task.spec.name,
        quality=quality,
        held_out_drop={
            split: held_out_drop(
                found.model,
                tokenizer,
                job.task,
                found.dense,
                split=split,
                max_length=length,
                dense_threshold=versions["dense"].null_threshold or 0.0,
            )
            for split in job.task.test
        },
        selection=chosen,
        statement=found.report["statement"],
        within=found.report["within"],
        seconds=found.report["seconds"],
        remarks=remarks_on(quality, job.train.to_dict(), job.task),
        model=found.model,
        tokenizer=tokenizer,
    )


def _save(job: Job, found: "Found", result: SearchResult, *, dense: dict[str, Any] | None) -> None:
    """The run, with everything that was measured and its picture."""
    from thresher.records import write_json
    from thresher.report.pareto import draw_pareto

    report = {name: value for name, value in result.to_dict().items() if name != "out"}

    def add_files(folder: Path) -> None:
        write_json(folder / "pareto.json", {**found.report, "held_out_drop": report["held_out_drop"]})
        draw_pareto(found.report, folder)

    save_run(job, found.model, result.tokenizer, report, dense=dense, add_files=add_files, keep_work=found.out_of_time)


def _said(drop: "Drop") -> str:
    from thresher.tasks.said import drop_or_gain

    return (
        f"{drop_or_gain(drop.drop)} on {drop.rows:,} rows that took no part, "
        f"95% interval of the drop {100 * drop.low:+.2f} to {100 * drop.high:+.2f} (paired bootstrap)"
    )
