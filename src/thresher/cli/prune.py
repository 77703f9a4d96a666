"""thresher prune: learn which tokens a model can drop."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

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
from thresher.config import (
    PRUNE_FLAGS,
    RECIPES,
    TRAIN_FLAGS,
    PruneConfig,
    TrainConfig,
    check_read,
    given_settings,
    read_toml,
    score_of,
)
from thresher.errors import ConfigError


def _train(name: str) -> Any:
    return typer.Option(help=TrainConfig.help_for(name))


def prune(
    model: Annotated[str, typer.Argument(help="a Hugging Face folder or hub name, fine-tuned or not")],
    out: Annotated[Path, typer.Option("--out", help="folder to write; it appears when the run is complete")],
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
    method: Annotated[str | None, _train("method")] = None,
    target_flops: Annotated[float | None, _train("target_flops")] = None,
    max_drop: Annotated[
        str | None,
        typer.Option(help="instead of a target: the cheapest model that loses at most this, such as 1%; see search"),
    ] = None,
    lambda_: Annotated[float | None, typer.Option("--lambda", help=TrainConfig.help_for("lambda_"))] = None,
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
    accumulate: Annotated[int | None, _train("accumulate")] = None,
    lr: Annotated[float | None, _train("lr")] = None,
    temperature: Annotated[float | None, _train("temperature")] = None,
    distill: Annotated[float | None, _train("distill")] = None,
    max_length: Annotated[int | None, _train("max_length")] = None,
    precision: Annotated[str | None, _train("precision")] = None,
    protect: Annotated[list[str] | None, typer.Option(help=PruneConfig.help_for("protect"))] = None,
    scale: Annotated[str | None, typer.Option(help=PruneConfig.help_for("scale"))] = None,
    seed: Annotated[int | None, _train("seed")] = None,
    device: Device = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="go on with an interrupted run")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace the run in --out")] = False,
    as_json: AsJson = False,
) -> None:
    """Learn thresholds and fine-tune the pruned model; shows quality before and after, cost and kept tokens per layer.

    Example: thresher prune my-encoder --task sst2 --data glue --target-flops 0.5 --out runs/sst2

    Several GPUs: accelerate launch -m thresher prune my-encoder --task sst2 --data glue --out runs/sst2
    """
    from rich.markup import escape

    from thresher.cli.output import console, layers_table, print_gains, print_json, quality_table, quiet_libraries
    from thresher.cli.pipeline import job_of, run_job
    from thresher.cli.search import search_job, search_settings

    given = locals()
    train_config, prune_settings = configured(given, TRAIN_FLAGS, PRUNE_FLAGS, max_drop=max_drop)
    wanted = None if max_drop is None else search_settings(max_drop)
    job = job_of(given, train=train_config, prune=prune_settings)
    quiet_libraries()
    screen = console(as_json)
    outcome = run_job(job, screen) if wanted is None else search_job(job, wanted, screen)
    if outcome is None:
        return
    for split, models in outcome.report["quality"].items():
        screen.print(quality_table(f"{job.task.spec.name} {split}", models))
    print_gains(screen, outcome.report["quality"], job.train.to_dict())
    screen.print(layers_table(next(iter(outcome.report["quality"].values()))["pruned"]))
    screen.print(escape(f'saved {out}; see it at work: thresher explain {out} "some text"'))
    if as_json:
        print_json({"out": str(out), **{name: value for name, value in outcome.report.items() if name != "history"}})


def configured(
    given: dict[str, Any], train_flags: Sequence[str], prune_flags: Sequence[str] = (), *, max_drop: str | None
) -> tuple[TrainConfig, dict[str, Any]]:
    """The settings that flags, --set, --config and --recipe make; `max_drop` finds the cost itself."""
    train_set, prune_set = given_settings(given["settings"] or [])
    own = {name: given[name] for name in (*train_flags, *prune_flags) if given[name] not in (None, [])}
    twice = [name for name in own if name in {**train_set, **prune_set}]
    if twice:
        raise ConfigError(f"{twice[0]} is given twice, as a flag and with --set; give it once")
    if max_drop is not None and {"target_flops", "lambda_"} & {*train_set, *own}:
        raise ConfigError(f"--max-drop {max_drop} finds the cost itself; leave out --target-flops and --lambda")
    return resolve(
        given["recipe"],
        given["config"],
        train_flags=train_set | {name: own[name] for name in train_flags if name in own},
        prune_flags=prune_set | {name: own[name] for name in prune_flags if name in own},
    )


def resolve(
    recipe: str | None, config: Path | None, *, train_flags: dict[str, Any], prune_flags: dict[str, Any]
) -> tuple[TrainConfig, dict[str, Any]]:
    """Flag > TOML > recipe. A FLOPs target given on one level replaces a lambda of a lower one, and the other way.

    A file may serve several methods; a flag that the method does not read is an error."""
    tables = read_toml(config) if config is not None else {}
    train_table = dict(tables.get("train", {}))
    own_recipe = train_table.pop("recipe", "default")
    for rival, other in (("target_flops", "lambda_"), ("lambda_", "target_flops")):
        if rival in train_flags and other not in train_flags:
            train_table.pop(other, None)
    train = TrainConfig.recipe_named(recipe or own_recipe, **{**train_table, **train_flags})
    check_read({**train_flags, **prune_flags}, method=train.method)
    own = {"score": score_of(train.method), **RECIPES[train.recipe]["prune"]}
    prune = {**own, **tables.get("prune", {}), **prune_flags}
    PruneConfig.from_dict({"separator_id": 0, **prune})  # checks the rest; the real id comes with the tokenizer
    return train, prune
