"""thresher bench: honest speed on this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thresher.cli.options import A_RUN, TEST_ROWS, AsJson, Texts, together

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# Rows that need calibration texts, and their names in the lines below the table.
CALIBRATED = {"openvino int8": "openvino int8", "thresher dense int8-static": "int8-static"}
SHORT = {
    "hugging face": "HF",
    "hugging face, sorted": "HF sorted",
    "hugging face eager": "HF eager",
    "hugging face compiled": "HF compiled",
    "onnxruntime, sorted": "onnxruntime sorted",
    "openvino, sorted": "openvino sorted",
    "thresher export dense, onnxruntime": "export dense ORT",
    "thresher export pruned, onnxruntime": "export pruned ORT",
    "thresher export dense, openvino": "export dense OV",
    "thresher export pruned, openvino": "export pruned OV",
    "thresher dense, onnx backend": "engine dense ORT",
    "thresher pruned, onnx backend": "engine pruned ORT",
    "sentence transformers": "ST",
    "sentence transformers, sorted": "ST sorted",
}
COLUMNS = (
    "per s: texts per second, median of the rounds (~: did not settle);\n"
    "x HF: over HF fp32;\n"
    "x best: over the fastest row that is not ours; ms: of one text alone, median;\n"
    "agree: {same} HF fp32;\n"
    "FLOPs: paper's count, at most so many where the last layer is not down to\n"
    "the first token; MiB: "
)
LEGEND = {
    "cpu": (
        "HF, onnxruntime, openvino: dense, padded (sorted: texts by length);\n"
        "thresher: ours, no padding; export: our graphs in onnxruntime (ORT) and\n"
        "OpenVINO (OV), one text in that of --batch-one; engine ... ORT: ours with\n"
        f'backend="onnx".\n{COLUMNS}peak, in a process alone.'
    ),
    "cuda": (
        "HF: dense, padded (sorted: texts by length; compiled: all to one width);\n"
        "torch unpadded: dense; thresher: ours, no padding (graph: in CUDA graphs;\n"
        "sync: library products). Times are from host to host.\n"
        f"{COLUMNS}peak on the GPU."
    ),
}


ST = "ST: sentence-transformers, padded (sorted: all texts by length, as it does).\n"


@together(source=TEST_ROWS)
def bench(
    run: Annotated[Path, typer.Argument(help=A_RUN)],
    source: dict[str, Any],
    texts: Texts = None,
    rows: Annotated[
        int | None, typer.Option(help="at most this many rows; default: 512, or what fits into --seconds", min=1)
    ] = None,
    batch_size: Annotated[int, typer.Option(help="texts per batch", min=1)] = 32,
    rounds: Annotated[
        int | None,
        typer.Option(
            help="timed rounds; all contenders take turns in each; default: 5, or what fits into --seconds", min=1
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="about how long all of it may take where --rows and --rounds do not say")
    ] = 240.0,
    threads: Annotated[int | None, typer.Option(help="processor threads; default: all cores", min=1)] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda, each with rivals of its own; auto is cpu")] = "auto",
    dtype: Annotated[str | None, typer.Option(help="on cuda, all rows but HF fp32: fp16 (default) or bf16")] = None,
    engines: Annotated[
        str | None,
        typer.Option(
            help="only these, such as hf,thresher: of hf, onnxruntime, openvino, thresher, export; on cuda of hf, "
            "compile, unpadded, thresher; st (sentence-transformers) for rerankers and embedders. HF fp32 always takes "
            "part"
        ),
    ] = None,
    memory: Annotated[bool, typer.Option(help="measure each row's peak memory, alone")] = True,
    record: Annotated[Path | None, typer.Option(help="append the result to this JSON lines file")] = None,
    gears: Annotated[
        bool, typer.Option("--gears", help="instead: measure faster dials for thresher serve, and keep them in the run")
    ] = False,
    max_length: Annotated[
        int | None, typer.Option(help="with --gears: tokens of a text at most, as thresher serve is given it", min=1)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the packed engine, dense and pruned, with Hugging Face, onnxruntime and OpenVINO on this machine.

    Rerankers and embedding models also meet sentence-transformers.

    Rivals also get their texts sorted by length. On a GPU the rivals are Hugging Face (eager, SDPA, compiled) and
    unpadded torch.

    Example: thresher bench runs/demo
    """
    from thresher.cli.output import console, listeners, print_json
    from thresher.jobs.bench import BenchRequest
    from thresher.jobs.bench import bench as race

    request = BenchRequest(
        **source,
        run=run,
        texts=texts,
        rows=rows,
        batch_size=batch_size,
        rounds=rounds,
        seconds=seconds,
        threads=threads,
        max_length=max_length,
        device=device,
        dtype=dtype,
        engines=engines,
        memory=memory,
        record=record,
    )
    screen = console(as_json)
    if gears:
        from thresher.jobs.gears import measure_gears

        measured = measure_gears(request)
        screen.print(_gears_table(measured.to_dict()))
        screen.print(f"kept in {run} for: thresher serve {run} --degrade", markup=False, soft_wrap=True)
        if as_json:
            print_json({"gears": measured.to_dict()})
        return
    result = race(request, progress=listeners(screen)["progress"])
    found = result.to_dict()
    no_verdict = "our rows are missing" if "thresher" in found["engines"] else "--engines leaves thresher out"
    _show(screen, found, result.verdict.text() if result.verdict else f"no verdict on pruning: {no_verdict}")
    if as_json:
        print_json(found)


def _gears_table(measured: dict[str, Any]) -> "Table":
    from rich.table import Table

    table = Table(title=f"gears, {measured['texts']} texts", title_justify="left")
    for name in ("dial", "texts/s", "speed", "agreement with dense", "score"):
        table.add_column(name, justify="right")
    for gear in measured["gears"]:
        score = "-" if gear["score"] is None else f"{100 * gear['score']:.2f}"
        speed, agreement = f"{gear['speed']:.2f}x", f"{gear['agreement']:.4f}"
        table.add_row(f"{gear['dial']:g}", f"{gear['texts_per_s']:,.0f}", speed, agreement, score)
    return table


def _show(screen: "Console", result: dict[str, Any], verdict: str) -> None:
    """The table, what it means, who is missing and what follows."""
    screen.print(_table(result))
    screen.print(_unsteady(result["rows"]))
    screen.print(_legend(result))
    if result["limited"]:
        screen.print(f"to end in time, only: {'; '.join(result['limited'])}", markup=False)
    screen.print(f"weights of all rows but thresher pruned: {result['rivals']}", markup=False)
    if result["device_type"] == "cuda":
        kinds = {SHORT.get(row["engine"], row["engine"]): row["attention"] for row in result["rows"]}
        for kind in dict.fromkeys(filter(None, kinds.values())):
            names = "; ".join(name for name in kinds if kinds[name] == kind)
            screen.print(f"attention of {names}: {kind}", markup=False, soft_wrap=True)
    for names, why in _missing_rows(result["missing"]):
        screen.print(f"missing: {names}", markup=False)
        screen.print(f"  {why}", markup=False, soft_wrap=True)
    present = {f"{row['engine']} {row['dtype']}" for row in result["rows"]}
    calibrated = [short for name, short in CALIBRATED.items() if name in present]
    if calibrated:
        used = result["calibration"]
        screen.print(f"calibrated on {used['texts']} {used['source']}: {', '.join(calibrated)}")
    screen.print(verdict)


def _legend(result: dict[str, Any]) -> str:
    from thresher.cli.output import SAME

    stack = any(row["engine"].startswith("sentence transformers") for row in (*result["rows"], *result["missing"]))
    return (ST if stack else "") + LEGEND[result["device_type"]].format(same=SAME[result["means"]])


def _unsteady(rows: list[dict[str, Any]]) -> str:
    """How far the rounds of one row lie apart at most: what of a difference may be the machine's doing."""
    from thresher.evaluation.speed import AGREE

    def spread(row: dict[str, Any]) -> float:
        return float((row["texts_per_s_high"] - row["texts_per_s_low"]) / row["texts_per_s"])

    worst = max(rows, key=spread)
    said = (
        f"rounds of one row differ by up to {100 * spread(worst):.0f}% ({_named(worst)}); ranges and p95 are in --json"
    )
    loose = [_named(row) for row in rows if not row["settled"]]
    if not loose:
        return said
    loose = ["all rows"] if len(loose) == len(rows) > 1 else loose
    rule = f"not two rounds, or not more than half of them, lie within {AGREE:.0%} of the median"
    return f"{said}\ndid not settle: {'; '.join(loose)}\n  {rule}: measure with more --rounds, or on an idle machine"


def _named(row: dict[str, Any]) -> str:
    return f"{SHORT.get(row['engine'], row['engine'])} {_arithmetic(row)}"


def _missing_rows(missing: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Rows, and why they are missing: a package that is not installed costs several. Where all have one reason, the
    table's names need no repetition."""
    found: dict[str, list[str]] = {}
    for row in missing:
        found.setdefault(row["why"], []).append(_named(row))
    if len(found) == 1 and len(missing) > 1:
        return [(f"{len(missing)} rows, as marked in the table", why) for why in found]
    return [("; ".join(names), why) for why, names in found.items()]


def _table(result: dict[str, Any]) -> "Table":
    from rich.table import Table

    from thresher.cli.output import counted

    where = counted(result["threads"], "thread") if result["device_type"] == "cpu" else result["device"]
    title = f"{result['texts']} texts of {result['mean_length']:.1f} tokens, batch {result['batch_size']}, {where}"
    # 80 columns: no lines between columns, and what a table is not read for (ranges, p95) is left to --json.
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("engine", "dtype"):
        table.add_column(name, no_wrap=True)
    for name in ("per s", "x HF", "x best", "ms", "score", "agree", "FLOPs", "MiB"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in result["rows"]:
        table.add_row(
            SHORT.get(row["engine"], row["engine"]),
            _arithmetic(row),
            f"{row['texts_per_s']:.0f}{'' if row['settled'] else '~'}",
            f"{row['ratio_hugging_face']:.2f}",
            f"{row['ratio_best_rival']:.2f}",
            _ms(row["latency_ms_p50"]),
            "-" if row["quality"] is None else f"{100 * row['quality']:.2f}",
            f"{100 * row['agreement']:.1f}",
            f"{row['relative_flops']:.2f}",
            "-" if row["peak_mib"] is None else f"{row['peak_mib']:.0f}",
        )
    measured = {(row["engine"], row["dtype"], row["mode"]) for row in result["rows"]}
    for row in result["missing"]:
        if (row["engine"], row["dtype"], row["mode"]) not in measured:
            table.add_row(SHORT.get(row["engine"], row["engine"]), _arithmetic(row), "missing")
    return table


def _arithmetic(row: dict[str, Any]) -> str:
    return f"{row['dtype']}, {row['mode']}" if row["mode"] else str(row["dtype"])


def _ms(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
