"""thresher search: the cheapest model whose quality drops at most a given amount."""

from pathlib import Path
from typing import Annotated, Any

import typer

from thresher.cli.options import (
    TRAINING_ROWS,
    AsJson,
    Device,
    Settings,
    chosen_settings,
    setting_flags,
    together,
)
from thresher.config import SearchConfig, TrainConfig

LIMITS = ("confidence", "budget_minutes", "max_trials", "start_flops", "workers")
TRAIN_FLAGS = (
    *("finetune_epochs", "soft_epochs", "hard_epochs", "max_steps", "batch_size", "lr", "max_length", "precision"),
    "seed",
)


@together(
    rows=TRAINING_ROWS,
    limits=setting_flags(SearchConfig, LIMITS, panel=None),
    flags=setting_flags(TrainConfig, TRAIN_FLAGS),
)
def search(
    model: Annotated[str, typer.Argument(help="a Hugging Face folder or hub name, fine-tuned or not")],
    out: Annotated[Path, typer.Option("--out", help="folder to write; it appears when the search is complete")],
    limits: dict[str, Any],
    rows: dict[str, Any],
    flags: dict[str, Any],
    max_drop: Annotated[str, typer.Option(help="largest drop of the score, in points: 1% or 0.01")] = "1%",
    recipe: Annotated[str | None, typer.Option(help=TrainConfig.help_for("recipe"))] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with the tables \\[prune] and \\[train]; flags override it")
    ] = None,
    settings: Settings = None,
    finetune: Annotated[str, typer.Option(help="train a head first: auto (if there is none), always, never")] = "auto",
    device: Device = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="go on with an interrupted search")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace the run in --out")] = False,
    as_json: AsJson = False,
) -> None:
    """Train from loose to tight and take the cheapest model within the allowed drop; writes pareto.json and a figure.

    Needs the extra: pip install "thresher\\[search]".

    Example: thresher search my-encoder --task mrpc --data glue --max-drop 1% --out runs/mrpc
    """
    from thresher.cli.output import console, listeners, print_json, quality_table
    from thresher.jobs.search import SearchRequest
    from thresher.jobs.search import search as find

    request = SearchRequest(
        **rows,
        **limits,
        model=model,
        out=out,
        max_drop=max_drop,
        recipe=recipe,
        config=config,
        settings=chosen_settings(flags, settings),
        finetune=finetune,
        device=device,
        resume=resume,
        overwrite=overwrite,
    )
    screen = console(as_json)
    result = find(request, **listeners(screen))
    found = result.to_dict()
    for split, models in found["quality"].items():
        screen.print(quality_table(f"{result.task} {split}", models))
    for text in result.remarks:
        screen.print(text, markup=False)
    screen.print(f"saved {out}, with pareto.json, pareto.svg and pareto.png", markup=False)
    if as_json:
        print_json(found)
