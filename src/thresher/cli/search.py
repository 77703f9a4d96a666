"""thresher search: the cheapest model whose quality drops at most a given amount."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thresher.cli.options import (
    AsJson,
    ClassNames,
    DataFolder,
    Device,
    Embed,
    GroupColumn,
    LabelColumn,
    PairColumn,
    Regression,
    Rerank,
    SelectionFile,
    Separator,
    Settings,
    TaskName,
    TestFile,
    TextColumn,
    TrainFile,
)
from thresher.config import SearchConfig, TrainConfig
from thresher.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from thresher.cli.pipeline import Job, Outcome

TRAIN_FLAGS = (
    *("finetune_epochs", "soft_epochs", "hard_epochs", "max_steps", "batch_size", "lr", "max_length", "precision"),
    "seed",
)


def _train(name: str) -> Any:
    return typer.Option(help=TrainConfig.help_for(name))


def _search(name: str) -> Any:
    return typer.Option(help=SearchConfig.help_for(name))


def search(
    model: Annotated[str, typer.Argument(help="a Hugging Face folder or hub name, fine-tuned or not")],
    out: Annotated[Path, typer.Option("--out", help="folder to write; it appears when the search is complete")],
    max_drop: Annotated[str, typer.Option(help="largest drop of the score, in points: 1% or 0.01")] = "1%",
    confidence: Annotated[float | None, _search("confidence")] = None,
    budget_minutes: Annotated[float | None, _search("budget_minutes")] = None,
    max_trials: Annotated[int | None, _search("max_trials")] = None,
    start_flops: Annotated[float | None, _search("start_flops")] = None,
    workers: Annotated[int | None, _search("workers")] = None,
    task: TaskName = None,
    data: DataFolder = None,
    train: TrainFile = None,
    selection: SelectionFile = None,
    test: TestFile = None,
    text_column: TextColumn = None,
    pair_column: PairColumn = None,
    label_column: LabelColumn = None,
    regression: Regression = None,
    rerank: Rerank = False,
    embed: Embed = False,
    group_column: GroupColumn = None,
    separator: Separator = None,
    class_names: ClassNames = None,
    recipe: Annotated[str | None, _train("recipe")] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with the tables \\[prune] and \\[train]; flags override it")
    ] = None,
    settings: Settings = None,
    finetune: Annotated[str, typer.Option(help="train a head first: auto (if there is none), always, never")] = "auto",
    finetune_epochs: Annotated[float | None, _train("finetune_epochs")] = None,
    soft_epochs: Annotated[float | None, _train("soft_epochs")] = None,
    hard_epochs: Annotated[float | None, _train("hard_epochs")] = None,
    max_steps: Annotated[int | None, _train("max_steps")] = None,
    batch_size: Annotated[int | None, _train("batch_size")] = None,
    lr: Annotated[float | None, _train("lr")] = None,
    max_length: Annotated[int | None, _train("max_length")] = None,
    precision: Annotated[str | None, _train("precision")] = None,
    seed: Annotated[int | None, _train("seed")] = None,
    device: Device = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="go on with an interrupted search")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace the run in --out")] = False,
    as_json: AsJson = False,
) -> None:
    """Train from loose to tight and take the cheapest model within the allowed drop; writes pareto.json and a figure.

    Needs the extra: pip install "thresher\\[search]".
    Example: thresher search my-encoder --task mrpc --data glue --max-drop 1% --out runs/mrpc
    """
    from rich.markup import escape

    from thresher.cli.output import console, print_gains, print_json, quality_table, quiet_libraries
    from thresher.cli.pipeline import job_of
    from thresher.cli.prune import configured
    from thresher.training.search.chain import check_settings

    given = locals()
    names = ("confidence", "budget_minutes", "max_trials", "start_flops", "workers")
    limits = search_settings(max_drop, **{name: given[name] for name in names if given[name] is not None})
    train_config, prune_settings = configured(given, TRAIN_FLAGS, max_drop=max_drop)
    check_settings(limits, train_config)
    job = job_of(given, train=train_config, prune=prune_settings)
    quiet_libraries()
    screen = console(as_json)
    report = search_job(job, limits, screen).report
    for split, models in report["quality"].items():
        screen.print(quality_table(f"{job.task.spec.name} {split}", models))
    print_gains(screen, report["quality"], job.train.to_dict())
    screen.print(escape(f"saved {out}, with pareto.json, pareto.svg and pareto.png"))
    if as_json:
        print_json({"out": str(out), **report})


def search_settings(max_drop: str, **others: Any) -> SearchConfig:
    """`--max-drop` as people write it, '1%' or '0.01', and what else was given."""

    text = max_drop.strip()
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 0.5:
        raise ConfigError(f"--max-drop '{max_drop}' must be from 0% to 50%; write one point of the score as 1% or 0.01")
    return SearchConfig(max_drop=value, **others)


def search_job(job: "Job", settings: SearchConfig, screen: "Console") -> "Outcome":
    """Search, measure on the held-out rows, save and draw; `prune --max-drop` ends here too."""
    import shutil

    from rich.markup import escape

    from thresher.cli.measure import Version, measure
    from thresher.cli.pipeline import Outcome, check_output, load_model, prune_config, save_run
    from thresher.evaluation.bootstrap import held_out_drop
    from thresher.models.attach import prune_
    from thresher.models.defaults import mean_by_
    from thresher.models.heads import head_of
    from thresher.records import write_json
    from thresher.report.pareto import draw_pareto
    from thresher.training.progress import Bars
    from thresher.training.search.chain import check_settings
    from thresher.training.search.chain import search as find

    check_settings(settings, job.train)
    check_output(job)
    model, tokenizer, finetune = load_model(job)
    mean_by_(model, job.task.spec.means)
    prune_(model, prune_config(job.prune, tokenizer, head_of(model)))
    if not job.resume:
        shutil.rmtree(job.work, ignore_errors=True)
    screen.print(escape(f"data: {job.task.source}"))
    found = find(
        model,
        tokenizer,
        job.task,
        job.train,
        settings,
        folder=job.work,
        finetune=finetune,
        device=job.device,
        progress=lambda: Bars(screen),
    )
    screen.print(escape(f"chosen: {found.report['statement']}"))
    # The test rows took no part in training or in the choice.
    length = job.train.max_length
    versions = {"dense": Version(found.dense, pruned=False), "pruned": Version({}, pruned=True)}
    found.model.to(job.device)
    quality = measure(found.model, tokenizer, job.task, versions, max_length=length, screen=screen)
    drops = {
        split: held_out_drop(found.model, tokenizer, job.task, found.dense, split=split, max_length=length).to_dict()
        for split in job.task.test
    }
    for split, drop in drops.items():
        screen.print(f"{split}: {_said(drop)}")
    (chosen,) = (point for point in found.report["points"] if point["chosen"])
    report = {
        "quality": quality,
        "held_out_drop": drops,
        "selection": chosen,
        "statement": found.report["statement"],
        "within": found.report["within"],
        "seconds": found.report["seconds"],
    }

    def add_files(folder: Path) -> None:
        write_json(folder / "pareto.json", {**found.report, "held_out_drop": drops})
        draw_pareto(found.report, folder)

    dense = found.dense if finetune else None
    save_run(job, found.model, tokenizer, report, dense=dense, add_files=add_files, keep_work=found.out_of_time)
    if found.out_of_time:
        screen.print(escape(f"time was up; --resume with more --budget-minutes goes on, from {job.work}"))
    return Outcome(model=found.model, tokenizer=tokenizer, report=report)


def _said(drop: dict[str, Any]) -> str:
    from thresher.tasks.said import drop_or_gain

    return (
        f"{drop_or_gain(drop['drop'])} on {drop['rows']:,} rows that took no part, "
        f"95% interval of the drop {100 * drop['low']:+.2f} to {100 * drop['high']:+.2f} (paired bootstrap)"
    )
