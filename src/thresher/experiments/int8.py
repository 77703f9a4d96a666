"""Quality against bit operations, and texts a second: pruned alone, then in int8, calibrated and trained on."""

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from thresher.core.cost import FULL_BITS
from thresher.engine.arithmetic import STATIC
from thresher.experiments.experiment import Key, Row, Setting
from thresher.experiments.intervals import of_seeds
from thresher.experiments.publish import markdown_table, write_between_marks
from thresher.experiments.recipe import spread
from thresher.experiments.table1 import check
from thresher.experiments.trained import ensured, folder_name, trained_run
from thresher.report.figures import INK, pyplot_in_style, save_figure
from thresher.tasks.splits import spread as spread_rows

__all__ = ["KEY", "check", "keys", "measure", "publish"]

KEY = ("task", "model", "way", "target", "seed")
PRUNED, CALIBRATED, LONGER, TRAINED = "pruned", "calibrated", "longer", "trained"
WAYS = (PRUNED, CALIBRATED, LONGER, TRAINED)
NAMES = {
    PRUNED: "pruned",
    CALIBRATED: "pruned, int8 calibrated",
    LONGER: "pruned, trained on in float, int8 calibrated",
    TRAINED: "pruned, int8 trained on",
}
COLOURS = {PRUNED: "#7f7f7f", CALIBRATED: "#1f5fa8", LONGER: "#66a182", TRAINED: "#d1495b"}
COLUMNS = (
    *("task", "target", "way", "seeds", "dense", "score", "loss", "FLOPs", "fewer bit operations", "texts/s"),
    *("over calibrated", "over its control"),
)
LIMIT = 0.02  # of the dense model's score: the paper's
FEWER = 10.0  # times fewer bit operations: as the paper has them
TEXTS, PASSES = 512, 3  # timed on the CPU: so many test texts, the fastest pass of so many
# Where the speed of a way stands: in rows of which way, and in which field.
SPEEDS = {(way, way): "texts_per_second" for way in WAYS[1:]} | {(PRUNED, CALIBRATED): "float_texts_per_second"}
_timing = threading.Lock()  # one engine at a time


def keys(config: dict[str, Any]) -> list[Key]:
    """The ways of a run are neighbours, which share it; those of one cost come before those of the next."""
    return [
        {"task": task, "model": model, "way": way, "target": target, "seed": seed}
        for seed in config["seeds"]
        for model in config["models"]
        for target in config["targets"]
        for task in config["tasks"]
        for way in WAYS
    ]


def measure(key: Key, setting: Setting) -> Row | None:
    """The run stays in the work folder, for the other ways; its copy in int8 goes when it is recorded."""
    shared = {"task": key["task"], "model": key["model"], "method": "thresher"}
    run = trained_run({**shared, "target": key["target"], "seed": key["seed"]}, setting)
    if run is None:
        return None
    if key["way"] == PRUNED:
        return pruned_row(_manifest(run))
    words = words_after(key, setting.config)
    out = setting.work / folder_name("int8", *key.values(), settings={"words": words}, origin=[run.name])
    rows = ["--task", key["task"], "--data", str(setting.data_folder())]
    if not ensured(["quantize", str(run), *rows, "--out", str(out), *words], out, setting):
        return None
    setting.leftovers.append(out)
    with setting.place() as free:
        if not free:
            return None
        speed = pace(out, key, setting, dtype=STATIC)
        if key["way"] == CALIBRATED:  # beside it, as the runs themselves are trained beside others
            speed |= {f"float_{name}": value for name, value in pace(run, key, setting).items()}
    shown = ["thresher", "quantize", "runs/RUN", "--task", key["task"], "--data", "data", "--out", "runs/OUT", *words]
    return {**int8_row(_manifest(out), dense=_dense(_manifest(run))), **speed, "command": " ".join(shown)}


def pace(run: Path, key: Key, setting: Setting, *, dtype: str = "auto") -> Row:
    """Texts a second through the engine on the CPU, from texts to answers, and in which arithmetic."""
    from thresher.engine.engine import Engine
    from thresher.tasks import load_task

    task = load_task(key["task"], data=setting.data_folder())
    rows = spread_rows(next(iter(task.test.values())), TEXTS)
    items = [row.text if row.pair is None else (row.text, row.pair) for row in rows]
    with _timing:
        engine = Engine.load(run, device="cpu", dtype=dtype)
        engine.classify(items)  # warm
        seconds = []
        for _ in range(PASSES):
            began = time.perf_counter()
            engine.classify(items)
            seconds.append(time.perf_counter() - began)
    return {"texts_per_second": round(len(items) / min(seconds), 1), "arithmetic": engine.describe()["dtype"]}


def words_after(key: Key, config: dict[str, Any]) -> list[str]:
    """How int8 is made, and trained on: with the epochs and settings of [quantize], then of [tasks.TASK.quantize]. Its
    control trains as long in floating point."""
    if key["way"] == CALIBRATED:
        return ["--static-only"]
    settings = {**config.get("quantize", {}), **config["tasks"][key["task"]].get("quantize", {})}
    epochs = settings.pop("epochs")
    said = {name: str(value).lower() if isinstance(value, bool) else value for name, value in settings.items()}
    control = ["--unrounded"] if key["way"] == LONGER else []
    return [
        "--static-only",
        "--epochs",
        str(epochs),
        *control,
        *(word for name in said for word in ("--set", f"{name}={said[name]}")),
    ]


def pruned_row(manifest: dict[str, Any]) -> Row:
    """In floating point, as training measured it."""
    (found,) = manifest["quality"].values()
    cost = found["pruned"]["relative_flops"]
    return {
        "dense": _dense(manifest),
        "score": found["pruned"]["metrics"]["score"],
        "relative_flops": cost,
        "bits": FULL_BITS,
        "bit_operations_ratio": 1 / cost,
        **_origin(manifest["provenance"], manifest["seconds"]),
    }


def int8_row(manifest: dict[str, Any], *, dense: float) -> Row:
    """As the engine computes it on the CPU, in int8-static."""
    block = manifest["quantization"]
    found, training = block["quality"][STATIC], block.get("training")
    return {
        "dense": dense,
        "score": found["metrics"]["score"],
        "relative_flops": found["relative_flops"],
        "bits": 8,
        "bit_operations_ratio": 1 / found["bit_operations"],
        "agreement": found["agreement"],
        "fp32_score": block["quality"]["fp32"]["metrics"]["score"],
        **_origin((training or block)["provenance"], 0.0 if training is None else training["seconds"]),
    }


def publish(rows: Sequence[Row], folder: Path, config: dict[str, Any]) -> list[Path]:
    page = folder / "README.md"
    write_between_marks(page, "verdict", verdict(rows, config))
    write_between_marks(page, "goal", goal(rows, config))
    write_between_marks(page, "figure", "![quality against bit operations](int8.png)")
    write_between_marks(page, "table", table(rows, config))
    return [page, *draw(rows, folder, config)]


def points(rows: Sequence[Row], task: str, way: str) -> list[tuple[float, float, float]]:
    """(times fewer bit operations, score, dense score), each the mean of a target's seeds, from the dearest on."""
    own = [row for row in rows if (row["task"], row["way"]) == (task, way)]
    found = []
    for target in sorted({row["target"] for row in own}, reverse=True):
        seeds = [row for row in own if row["target"] == target]
        found.append(tuple(mean(row[name] for row in seeds) for name in ("bit_operations_ratio", "score", "dense")))
    return sorted((ratio, score, dense) for ratio, score, dense in found)


def verdict(rows: Sequence[Row], config: dict[str, Any]) -> str:
    """For each task and way, the cheapest point whose loss is below the limit."""
    lines = []
    for task, about in config["tasks"].items():
        cells = []
        for way in WAYS:
            within = [point for point in points(rows, task, way) if point[1] > (1 - LIMIT) * point[2]]
            cells.append(f"{within[-1][0]:.1f}x ({100 * within[-1][1]:.2f})" if within else "")
        if any(row["task"] == task for row in rows):
            lines.append([about["name"], *cells])
    return markdown_table([f"fewest bit operations at a loss below {LIMIT:.0%}", *NAMES.values()], lines)


def goal(rows: Sequence[Row], config: dict[str, Any]) -> str:
    """For each task whether a way in int8 saves enough at a mean loss below the limit, and whether its interval over
    seeds is below it, too: of the points that save enough, the one that loses least."""
    said = []
    for task, about in config["tasks"].items():
        found: dict[tuple[str, float], list[Row]] = {}
        for row in rows:
            if row["task"] == task and row["way"] != PRUNED:
                found.setdefault((row["way"], row["target"]), []).append(row)
        enough = {place: own for place, own in found.items() if _ratio(own) >= FEWER}
        if not enough:
            measured = ", ".join(f"{_ratio(own):.1f}x" for own in found.values())
            said += [f"- {about['name']}: **not shown**; measured are only {measured}."] if found else []
            continue
        place = min(enough, key=lambda place: mean(_losses(enough[place])))
        losses = _losses(enough[place])
        between, average = of_seeds(losses), mean(losses)
        sure = "one seed" if between is None else f"95% interval {between[0]:.2f}% to {between[1]:.2f}%"
        verdict = "missed" if average >= 100 * LIMIT else "met"
        if verdict == "met" and (between is None or between[1] >= 100 * LIMIT):
            verdict = "met by the mean, not by its interval"
        ratio = f"{_ratio(enough[place]):.1f}x fewer bit operations"
        said.append(f"- {about['name']}: **{verdict}**; {NAMES[place[0]]}, {ratio}, {average:.2f}% lost ({sure}).")
    return "\n".join([f"At least {FEWER:g}x fewer bit operations at a loss below {LIMIT:.0%}:", "", *said])


def _ratio(rows: Sequence[Row]) -> float:
    return float(mean(row["bit_operations_ratio"] for row in rows))


def _losses(rows: Sequence[Row]) -> list[float]:
    return [100 * (1 - row["score"] / row["dense"]) for row in rows]


def table(rows: Sequence[Row], config: dict[str, Any]) -> str:
    """A line for every task, way and cost: means over seeds, and how far training in int8 is ahead of int8 that is only
    calibrated, and of what was trained as long in floating point before."""
    lines = []
    for task, about in config["tasks"].items():
        for target in config["targets"]:
            same = [row for row in rows if (row["task"], row["target"]) == (task, target)]
            for way in WAYS:
                own = [row for row in same if row["way"] == way]
                ahead = [_ahead(own, same, other) if way == TRAINED else "" for other in (CALIBRATED, LONGER)]
                speeds = [row[name] for row in same if (name := SPEEDS.get((way, row["way"]))) in row]
                if own:
                    numbers = [*_numbers(own), f"{mean(speeds):.0f}" if speeds else ""]
                    lines.append([about["name"], f"{target:g}", NAMES[way], str(len(own)), *numbers, *ahead])
    return markdown_table(COLUMNS, lines)


def _ahead(own: Sequence[Row], same: Sequence[Row], way: str) -> str:
    """Points over the same run in another way."""
    others = {(row["model"], row["seed"]): row["score"] for row in same if row["way"] == way}
    pairs = [(row["score"], others.get((row["model"], row["seed"]))) for row in own]
    return spread([100 * (score - other) for score, other in pairs if other is not None], "+.2f")


def _numbers(rows: Sequence[Row]) -> list[str]:
    return [
        f"{100 * mean(row['dense'] for row in rows):.2f}",
        spread([100 * row["score"] for row in rows], ".2f"),
        f"{mean(_losses(rows)):.1f}%",
        f"{mean(row['relative_flops'] for row in rows):.3f}",
        f"{_ratio(rows):.1f}x",
    ]


def draw(rows: Sequence[Row], folder: Path, config: dict[str, Any]) -> list[Path]:
    """A panel for each task, a line for each way."""
    pyplot = pyplot_in_style()
    tasks = [task for task in config["tasks"] if any(row["task"] == task for row in rows)]
    figure, (panels,) = pyplot.subplots(
        1, len(tasks), figsize=(max(5.0, 4 * len(tasks)), 3.8), layout="constrained", squeeze=False
    )
    for axes, task in zip(panels, tasks, strict=True):
        dense = 100 * mean(row["dense"] for row in rows if row["task"] == task)
        for name, height, style in (("dense", dense, "-"), (f"dense - {LIMIT:.0%}", (1 - LIMIT) * dense, (0, (4, 3)))):
            axes.axhline(height, color=INK, linewidth=0.8, linestyle=style, label=name)
        for way in WAYS:
            line = points(rows, task, way)
            if line:
                ratios, scores = [point[0] for point in line], [100 * point[1] for point in line]
                axes.plot(ratios, scores, "o-", color=COLOURS[way], linewidth=1.8, markersize=4, label=NAMES[way])
        axes.set_title(config["tasks"][task]["name"], loc="left", fontweight="bold", color=INK)
        axes.set_xlabel("times fewer bit operations than dense fp16")
    panels[0].set_ylabel("score")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=len(names), frameon=False)
    files = save_figure(figure, folder, "int8")
    pyplot.close(figure)
    return files


def _manifest(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "thresher.json").read_text(encoding="utf-8"))
    return found


def _dense(manifest: dict[str, Any]) -> float:
    (found,) = manifest["quality"].values()
    return float(found["dense"]["metrics"]["score"])


def _origin(where: dict[str, Any], seconds: float) -> Row:
    return {"train_seconds": seconds, "device": where["device"], "versions": where["versions"]}
