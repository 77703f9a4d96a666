"""thresher bench: honest speed on this machine."""

import contextlib
from dataclasses import KW_ONLY, asdict, dataclass
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
    pick_device,
)
from thresher.config import trained_length

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from thresher.evaluation.lineup import Material
    from thresher.tasks import Example, Task
    from thresher.tasks.encode import Encoded

CALIBRATION_TEXTS = 128
RIVAL_PACKAGES = {"cpu": ("onnx", "onnxscript", "onnxruntime", "openvino", "nncf"), "cuda": ("triton",)}
# Rows that need calibration texts, and their names in the lines below the table.
CALIBRATED = {"openvino int8": "openvino int8", "thresher dense int8-static": "int8-static"}
SHORT = {
    "hugging face": "HF",
    "hugging face, sorted": "HF sorted",
    "hugging face eager": "HF eager",
    "hugging face compiled": "HF compiled",
    "onnxruntime, sorted": "onnxruntime sorted",
    "openvino, sorted": "openvino sorted",
}
COLUMNS = (
    "per s: texts per second, median of the rounds; x HF: over HF fp32;\n"
    "x best: over the fastest row that is not ours; ms: of one text alone, median;\n"
    "agree: same decisions as HF fp32; FLOPs: paper's count, at most so many\n"
    "where the last layer is not down to the first token; MiB: "
)
LEGEND = {
    "cpu": (
        "HF, onnxruntime, openvino: dense, padded (sorted: texts by length);\n"
        f"thresher: ours, no padding. {COLUMNS}peak, in a process alone."
    ),
    "cuda": (
        "HF: dense, padded (sorted: texts by length; compiled: all to one width);\n"
        "torch unpadded: dense; thresher: ours, no padding (graph: in CUDA graphs;\n"
        "sync: library products). Times are from host to host.\n"
        f"{COLUMNS}peak on the GPU."
    ),
}
MEMORY = {
    "cpu": "peak resident memory of a process with this row alone",
    "cuda": (
        "peak of torch.cuda.max_memory_allocated in the row's heaviest batches, less what other rows hold; "
        "peak_reserved_mib: the same of max_memory_reserved, which CUDA graphs' own memory is part of"
    ),
}


def bench(
    run: Annotated[Path, typer.Argument(help="a folder written by thresher prune")],
    task: TaskName = None,
    data: DataFolder = None,
    test: TestFile = None,
    text_column: TextColumn = None,
    pair_column: PairColumn = None,
    label_column: LabelColumn = None,
    texts: Annotated[
        Path | None, typer.Option(help="your texts without labels: one per line, a tab before a second text")
    ] = None,
    rows: Annotated[int, typer.Option(help="at most this many rows", min=1)] = 512,
    batch_size: Annotated[int, typer.Option(help="texts per batch", min=1)] = 32,
    rounds: Annotated[int, typer.Option(help="timed rounds; all contenders take turns in each", min=1)] = 5,
    threads: Annotated[int | None, typer.Option(help="processor threads; default: all cores", min=1)] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda, each with rivals of its own; auto is cpu")] = "auto",
    dtype: Annotated[str | None, typer.Option(help="on cuda, all rows but HF fp32: fp16 (default) or bf16")] = None,
    engines: Annotated[
        str | None,
        typer.Option(
            help="only these, such as hf,thresher: of hf, onnxruntime, openvino, thresher; on cuda of hf, compile, "
            "unpadded, thresher. HF fp32 always takes part"
        ),
    ] = None,
    memory: Annotated[bool, typer.Option(help="measure each row's peak memory, alone")] = True,
    record: Annotated[Path | None, typer.Option(help="append the result to this JSON lines file")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the packed engine, dense and pruned, with Hugging Face, onnxruntime and OpenVINO on this machine.

    Rivals also get their texts sorted by length. On a GPU the rivals are Hugging Face (eager, SDPA, compiled) and
    unpadded torch. Example: thresher bench runs/demo
    """
    import tempfile

    import torch

    from thresher.cli.output import console, print_json, quiet_libraries
    from thresher.errors import ConfigError
    from thresher.evaluation.lineup import Material, dense_of, parse_engines
    from thresher.evaluation.quality import check_outputs
    from thresher.evaluation.verdict import judge
    from thresher.models.attach import gates_of
    from thresher.models.checkpoint import load, read_manifest
    from thresher.models.pairs import check_pairs
    from thresher.records import append_record, check_appendable
    from thresher.tasks.encode import encode, usable_positions
    from thresher.tasks.files import read_texts

    place = "cpu" if device == "auto" else pick_device(device)
    half = _half(dtype, place)
    wanted = parse_engines(engines, place)
    if record is not None:
        check_appendable(record)
    manifest = read_manifest(run)
    columns = (text_column, pair_column, label_column)
    if texts is None:
        ways = "--texts FILE, --test FILE or --task NAME"
        labelled = load_test_rows(run, manifest, task=task, data=data, test=test, columns=columns, ways=ways)
        examples = next(iter(labelled.test.values()))
    elif any((task, data, test, *columns)):
        raise ConfigError(f"--texts {texts} stands alone; leave out --task, --data, --test and the columns")
    else:
        labelled, examples = None, read_texts(texts)
    if labelled is None:
        check_pairs(manifest, given_pairs=examples[0].pair is not None, name=run)  # encode wants all alike
    quiet_libraries()
    if threads is not None:
        torch.set_num_threads(threads)
    checkpoint = load(run)
    if labelled is not None:
        check_outputs(checkpoint.model, labelled, name=run, manifest=manifest)
    if "thresher" in wanted:
        gates_of(checkpoint.model).require_thresholds()
    tokenizer = checkpoint.tokenizer
    limits: dict[str, Any] = {
        "max_length": trained_length(manifest),
        "positions": usable_positions(checkpoint.model.config),
    }
    encoded = encode(tokenizer, examples[:rows], **limits).rows
    calibration, source = _calibration(labelled.train if labelled else [], examples, rows)
    screen = console(as_json)
    dense = dense_of(run, checkpoint)
    with tempfile.TemporaryDirectory() as work:
        material = Material(
            run=run,
            dense=dense.folder,
            work=Path(work),
            calibration=encode(tokenizer, calibration, **limits).rows,
            pad_id=tokenizer.pad_token_id,
            threads=torch.get_num_threads(),
            texts=encoded,
            batch_size=batch_size,
            device=place,
            half=half,
        )
        plan = _Plan(wanted, material, encoded, labelled, rounds=rounds, memory=memory)
        found, missing = _measure(plan, checkpoint.model, screen)
    verdict = judge(found)
    result = {
        "bench": "engines",
        "run": str(run),
        "rivals": dense.name,
        **_about(plan),
        "calibration": {"texts": len(calibration), "source": source} if place == "cpu" else None,
        "rows": found,
        "missing": missing,
        "verdict": None if verdict is None else verdict.to_dict(),
    }
    no_verdict = "our rows are missing" if "thresher" in wanted else "--engines leaves thresher out"
    _show(screen, result, verdict.text() if verdict else f"no verdict on pruning: {no_verdict}")
    if record is not None:
        append_record(record, result)
    if as_json:
        print_json(result)


@dataclass(frozen=True)
class _Plan:
    """What is measured, and how."""

    engines: "Sequence[str]"
    material: "Material"
    texts: "list[Encoded]"
    task: "Task | None"
    _: KW_ONLY
    rounds: int
    memory: bool


def _about(plan: _Plan) -> dict[str, Any]:
    """What was measured, how and where, for the record."""
    from thresher.records import provenance

    material, lengths = plan.material, sorted(len(row.input_ids) for row in plan.texts)
    about = provenance(device=material.device, seed=None)
    return {
        "task": plan.task.spec.name if plan.task else None,
        "texts": len(lengths),
        "mean_length": sum(lengths) / len(lengths),
        "lengths": {"min": lengths[0], "median": lengths[len(lengths) // 2], "max": lengths[-1]},
        "batch_size": material.batch_size,
        "rounds": plan.rounds,
        "threads": material.threads,
        "engines": list(plan.engines),
        "device_type": material.device,
        "memory": MEMORY[material.device] if plan.memory else None,
        **about,
        "versions": {**about["versions"], **_rival_versions(material.device)},
    }


def _measure(plan: _Plan, model: Any, screen: "Console") -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows that were measured, with their ratios, and those that are missing."""
    from concurrent.futures.process import BrokenProcessPool

    import torch
    from rich.progress import Progress

    from thresher.evaluation.alone import peak_memory
    from thresher.evaluation.lineup import Missing, line_up, rows_of
    from thresher.evaluation.speed import race
    from thresher.evaluation.verdict import add_ratios_
    from thresher.models.attach import encoder_shape

    steps = len(rows_of(plan.engines, plan.material.device))
    with Progress(console=screen, transient=True) as bars:
        bar = bars.add_task("loading and exporting" if plan.material.device == "cpu" else "loading", total=steps)
        contenders, missing = line_up(plan.engines, plan.material, on_step=lambda: bars.advance(bar))
        bar = bars.add_task("racing", total=len(contenders) * (plan.rounds + 1))
        speeds = race(
            contenders,
            plan.texts,
            plan.task,
            shape=encoder_shape(model),
            batch_size=plan.material.batch_size,
            rounds=plan.rounds,
            latency_texts=min(50, len(plan.texts)),
            on_step=lambda: bars.advance(bar),
        )
        rows = [speed.to_dict() for speed in speeds]
        add_ratios_(rows)
        if plan.memory:
            bar = bars.add_task("measuring memory", total=len(contenders))
            for row, contender in zip(rows, contenders, strict=True):
                try:
                    row |= asdict(peak_memory(contender.spec, plan.texts, plan.material.batch_size))
                # Killed, most likely for want of memory, or out of the GPU's; the race still counts.
                except (BrokenProcessPool, torch.OutOfMemoryError) as error:
                    missing.append(Missing(row["engine"], row["dtype"], f"peak memory: {error}", row["mode"]))
                bars.advance(bar)
    return rows, [asdict(row) for row in missing]


def _show(screen: "Console", result: dict[str, Any], verdict: str) -> None:
    """The table, what it means, who is missing and what follows."""
    screen.print(_table(result))
    screen.print(_unsteady(result["rows"]))
    screen.print(LEGEND[result["device_type"]])
    screen.print(f"weights of all rows but thresher pruned: {result['rivals']}", markup=False, soft_wrap=True)
    if result["device_type"] == "cuda":
        kinds = {SHORT.get(row["engine"], row["engine"]): row["attention"] for row in result["rows"]}
        for kind in dict.fromkeys(filter(None, kinds.values())):
            names = "; ".join(name for name in kinds if kinds[name] == kind)
            screen.print(f"attention of {names}: {kind}", markup=False, soft_wrap=True)
    for why, costs in _missing_rows(result["missing"]).items():
        screen.print(f"missing: {'; '.join(costs)}: {why}", markup=False, soft_wrap=True)
    present = {f"{row['engine']} {row['dtype']}" for row in result["rows"]}
    calibrated = [short for name, short in CALIBRATED.items() if name in present]
    if calibrated:
        used = result["calibration"]
        screen.print(f"calibrated on {used['texts']} {used['source']}: {', '.join(calibrated)}")
    screen.print(verdict)


def _unsteady(rows: list[dict[str, Any]]) -> str:
    """How far the rounds of one row lie apart at most: what of a difference may be the machine's doing."""

    def spread(row: dict[str, Any]) -> float:
        return float((row["texts_per_s_high"] - row["texts_per_s_low"]) / row["texts_per_s"])

    worst = max(rows, key=spread)
    name = f"{SHORT.get(worst['engine'], worst['engine'])} {_arithmetic(worst)}"
    return f"rounds of one row differ by up to {100 * spread(worst):.0f}% ({name}); ranges and p95 are in --json"


def _missing_rows(missing: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Why rows are missing -> their names as in the table: a package that is not installed costs several."""
    found: dict[str, list[str]] = {}
    for row in missing:
        found.setdefault(row["why"], []).append(f"{SHORT.get(row['engine'], row['engine'])} {_arithmetic(row)}")
    return found


def _calibration(train: "list[Example]", timed: "list[Example]", rows: int) -> "tuple[list[Example], str]":
    """Texts for static int8, evenly spread: training ones where there are any, else timed ones, best not these rows."""
    from thresher.tasks.splits import spread

    found, source = (train, "training texts") if train else (timed[rows:] or timed, "test texts, unlabelled")
    return spread(found, CALIBRATION_TEXTS), source


def _half(dtype: str | None, place: str) -> str:
    """The arithmetic of a GPU's rows; a processor's rows come in all that it has."""
    from thresher.errors import ConfigError
    from thresher.evaluation.lineup import HALVES

    if dtype is not None and place == "cpu":
        raise ConfigError(f"--dtype {dtype} goes with --device cuda; on the CPU every arithmetic is measured")
    if dtype is not None and dtype not in HALVES:
        raise ConfigError(f"dtype = {dtype!r} is not one of: {', '.join(HALVES)}")
    return dtype or HALVES[0]


def _rival_versions(place: str) -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in RIVAL_PACKAGES[place]:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _table(result: dict[str, Any]) -> "Table":
    from rich.table import Table

    where = f"{result['threads']} threads" if result["device_type"] == "cpu" else result["device"]
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
            f"{row['texts_per_s']:.0f}",
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
