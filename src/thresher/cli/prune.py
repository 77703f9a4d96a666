"""thresher prune: learn which tokens a model can drop."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from thresher.config import PRUNE_FLAGS, TRAIN_FLAGS, PruneConfig, TrainConfig

if TYPE_CHECKING:
    from rich.console import Console

FLAGS = {**setting_flags(TrainConfig, TRAIN_FLAGS), **setting_flags(PruneConfig, PRUNE_FLAGS)}


@together(rows=TRAINING_ROWS, flags=FLAGS)
def prune(
    model: Annotated[str, typer.Argument(help="a Hugging Face folder or hub name, fine-tuned or not")],
    out: Annotated[Path, typer.Option("--out", help="folder to write; it appears when the run is complete")],
    rows: dict[str, Any],
    flags: dict[str, Any],
    max_drop: Annotated[
        str | None,
        typer.Option(help="instead of a target: the cheapest model that loses at most this, such as 1%; see search"),
    ] = None,
    recipe: Annotated[str | None, typer.Option(help=TrainConfig.help_for("recipe"))] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with the tables \\[prune] and \\[train]; flags override it")
    ] = None,
    settings: Settings = None,
    finetune: Annotated[str, typer.Option(help="train a head first: auto (if there is none), always, never")] = "auto",
    device: Device = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="go on with an interrupted run")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace the run in --out")] = False,
    as_json: AsJson = False,
) -> None:
    """Learn thresholds and fine-tune the pruned model; shows quality before and after, cost and kept tokens per layer.

    Example: thresher prune my-encoder --task sst2 --data glue --target-flops 0.5 --out runs/sst2

    Several GPUs: accelerate launch -m thresher prune my-encoder --task sst2 --data glue --out runs/sst2
    """
    from thresher.cli.output import console, listeners, print_json, quality_table
    from thresher.evaluation.gain import CONTROL
    from thresher.jobs.prune import PruneRequest
    from thresher.jobs.prune import prune as learn
    from thresher.jobs.search import SearchRequest, search

    asked: dict[str, Any] = {
        **rows,
        "model": model,
        "out": out,
        "recipe": recipe,
        "config": config,
        "settings": chosen_settings(flags, settings),
        "finetune": finetune,
        "device": device,
        "resume": resume,
        "overwrite": overwrite,
    }
    screen = console(as_json)
    result: Any
    if max_drop is None:
        result = learn(PruneRequest(**asked), **listeners(screen))
    else:
        result = search(SearchRequest(**asked, max_drop=max_drop), **listeners(screen))
    if result is None:
        return
    found = result.to_dict()
    control = max_drop is None and result.method == CONTROL
    for split, models in found["quality"].items():
        named = {"trained on" if control and name == "pruned" else name: one for name, one in models.items()}
        screen.print(quality_table(f"{result.task} {split}", named))
    for text in result.remarks:
        screen.print(text, markup=False)
    if control:
        screen.print(f"saved {out}; beside a pruned run: thresher report RUN --control {out}", markup=False)
    else:
        _show_kept(screen, result, found, out)
    if as_json:
        print_json(found)


def _show_kept(screen: "Console", result: Any, found: dict[str, Any], out: Path) -> None:
    """What every layer keeps, and how to see it at work."""
    from thresher.cli.output import layers_table
    from thresher.models.attach import known_of
    from thresher.models.heads import head_of
    from thresher.models.pairs import takes_pairs

    screen.print(layers_table(next(iter(found["quality"].values()))["pruned"]))
    some = '"some text"'  # an embedder's rows may be pairs, and each of the two is read alone
    usual = '"one text" "the other"' if takes_pairs(known_of(result.model)) else some
    known = {"span": '"a question" "its context"', "score": '"a query" "a document"', "embedding": some}
    texts = known.get(head_of(result.model).means, usual)
    screen.print(f"saved {out}; see it at work: thresher explain {out} {texts}", markup=False)
