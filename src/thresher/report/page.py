"""A run's report as one HTML file that needs nothing from elsewhere: plain data in, text out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from thresher.records import metric_text
from thresher.report.charts import front, layer_bars
from thresher.report.tokens import TOKEN_SCRIPT, back_in, coloured_text, legend, slider, token_styles
from thresher.text import visible

MARK = '<meta name="generator" content="thresher report">'  # a file with this in its beginning may be replaced
NAMES = {
    "dense": "dense, as pruning found it",
    "control": "dense, trained as long (control)",
    "unpruned": "pruned weights, nothing dropped",
    "pruned": "pruned",
}


@dataclass(frozen=True, kw_only=True)
class ExampleText:
    """One text with what became of its tokens (as an `Explanation` has it), the two decisions and the label."""

    pieces: Sequence[str]
    dropped_at: Sequence[int | None]
    kept_per_layer: Sequence[int]
    flops: float
    truncated: bool
    pruned: str
    dense: str | None
    label: str | None
    wrong: bool
    differs: bool


@dataclass(frozen=True, kw_only=True)
class Content:
    """Everything that a report shows. `quality` is split -> model -> Quality.to_dict(), models as in NAMES; `benches`
    are records of `thresher bench`, with what is `said` of each; `search` is what pareto.json holds, `int8` the run's
    block on its quantization."""

    name: str
    about: str
    layers: int
    quality: Mapping[str, Mapping[str, Mapping[str, Any]]]
    notes: Sequence[str] = ()
    tiles: Sequence[tuple[str, str]] = ()  # more of them, behind those of the quality: value, what it is
    examples: Sequence[ExampleText] = ()
    examples_note: str = ""
    benches: Sequence[Mapping[str, Any]] = ()
    search: Mapping[str, Any] | None = None
    int8: Mapping[str, Any] | None = None
    provenance: Sequence[tuple[str, str]] = field(default_factory=list)


def report_page(content: Content) -> str:
    """The whole file."""
    template = resources.files("thresher.report").joinpath("page.html").read_text(encoding="utf-8")
    pages = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_written_out
    )
    return pages.from_string(template).render(
        name=content.name,
        about=content.about,
        tiles=[{"value": value, "text": text} for value, text in (*_tiles(content), *content.tiles)],
        splits=[_split(name, models, content.notes) for name, models in content.quality.items()],
        examples=[_example(one) for one in content.examples],
        examples_note=content.examples_note,
        legend=legend(content.layers, _back_in(content.examples)),
        slider=slider(content.layers),
        benches=[_bench(record) for record in content.benches],
        search=None if content.search is None else _search(content.search),
        int8=None if content.int8 is None else _int8(content.int8),
        provenance=content.provenance,
        token_styles=Markup(token_styles(content.layers)),
        token_script=Markup(TOKEN_SCRIPT),
    )


def _written_out(value: Any) -> Any:
    """Characters that turn what follows around, or that nobody can see, come from texts and labels of anyone."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _tiles(content: Content) -> list[tuple[str, str]]:
    """What a reader wants to know first, of the first split."""
    if not content.quality:
        return []
    split, models = next(iter(content.quality.items()))
    pruned, found = models["pruned"], []
    if pruned["relative_flops"] is not None:
        flops = float(pruned["relative_flops"])
        found.append((f"{1 / flops:.2f}x", f"fewer FLOPs: {100 * flops:.1f}% of the dense model's are left"))
    found.append((f"{100 * pruned['metrics']['score']:.2f}", f"score, pruned ({split}, {pruned['rows']:,} rows)"))
    for name, text in (("dense", "score, dense"), ("control", "score, dense trained as long")):
        if name in models:
            found.append((f"{100 * models[name]['metrics']['score']:.2f}", text))
    return found


def _split(name: str, models: Mapping[str, Mapping[str, Any]], notes: Sequence[str]) -> dict[str, Any]:
    metrics = list(models["pruned"]["metrics"])
    metrics = metrics if len(metrics) > 2 else [one for one in metrics if one != "score"]  # which repeats a single one
    pruned = models["pruned"]
    return {
        "name": name,
        "metrics": metrics,
        "models": [
            {
                "name": kind,
                "text": NAMES[kind],
                "metrics": [metric_text(metric, models[kind]["metrics"][metric]) for metric in metrics],
                "flops": _or_one(models[kind]["relative_flops"]),
                "gflops": models[kind]["gflops"],
                "rows": models[kind]["rows"],
            }
            for kind in NAMES
            if kind in models
        ],
        "notes": notes,
        "mean_length": pruned["mean_length"],
        "chart": layer_bars(pruned["kept_per_layer"], pruned["mean_length"]),
        "quartiles": [{**part, "flops": _or_one(part["relative_flops"])} for part in pruned["quartiles"]],
    }


def _or_one(flops: float | None) -> float:
    return 1.0 if flops is None else flops


def _back_in(examples: Sequence[ExampleText]) -> int | None:
    """The same layer in every text that loses a token."""
    return next((back for one in examples if (back := back_in(one.dropped_at, one.kept_per_layer))), None)


def _example(one: ExampleText) -> dict[str, Any]:
    return {
        **vars(one),
        "text": coloured_text(one.pieces, one.dropped_at, one.kept_per_layer),
        "left": one.kept_per_layer[-1],
        "tokens": len(one.pieces),
    }


def _bench(record: Mapping[str, Any]) -> dict[str, Any]:
    best = max(float(row["texts_per_s"]) for row in record["rows"])
    where = f"{record['threads']} threads of {record['device']}" if record["device_type"] == "cpu" else record["device"]
    return {
        "about": f"{record['texts']:,} texts of {record['mean_length']:.1f} tokens, batch {record['batch_size']}, "
        f"{where}; all in turn, rounds: {record['rounds']}, of which the median. Weights of all rows but thresher "
        f"pruned: {record['rivals']}.",
        "rows": [
            {
                "engine": row["engine"],
                "dtype": f"{row['dtype']}, {row['mode']}" if row["mode"] else row["dtype"],
                "speed": f"{row['texts_per_s']:,.0f}",
                "share": row["texts_per_s"] / best,
                "ms": row["latency_ms_p50"],
                "score": "" if row["quality"] is None else f"{100 * row['quality']:.2f}",
                "flops": row["relative_flops"],
                "ours": row["engine"] == "thresher pruned",
            }
            for row in record["rows"]
        ],
        "verdict": record["said"],
    }


def _search(found: Mapping[str, Any]) -> dict[str, Any]:
    chart = front(found["points"], dense=found["dense"]["score"], limit=found["settings"]["max_drop"])
    return {"statement": found["statement"], "rows": f"{found['selection_rows']:,}", "chart": chart}


def _int8(block: Mapping[str, Any]) -> dict[str, Any]:
    quality, calibration = block["quality"], block["calibration"]
    rows = [
        {
            "name": name,
            "score": measured["metrics"]["score"],
            "agreement": "" if name == "fp32" else f"{100 * measured['agreement']:.1f}%",
        }
        for name, measured in quality.items()
        if isinstance(measured, dict) and "metrics" in measured
    ]
    about = f"{block['kind']}, calibrated on {calibration['rows']:,} {calibration['source']}; measured on "
    return {"rows": rows, "about": f"{about}{quality['rows']:,} rows of {quality['split']}."}
