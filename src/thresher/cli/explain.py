"""thresher explain: see which layer dropped which token."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thresher.cli.options import A_RUN, AsJson

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from thresher.evaluation.explain import Explanation


def explain(
    run: Annotated[Path, typer.Argument(help=A_RUN)],
    text: Annotated[str, typer.Argument(help="the text to explain")],
    pair: Annotated[
        str | None,
        typer.Argument(help="the second text, for models of pairs; a reranker's document, a question's context"),
    ] = None,
    svg: Annotated[Path | None, typer.Option(help="also write the picture to this SVG file")] = None,
    as_json: AsJson = False,
) -> None:
    """Show in colour which layer dropped which token, and the decision with its probability, beside the dense model's.

    A reranker shows its score, an embedding model how near the embedding is to the dense model's, a model for questions
    its answer, one for tags the entities.

    Example: thresher explain runs/demo "a gripping film that never lets go"
    """
    from thresher.cli.output import console, print_json
    from thresher.errors import RunError
    from thresher.jobs.explain import ExplainRequest, explain_run
    from thresher.records import write_text

    screen = console(as_json)
    result = explain_run(ExplainRequest(run=run, text=text, pair=pair))
    if svg is not None:
        try:
            write_text(svg, picture([(result.pruned, result.dense)]))
        except OSError as error:
            raise RunError(f"cannot write {svg}: {error.strerror}; choose another --svg") from error
        screen.print(f"picture written to {svg}", markup=False)
    if as_json:
        print_json(result.to_dict())
    else:
        print_legend(screen, result.pruned.layers)
        print_explanation(screen, result.pruned, result.dense)


def print_explanation(screen: "Console", found: "Explanation", dense: "Explanation | None" = None) -> None:
    """The text with every token coloured by the layer that dropped it, then the decision, and the dense model's."""
    from rich.markup import escape
    from rich.text import Text

    from thresher.evaluation.explain import ALL_TOKENS

    line = Text()
    for piece, layer in zip(found.pieces, found.dropped_at, strict=True):
        if line and piece.startswith(" "):
            line.append(" ")
        line.append(piece.lstrip(), style=_style(layer, found.layers))
        if layer is not None:
            line.append(str(layer).translate(_SUBSCRIPTS), style="dim")
    screen.print(line)
    beside = "" if dense is None else f", dense {dense.decision()}\n"
    if found.embedding is not None:
        near = "what the same weights give with nothing dropped" if dense is None else "the dense model's"
        beside = f" to {near}\n"
    kept = " ".join(str(count) for count in found.kept_per_layer)
    cost = f"tokens {len(found.tokens)} -> {kept}   relative FLOPs {found.relative_flops:.2f}"
    screen.print(f"-> [bold]{escape(found.decision(dense))}[/bold]{escape(beside)}   {cost}")
    if found.queries != ALL_TOKENS:
        screen.print(f"tokens are judged by what {found.queries} gives them")
    if found.windows > 1:
        screen.print(f"one of {found.windows} windows; the decision is of all of them")
    if found.truncated:
        screen.print("[yellow]the text was longer than in training and was truncated[/yellow]")


def print_legend(screen: "Console", layers: int) -> None:
    from rich.text import Text

    line = Text.assemble(("survivors", "bold green"), "; dropped at layer")
    for layer in range(1, layers + 1):
        line.append(f" {layer}", style=_style(layer, layers))
    screen.print(line)


def picture(explanations: "Sequence[tuple[Explanation, Explanation | None]]") -> str:
    """The coloured texts, with what the dense model decides, as an SVG image that needs no font from elsewhere."""
    import io

    from rich.terminal_theme import MONOKAI

    from thresher.cli.output import Screen

    screen = Screen(record=True, width=100, file=io.StringIO(), force_terminal=True, highlight=False)
    print_legend(screen, explanations[0][0].layers)
    for found, dense in explanations:
        print_explanation(screen, found, dense)
    drawn = screen.export_svg(title="thresher explain", theme=MONOKAI)
    head, _, rest = drawn.partition("@font-face")
    styles = rest[rest.rindex("@font-face") :].partition("}")[2] if "@font-face" in rest else rest.partition("}")[2]
    return (head + styles).replace("Fira Code", "monospace")


_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


def _style(layer: int | None, layers: int) -> str:
    from thresher.report.colours import SURVIVOR, colour_of

    return f"bold {SURVIVOR}" if layer is None else "rgb({},{},{})".format(*colour_of(layer, layers))
