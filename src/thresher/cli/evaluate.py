"""thresher eval: quality and cost of a run on held-out data."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thresher.cli.options import A_RUN, TEST_ROWS, AsJson, Device, MaxLength, together

if TYPE_CHECKING:
    from thresher.jobs.evaluate import EvaluateResult


@together(rows=TEST_ROWS)
def evaluate(
    run: Annotated[Path, typer.Argument(help=A_RUN)],
    rows: dict[str, Any],
    max_length: MaxLength = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Quality, relative FLOPs, kept tokens per layer, and quality per length quartile, on the test rows.

    Example: thresher eval runs/sst2 --task sst2 --data glue
    """
    from thresher.cli.output import console, layers_table, listeners, print_json, quality_table, quartile_table
    from thresher.jobs.evaluate import EvaluateRequest, evaluate_run

    screen = console(as_json)
    request = EvaluateRequest(**rows, run=run, max_length=max_length, device=device)
    result = evaluate_run(request, **listeners(screen))
    found = result.to_dict()
    for split, models in found["splits"].items():
        screen.print(quality_table(f"{result.task} {split}", models))
        screen.print(layers_table(models["pruned"]))
        screen.print(quartile_table(models["pruned"]))
        if models["pruned"]["truncated"]:
            screen.print(f"{models['pruned']['truncated']} texts of {models['pruned']['rows']} rows were truncated")
    for text in (*result.remarks, _legend(result)):
        screen.print(text, markup=False)
    if as_json:
        print_json(found)


def _legend(result: "EvaluateResult") -> str:
    """What the rows are, and what is not among them."""
    own = "unpruned: this run's weights, nothing dropped"
    if result.dense is None:
        text = f"{own}; the dense model that pruning started from is not here, so what pruning lost is not known"
    else:
        text = f"dense: {result.dense}; {own}"
    if result.quantized:
        text += (
            "\nall of it in floating point, while an engine may serve this run in int8: thresher quantize measured that"
        )
    return text
