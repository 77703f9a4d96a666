"""thresher bench: honest speed on this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thresher.cli.options import (
    AsJson,
    DataFolder,
    LabelColumn,
    PairColumn,
    TaskName,
    TestFile,
    TextColumn,
    load_test_rows,
    trained_length,
)

if TYPE_CHECKING:
    from rich.table import Table

    from thresher.evaluation.speed import Contender


SHORT = {
    "hugging face": "HF padded",
    "hugging face, sorted": "HF sorted",
    "thresher dense": "packed",
    "thresher pruned": "packed, pruned",
}
LEGEND = (
    "HF: the dense model in Hugging Face, padded (sorted: texts by length); packed: the same in our engine.\n"
    "per s: texts per second; x HF: against the fastest HF row; p50, p95: milliseconds of one text;\n"
    "agree: same decisions as HF in fp32.\n"
    "FLOPs: what the engine computes over what it computes for the dense model."
)


def bench(
    run: Annotated[Path, typer.Argument(help="a folder written by thresher prune")],
    task: TaskName = None,
    data: DataFolder = None,
    test: TestFile = None,
    text_column: TextColumn = None,
    pair_column: PairColumn = None,
    label_column: LabelColumn = None,
    texts: Annotated[int, typer.Option(help="at most this many test rows", min=1)] = 512,
    batch_size: Annotated[int, typer.Option(help="texts per batch", min=1)] = 32,
    rounds: Annotated[int, typer.Option(help="timed rounds; all contenders take turns in each", min=1)] = 5,
    threads: Annotated[int | None, typer.Option(help="processor threads; default: all cores", min=1)] = None,
    record: Annotated[Path | None, typer.Option(help="append the result to this JSON lines file")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare Hugging Face (padded) with the packed engine, dense and pruned: speed, latency, quality, agreement.

    Ratios are against the best Hugging Face row, which may sort its texts by length. Example: thresher bench runs/demo
    """
    import json

    import torch
    from rich.progress import Progress

    from thresher.cli.output import console, print_json, quiet_libraries
    from thresher.evaluation.speed import race
    from thresher.models.attach import encoder_shape
    from thresher.models.checkpoint import load, read_manifest
    from thresher.records import provenance
    from thresher.tasks.encode import encode, usable_positions

    manifest = read_manifest(run)
    columns = (text_column, pair_column, label_column)
    rows = load_test_rows(run, manifest, task=task, data=data, test=test, columns=columns)
    quiet_libraries()
    if threads is not None:
        torch.set_num_threads(threads)
    checkpoint = load(run)
    model, tokenizer = checkpoint.model, checkpoint.tokenizer
    examples = next(iter(rows.test.values()))[:texts]
    limits = {"max_length": trained_length(manifest), "positions": usable_positions(model.config)}
    encoded = encode(tokenizer, examples, **limits).rows
    contenders = _contenders(run, model, tokenizer)
    screen = console(as_json)
    with Progress(console=screen, transient=True) as bars:
        bar = bars.add_task("racing", total=len(contenders) * (rounds + 1))
        found = race(
            contenders,
            encoded,
            rows,
            shape=encoder_shape(model),
            batch_size=batch_size,
            rounds=rounds,
            latency_texts=min(50, len(encoded)),
            on_step=lambda: bars.advance(bar),
        )
    result = {
        "run": str(run),
        "task": rows.spec.name,
        "texts": len(encoded),
        "mean_length": sum(len(row.input_ids) for row in encoded) / len(encoded),
        "batch_size": batch_size,
        "rounds": rounds,
        "threads": torch.get_num_threads(),
        "rows": [row.to_dict() for row in found],
        **provenance(device="cpu", seed=None),
    }
    screen.print(_table(result))
    screen.print(LEGEND, highlight=False)
    screen.print(_verdict(result))
    if record is not None:
        record.parent.mkdir(parents=True, exist_ok=True)
        with record.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
    if as_json:
        print_json(result)


def _contenders(run: Path, model: Any, tokenizer: Any) -> "list[Contender]":
    """The dense fine-tuned model where the run has one (else the same weights unpruned), and the packed engines."""
    from thresher.engine.engine import Engine
    from thresher.evaluation.speed import hugging_face, thresher_engine
    from thresher.hardware import native_bf16_on_cpu
    from thresher.models.checkpoint import load_dense

    dense = load_dense(run / "dense", whole=True)[0] if (run / "dense").is_dir() else load_dense(run, whole=True)[0]
    dense.eval()
    found = []
    for dtype in ("fp32", "bf16") if native_bf16_on_cpu() else ("fp32",):
        for length_sorted in (False, True):
            found.append(hugging_face(dense, dtype=dtype, pad_id=tokenizer.pad_token_id, length_sorted=length_sorted))
    for dtype in ("fp32", "bf16", "int8") if native_bf16_on_cpu() else ("fp32", "int8"):
        found.append(thresher_engine("thresher dense", Engine.from_model(dense, tokenizer, dtype=dtype)))
        found.append(thresher_engine("thresher pruned", Engine.from_model(model, tokenizer, dtype=dtype)))
    return found


def _best_rival(result: dict[str, Any]) -> float:
    return max(float(row["texts_per_s"]) for row in result["rows"] if row["engine"].startswith("hugging face"))


def _table(result: dict[str, Any]) -> "Table":
    from rich.table import Table

    title = (
        f"{result['texts']} texts of {result['mean_length']:.1f} tokens, batch {result['batch_size']}, "
        f"{result['threads']} threads"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("engine", no_wrap=True)
    table.add_column("dtype", no_wrap=True)
    for name in ("per s", "x HF", "p50", "p95", "score", "agree", "FLOPs"):
        table.add_column(name, justify="right")
    best = _best_rival(result)
    for row in result["rows"]:
        cost = "-" if row["engine_relative_flops"] is None else f"{row['engine_relative_flops']:.2f}"
        speed = (f"{row['texts_per_s']:.0f}", f"{row['texts_per_s'] / best:.2f}")
        latency = (f"{row['latency_ms_p50']:.1f}", f"{row['latency_ms_p95']:.1f}")
        quality = (f"{100 * row['quality']:.2f}", f"{100 * row['agreement']:.1f}")
        table.add_row(SHORT[row["engine"]], row["dtype"], *speed, *latency, *quality, cost)
    return table


def _verdict(result: dict[str, Any]) -> str:
    """Whether pruning pays here: pruned against dense in the same arithmetic, where it is fastest."""
    rates = {(row["engine"], row["dtype"]): row["texts_per_s"] for row in result["rows"]}
    kinds = [dtype for engine, dtype in rates if engine == "thresher pruned"]
    best = max(kinds, key=lambda dtype: rates[("thresher pruned", dtype)])
    gain = rates[("thresher pruned", best)] / rates[("thresher dense", best)]
    says = f"pruning makes the packed engine {gain:.2f}x as fast in {best}"
    return says if gain > 1.02 else f"pruning does not pay here: {says}; use the dense engine for texts this short"
