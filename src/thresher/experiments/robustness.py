"""Trained on short inputs, tested on longer ones: the paper's table of robustness to length."""

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from thresher.errors import DataError
from thresher.experiments.experiment import Key, Row, Setting
from thresher.experiments.finished import opened, origin
from thresher.experiments.publish import markdown_table, write_between_marks
from thresher.experiments.table1 import check
from thresher.experiments.trained import trained_run
from thresher.experiments.trajectories import KEY, keys
from thresher.records import write_text

if TYPE_CHECKING:
    from thresher.tasks import Example, Task

__all__ = ["KEY", "check", "keys", "measure", "publish"]

BUCKETS = ("~Q2", "Q2~Q3", "Q3~")
_preparing = threading.Lock()
SHORT = "short"  # starts the names of runs and files: these models have not seen a long input


@dataclass(frozen=True)
class Split:
    """Training and selection rows below the median of the evaluation rows' lengths, and the evaluation rows in three
    buckets."""

    median: float
    third_quartile: float
    train: "list[Example]"
    selection: "list[Example]"
    of: int  # of all training rows
    buckets: "dict[str, list[Example]]"


def measure(key: Key, setting: Setting) -> Row | None:
    """One run, dense and pruned, bucket by bucket."""
    folder = setting.work / "-".join((SHORT, "rows", key["task"], key["model"]))
    with _preparing:
        task, split, words = _prepared(key["task"], setting.data_folder(), setting.model(key["model"]), folder)
    run = trained_run(key, setting, rows=words, name=SHORT)
    if run is None:
        return None
    setting.leftovers.append(run)
    return {
        "median": split.median,
        "third_quartile": split.third_quartile,
        "train_rows": {"short": len(split.train) + len(split.selection), "all": split.of},
        **by_bucket(run, replace(task, test=split.buckets)),
    }


@lru_cache(maxsize=8)
def _prepared(name: str, data: Path, model: Path, folder: Path) -> "tuple[Task, Split, list[str]]":
    """A task's rows, split and written once for all runs on them."""
    from transformers import AutoTokenizer

    from thresher.tasks import load_task

    task = load_task(name, data=data)
    split = split_by_length(task, AutoTokenizer.from_pretrained(model, trust_remote_code=False))
    return task, split, write_rows(split, folder)


def split_by_length(task: "Task", tokenizer: Any) -> Split:
    """Quantiles are of the evaluation rows, in tokens of whole rows, as published."""
    from thresher.evaluation.lengths import quantiles
    from thresher.tasks.encode import encode

    if task.spec.regression:
        raise DataError(f"task {task.spec.name} is a regression, and buckets are compared by accuracy; leave it out")
    tested = next(iter(task.test.values()))

    def lengths_of(rows: "list[Example]") -> list[int]:
        return encode(tokenizer, rows, max_length=None, positions=None).lengths

    lengths = lengths_of(tested)
    median, third = quantiles(lengths, (0.5, 0.75))
    places = [sum((length >= median, length > third)) for length in lengths]
    buckets = {
        name: [row for row, found in zip(tested, places, strict=True) if found == place]
        for place, name in enumerate(BUCKETS)
    }
    for name, rows in buckets.items():
        if not rows:
            raise DataError(f"task {task.spec.name} has too many evaluation rows of one length: none are {name}")
    train, selection = (
        [row for row, length in zip(rows, lengths_of(rows), strict=True) if length < median]
        for rows in (task.train, task.selection)
    )
    if not train or not selection:
        raise DataError(f"task {task.spec.name} has no training or no selection rows below {median:g} tokens")
    of = len(task.train) + len(task.selection) + len(task.left_out)
    return Split(median, third, train, selection, of=of, buckets=buckets)


def write_rows(split: Split, folder: Path) -> list[str]:
    """The rows as files, and the words that name them. Class numbers keep the task's order of classes."""
    folder.mkdir(parents=True, exist_ok=True)
    words, paired = [], False
    tested = [row for bucket in split.buckets.values() for row in bucket]
    for name, rows in (("train", split.train), ("selection", split.selection), ("test", tested)):
        lines = [{"text": row.text, "pair": row.pair, "label": row.label} for row in rows]
        write_text(folder / f"{name}.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        words += [f"--{name}", str(folder / f"{name}.jsonl")]
        paired = paired or any(row.pair is not None for row in rows)
    return [*words, *(["--pair-column", "pair"] if paired else [])]


def by_bucket(run: Path, task: "Task") -> Row:
    """Accuracy and cost of the pruned model and of the dense one that it comes from, on each test split."""
    from thresher.evaluation.quality import evaluate
    from thresher.models.checkpoint import load_dense

    with opened(run) as checkpoint:
        model, manifest = checkpoint.model, checkpoint.manifest
        found: dict[str, Row] = {}
        for method in ("pruned", "dense"):
            if method == "dense":
                dense = load_dense(manifest["base_model"], whole=True)[0].state_dict()
                model.load_state_dict({**model.state_dict(), **dense})
            for name in task.test:
                quality = evaluate(
                    model,
                    checkpoint.tokenizer,
                    task,
                    split=name,
                    max_length=manifest["recipe"]["max_length"],
                    pruned=method == "pruned",
                )
                about = {"rows": quality.rows, "tokens": quality.mean_length, "truncated": quality.truncated}
                found.setdefault(name, about)
                found[name] |= {method: quality.metrics["accuracy"], f"gflops_{method}": quality.gflops}
    for bucket in found.values():
        bucket["relative_flops"] = bucket["gflops_pruned"] / bucket["gflops_dense"]
    lengths = manifest.get("rule", {}).get("counts")  # LAT's, the same for every text
    return {"buckets": found, "counts": lengths, **origin(manifest)}


def publish(rows: Sequence[Row], folder: Path, config: dict[str, Any]) -> list[Path]:
    page = folder / "README.md"
    write_between_marks(page, "table", table(rows, config))
    write_between_marks(page, "rows", row_table(rows, config))
    return [page]


def row_table(rows: Sequence[Row], config: dict[str, Any]) -> str:
    """What was trained and tested on."""
    lines = []
    for task, about in config["tasks"].items():
        row = next((row for row in rows if row["task"] == task), None)
        if row is None:
            continue
        tested = [
            f"{row['buckets'][name]['rows']:,} of {row['buckets'][name]['tokens']:.1f} tokens" for name in BUCKETS
        ]
        trained = f"{row['train_rows']['short']:,} of {row['train_rows']['all']:,}"
        lines.append([about["name"], f"{row['median']:g} / {row['third_quartile']:g}", trained, *tested])
    return markdown_table(["task", "Q2 / Q3", "training rows below Q2", *BUCKETS], lines)


def table(rows: Sequence[Row], config: dict[str, Any]) -> str:
    """Means over seeds, the gap between method thresher and LAT seed by seed, and the paper's numbers."""
    lines = []
    for task, about in config["tasks"].items():
        own = {method: [r for r in rows if (r["task"], r["method"]) == (task, method)] for method in config["compared"]}
        dense = list({row["seed"]: row for found in own.values() for row in found}.values())  # a seed's rows share it
        if not dense:
            continue
        lines.append([about["name"], "dense", *(_cell(dense, name, "dense") for name in BUCKETS)])
        for method, found in own.items():
            if found:
                lines.append([about["name"], method, *(_cell(found, name, "pruned") for name in BUCKETS)])
        gap = [_gap(own.get("thresher", []), own.get("lat", []), name) for name in BUCKETS]
        lines.append([f"**{about['name']}**", "**thresher - lat**", *gap])
        paper: dict[str, list[list[float]]] = about.get("paper", {})
        for method, cells in paper.items():
            said = [f"*{score:.2f} @ {cost / 100:.3f}*" for score, cost in cells]
            lines.append([about["name"], f"*paper, RoBERTa-base: {method}*", *said])
        if paper:
            both = zip(paper["ltp"], paper["lat"], strict=True)
            gaps = [f"*{ours[0] - theirs[0]:+.2f}*" for ours, theirs in both]
            lines.append([about["name"], "*paper, RoBERTa-base: ltp - lat*", *gaps])
    return markdown_table(["task", "method", *BUCKETS], lines)


def _cell(rows: Sequence[Row], name: str, method: str) -> str:
    """Accuracy @ relative FLOPs (GFLOPs)."""
    buckets = [row["buckets"][name] for row in rows]
    cost = mean(bucket["relative_flops"] for bucket in buckets) if method == "pruned" else 1.0
    score, gflops = (mean(bucket[field] for bucket in buckets) for field in (method, f"gflops_{method}"))
    return f"{100 * score:.2f} @ {cost:.3f} ({gflops:.2f})"


def _gap(ours: Sequence[Row], theirs: Sequence[Row], name: str) -> str:
    """Points of accuracy, the mean of the seeds that both have and each of them."""
    mine, other = ({row["seed"]: row["buckets"][name]["pruned"] for row in rows} for rows in (ours, theirs))
    gaps = [100 * (mine[seed] - other[seed]) for seed in sorted(mine.keys() & other.keys())]
    if not gaps:
        return ""
    seeds = ", ".join(f"{gap:+.2f}" for gap in gaps)
    return f"**{mean(gaps):+.2f}** ({seeds})" if len(gaps) > 1 else f"**{mean(gaps):+.2f}**"
