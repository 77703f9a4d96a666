"""Searches beside the sweep: a verdict in three numbers, a table for every task, and a figure."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from thresher.experiments.experiment import Row
from thresher.experiments.publish import markdown_table
from thresher.report.figures import BLUE, INK, ORANGE, pyplot_in_style, save_figure

# What is claimed: this share of searches within the limit, this cost against the sweep's best, this share of its
# training. That is judged by epochs: seconds follow what else ran at the time.
SHARE, COST, TRAINING = 0.8, 1.1, 0.25
COLUMNS = (
    *("", "relative FLOPs", "cost / sweep's best", "drop on validation rows", "95% interval", "within"),
    *("expected on selection rows", "at most", "trials", "training seconds", "of the sweep's"),
)


def best(sweep: Sequence[Row], limit: float, *, by: str = "drop") -> Row | None:
    """The cheapest run whose drop, on the rows that `by` names, is within the limit."""
    within = [row for row in sweep if row[by] <= limit]
    return min(within, key=lambda row: float(row["relative_flops"]), default=None)


def sweep_for(seed: int, rows: Sequence[Row]) -> list[Row]:
    """The sweep from the same dense model, else that of the first seed that has one."""
    found = [row for row in rows if row["kind"] == "sweep"]
    seeds = dict.fromkeys(row["seed"] for row in found)
    taken = seed if seed in seeds else next(iter(seeds), None)
    return [row for row in found if row["seed"] == taken]


def cost_ratio(row: Row, rows: Sequence[Row], limit: float, *, by: str = "drop") -> float | None:
    found = best(sweep_for(row["seed"], rows), limit, by=by)
    return None if found is None else row["relative_flops"] / found["relative_flops"]


def work_ratio(row: Row, rows: Sequence[Row], config: dict[str, Any], *, unit: str = "train_seconds") -> float | None:
    """A search's training over that of a whole sweep; None while runs of it are missing."""
    sweep = sweep_for(row["seed"], rows)
    return row[unit] / sum(run[unit] for run in sweep) if len(sweep) == len(config["targets"]) else None


def verdict(rows: Sequence[Row], config: dict[str, Any]) -> str:
    """For each task and model: searches within the limit, their cost and their training against the sweep's."""
    lines = []
    for name, own in _groups(rows, config):
        searches = [row for row in own if row["kind"] == "search"]
        if searches:
            said = [part(searches, own, config) for part in (_said_of_drops, _said_of_costs, _said_of_work)]
            some = "" if _all_there(searches, config) else f" ({len(searches)} of {len(config['seeds'])} seeds so far)"
            lines.append(f"- **{name}**{some}: {'; '.join(said)}.")
    return "\n".join(lines)


def tables(rows: Sequence[Row], config: dict[str, Any]) -> str:
    """For each task and model: every search, then the sweep's best points."""
    parts = []
    for name, own in _groups(rows, config):
        lines = [_search_line(row, own, config) for row in own if row["kind"] == "search"]
        for seed in dict.fromkeys(row["seed"] for row in own if row["kind"] == "sweep"):
            lines += _sweep_lines(sweep_for(seed, own), config)
        parts.append(f"### {name}\n\n{markdown_table(COLUMNS, lines)}")
    return "\n\n".join(parts)


def draw(rows: Sequence[Row], folder: Path, config: dict[str, Any]) -> list[Path]:
    """A panel for each task and model: the sweep as a curve, the searches' choices as dots."""
    pyplot = pyplot_in_style()
    groups, limit = _groups(rows, config), 100 * config["max_drop"]
    figure, grid = pyplot.subplots(1, len(groups), figsize=(5 * len(groups), 3.8), layout="constrained", squeeze=False)
    for axes, (name, own) in zip(grid.flat, groups, strict=True):
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.axhline(limit, color=INK, linewidth=0.8, linestyle=(0, (4, 3)), label=f"limit of {limit:g}")
        for seed in dict.fromkeys(row["seed"] for row in own if row["kind"] == "sweep"):
            sweep = sorted(sweep_for(seed, own), key=lambda row: float(row["relative_flops"]))
            axes.plot(*_places(sweep), "o-", color=BLUE, linewidth=1.3, markersize=4, label="sweep, full runs")
            taken = best(sweep, config["max_drop"])
            if taken is not None:
                axes.plot(*_places([taken]), "o", color="none", mec=BLUE, ms=11, label="cheapest within the limit")
        searches = [row for row in own if row["kind"] == "search"]
        if searches:
            axes.plot(*_places(searches), "o", color=ORANGE, mec="white", ms=8, zorder=4, label="searches, by seed")
        axes.set_title(name, loc="left", fontweight="bold", color=INK)
        axes.set_xlabel("relative FLOPs")
    grid[0, 0].set_ylabel("drop on validation rows, points")
    labelled = {name: mark for axes in grid.flat for mark, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(labelled.values(), labelled.keys(), loc="outside upper center", ncols=4, frameon=False)
    files = save_figure(figure, folder, "search")
    pyplot.close(figure)
    return files


def _groups(rows: Sequence[Row], config: dict[str, Any]) -> list[tuple[str, list[Row]]]:
    """Rows of one task and model, under a name to print."""
    found = []
    for task, about in config["tasks"].items():
        for model in config["models"]:
            own = [row for row in rows if (row["task"], row["model"]) == (task, model)]
            if own:
                found.append((f"{about['name']}, {model}", own))
    return found


def _search_line(row: Row, own: Sequence[Row], config: dict[str, Any]) -> list[str]:
    ratio, share = cost_ratio(row, own, config["max_drop"]), work_ratio(row, own, config)
    low, high = row["interval"]
    known = row["selection"]
    return [
        f"search, seed {row['seed']}",
        f"{row['relative_flops']:.3f}",
        "" if ratio is None else f"{ratio:.2f}",
        f"{100 * row['drop']:+.2f}",
        f"{100 * low:+.2f} to {100 * high:+.2f}",
        "yes" if row["within"] else "no",
        f"{100 * known['expected_drop']:+.2f}",
        f"{100 * known['bound']:.2f}" + ("" if row["selection_within"] else ", over the limit"),
        str(row["trials"]),
        f"{row['train_seconds']:.0f}",
        "" if share is None else f"{share:.0%}",
    ]


def _sweep_lines(sweep: Sequence[Row], config: dict[str, Any]) -> list[list[str]]:
    """The cheapest within the limit on validation rows, which no search can see, and on selection rows."""
    limit = config["max_drop"]
    count = f"{len(sweep)} of {len(config['targets'])}"
    seconds = f"{sum(row['train_seconds'] for row in sweep):.0f}"
    lines = []
    for by, rows in (("drop", "validation"), ("selection_drop", "selection")):
        head, row = f"sweep, seed {sweep[0]['seed']}: best on {rows} rows", best(sweep, limit, by=by)
        if row is None:
            lines.append([head, "none", *[""] * 6, count, seconds, ""])
            continue
        ratio = cost_ratio(row, sweep, limit)
        cells = [f"{row['relative_flops']:.3f}", "" if ratio is None else f"{ratio:.2f}", f"{100 * row['drop']:+.2f}"]
        lines.append([head, *cells, "", "yes" if row["drop"] <= limit else "no", "", "", count, seconds, ""])
    return lines


def _said_of_drops(searches: Sequence[Row], own: Sequence[Row], config: dict[str, Any]) -> str:
    kept = sum(row["within"] for row in searches)
    limit = f"{100 * config['max_drop']:g} point{'' if config['max_drop'] == 0.01 else 's'}"
    said = f"{kept} of {len(searches)} searches within {limit} on validation rows"
    return said + _met(kept >= SHARE * len(searches), searches, config)


def _said_of_costs(searches: Sequence[Row], own: Sequence[Row], config: dict[str, Any]) -> str:
    """A search over the limit is cheap for it, so those with both are counted too."""
    pairs = [(row, cost_ratio(row, own, config["max_drop"])) for row in searches]
    found = [(row, ratio) for row, ratio in pairs if ratio is not None]
    if not found:
        return "no point of a sweep to compare their cost with"
    average = mean(ratio for _, ratio in found)
    near = [row for row, ratio in found if ratio <= COST]
    met = _met(average <= COST, searches, config)
    said = f"cost {average:.2f} of the sweep's best point on average{met}, at most {COST:g} in {len(near)}"
    said += f" and within the limit as well in {sum(row['within'] for row in near)}"
    fair = [cost_ratio(row, own, config["max_drop"], by="selection_drop") for row in searches]
    known = [ratio for ratio in fair if ratio is not None]
    return f"{said} ({mean(known):.2f} of the point that selection rows would take)" if known else said


def _said_of_work(searches: Sequence[Row], own: Sequence[Row], config: dict[str, Any]) -> str:
    units = ("train_seconds", "train_epochs")
    ratios = [[work_ratio(row, own, config, unit=unit) for row in searches] for unit in units]
    seconds, epochs = ([ratio for ratio in some if ratio is not None] for some in ratios)
    if not seconds:
        return "nothing is said of training before the sweep is complete"
    met = _met(mean(epochs) <= TRAINING, searches, config)
    more = ", which is more than claimed" if mean(seconds) > TRAINING else ""
    return f"{mean(epochs):.0%} of the sweep's epochs of training{met} and {mean(seconds):.0%} of its seconds{more}"


def _met(claim: bool, searches: Sequence[Row], config: dict[str, Any]) -> str:
    """Said of all seeds or not at all."""
    return (" (as claimed)" if claim else " (not as claimed)") if _all_there(searches, config) else ""


def _all_there(searches: Sequence[Row], config: dict[str, Any]) -> bool:
    return len(searches) == len(config["seeds"])


def _places(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    return [row["relative_flops"] for row in rows], [100 * row["drop"] for row in rows]
