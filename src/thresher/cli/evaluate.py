"""thresher eval: quality and cost of a run on held-out data."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thresher.cli.options import (
    AsJson,
    DataFolder,
    Device,
    LabelColumn,
    PairColumn,
    TaskName,
    TestFile,
    TextColumn,
    load_test_rows,
    pick_device,
)

if TYPE_CHECKING:
    from thresher.evaluation.lineup import Dense


def evaluate(
    run: Annotated[Path, typer.Argument(help="a folder written by thresher prune")],
    task: TaskName = None,
    data: DataFolder = None,
    test: TestFile = None,
    text_column: TextColumn = None,
    pair_column: PairColumn = None,
    label_column: LabelColumn = None,
    max_length: Annotated[int | None, typer.Option(help="longest sequence in tokens; default: as trained")] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Quality, relative FLOPs, kept tokens per layer, and quality per length quartile, on the test rows.

    Example: thresher eval runs/sst2 --task sst2 --data glue
    """
    from rich.markup import escape

    from thresher.cli.measure import Version, measure
    from thresher.cli.output import (
        console,
        layers_table,
        print_gains,
        print_json,
        quality_table,
        quartile_table,
        quiet_libraries,
    )
    from thresher.errors import ConfigError
    from thresher.evaluation.lineup import dense_of
    from thresher.evaluation.quality import check_outputs
    from thresher.models.checkpoint import load, load_dense, read_manifest
    from thresher.records import provenance
    from thresher.tasks.remembered import seen_in_training

    if max_length is not None and max_length < 4:
        raise ConfigError(f"max_length = {max_length} is below 4, the smallest allowed value")
    manifest = read_manifest(run)
    columns = (text_column, pair_column, label_column)
    rows = load_test_rows(run, manifest, task=task, data=data, test=test, columns=columns)
    place = pick_device(device)
    quiet_libraries()
    checkpoint = load(run)
    check_outputs(checkpoint.model, rows, name=run, manifest=manifest)
    checkpoint.model.to(place)
    versions = {"pruned": Version({}, pruned=True), "unpruned": Version({}, pruned=False)}
    dense = dense_of(run, checkpoint)
    if dense.folder != run:
        weights = load_dense(dense.folder, whole=True)[0].state_dict()
        versions = {"dense": Version(weights, pruned=False), **versions}
    screen = console(as_json)
    screen.print(escape(f"rows: {rows.source}"))
    if test is not None:
        for text in seen_in_training(manifest.get("task", {}), test, rows.test["test"]):
            screen.print(text, style="yellow", markup=False)
    found = measure(checkpoint.model, checkpoint.tokenizer, rows, versions, max_length=max_length, screen=screen)
    for split, models in found.items():
        screen.print(quality_table(f"{rows.spec.name} {split}", models))
        screen.print(layers_table(models["pruned"]))
        screen.print(quartile_table(models["pruned"]))
        if models["pruned"]["truncated"]:
            screen.print(f"{models['pruned']['truncated']} of {models['pruned']['rows']} rows were truncated")
    print_gains(screen, found, manifest.get("recipe"))
    screen.print(escape(_legend(dense, run, manifest)))
    if as_json:
        print_json({"run": str(run), "task": rows.spec.name, "splits": found, **provenance(device=place, seed=None)})


def _legend(dense: "Dense", run: Path, manifest: dict[str, Any]) -> str:
    """What the rows are, and what is not among them."""
    own = "unpruned: this run's weights, nothing dropped"
    if dense.folder == run:
        text = f"{own}; the dense model that pruning started from is not here, so what pruning lost is not known"
    else:
        text = f"dense: {dense.name}; {own}"
    if "quantization" in manifest:
        text += (
            "\nall of it in floating point, while an engine may serve this run in int8: thresher quantize measured that"
        )
    return text
