"""A search as a figure: score against relative FLOPs, the dense model's line and the limit below it."""

from pathlib import Path
from typing import Any

from thresher.report.figures import BLUE, INK, pyplot_in_style, save_figure

PALE, RED = "#a9c3e2", "#c0392b"


def draw_pareto(report: dict[str, Any], folder: Path) -> None:
    """Write pareto.svg and pareto.png from what pareto.json holds."""
    pyplot = pyplot_in_style()
    figure, axes = pyplot.subplots(figsize=(7.2, 4.6), layout="constrained")
    _draw_lines(axes, report)
    _draw_points(axes, report["points"])
    axes.set_xlabel("FLOPs, % of the dense model")
    axes.set_ylabel(f"score on {report['selection_rows']:,} selection rows")
    axes.set_title(f"{report['task']}: quality against cost", loc="left")
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    save_figure(figure, folder, "pareto")
    pyplot.close(figure)


def _draw_lines(axes: Any, report: dict[str, Any]) -> None:
    """The dense score and the limit, named in the right margin, where no point can be."""
    dense, limit = 100 * report["dense"]["score"], 100 * report["settings"]["max_drop"]
    axes.axhline(dense, color=INK, linewidth=1, zorder=1)
    axes.axhline(dense - limit, color=INK, linewidth=1, linestyle=(0, (5, 3)), zorder=1)
    for height, text, side in (
        (dense, f"dense {dense:.1f}", "bottom"),
        (dense - limit, f"\N{MINUS SIGN}{limit:g}", "top"),
    ):
        axes.annotate(text, (1.01, height), xycoords=("axes fraction", "data"), va=side, annotation_clip=False)


def _draw_points(axes: Any, points: list[dict[str, Any]]) -> None:
    trained = [point for point in points if point["dial"] == 1.0]
    dialled = [point for point in points if point["dial"] != 1.0]
    front = sorted((point for point in points if point["front"]), key=lambda point: float(point["relative_flops"]))
    chosen = [point for point in points if point["chosen"]]
    # The interval is the drop's: that of the score, seen from a dense line taken as known.
    barred = [point for point in points if point["dial"] == 1.0 or point["chosen"]]
    below = [100 * (point["interval"][1] - point["drop"]) for point in barred]
    above = [100 * (point["drop"] - point["interval"][0]) for point in barred]
    axes.errorbar(*_places(barred), [below, above], fmt="none", ecolor=PALE, elinewidth=2, zorder=2)
    axes.step(*_places(front), where="post", color=BLUE, linewidth=1.2, alpha=0.6, zorder=3, label="front")
    axes.plot(*_places(dialled), "o", color="white", mec=BLUE, ms=4.5, zorder=4, label="thresholds scaled, not trained")
    axes.plot(*_places(trained), "o", color=BLUE, ms=6, zorder=5, label="trained (bars: 95% interval of the drop)")
    (cost,), (score,) = _places(chosen)
    label = f"chosen: {score:.1f} at {cost:.1f}% of the FLOPs"
    axes.plot(cost, score, "*", color=RED, mec="white", ms=18, zorder=6, label=label)


def _places(points: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    return [100 * point["relative_flops"] for point in points], [100 * point["score"] for point in points]
