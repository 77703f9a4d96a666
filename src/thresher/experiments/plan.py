"""What is not measured yet, in the order to measure it, and about how long that takes: in experiments/README.md.

python -m thresher.experiments.plan
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from thresher.experiments.experiment import EXPERIMENTS, Key, Row, experiment_named, key_of
from thresher.experiments.publish import markdown_table, write_between_marks
from thresher.experiments.runner import RECORDS, read_config, read_records

ORDER = ("squad", "table1", "queries", "long", "tradeoff", "int8", "ner", "tries")  # then any others
MARK = "plan"
ALIKE = ("task", "model", "method", "sentences")  # what decides how long a run takes, the last to be given up first
GUESS = 120.0  # seconds, where nothing like it was measured
PARALLEL = 4  # runs at a time: as the recorded ones had it, whose seconds are those beside others


def by_importance() -> list[str]:
    """All experiments, the most important first."""
    return [*ORDER, *(name for name in EXPERIMENTS if name not in ORDER)]


def missing_keys(folder: Path, name: str) -> list[Key]:
    """The rows that a configuration asks for and records do not have."""
    experiment, rows = experiment_named(name), read_records(folder / name / RECORDS)
    done = {key_of(row, experiment.KEY) for row in rows}
    return [key for key in experiment.keys(read_config(folder / name)) if key_of(key, experiment.KEY) not in done]


def seconds_of(key: Mapping[str, Any], records: Mapping[str, Sequence[Row]], name: str) -> float:
    """How long the likest recorded runs trained: first those of the same experiment, then those of any."""
    everything = [row for rows in records.values() for row in rows]
    for count in range(len(ALIKE), 0, -1):
        wanted = {field: key[field] for field in ALIKE[:count] if field in key}
        for rows in (records[name], everything):
            found = [row["train_seconds"] for row in rows if wanted.items() <= row.items() and row.get("train_seconds")]
            if found:
                return float(mean(found))
    return GUESS


def on_gpu(rows: Sequence[Row]) -> list[Row]:
    """Those of runs whose seconds are a GPU's."""
    return [row for row in rows if not str(row.get("device")).endswith("cores")]


def lines_of(folder: Path) -> list[list[str]]:
    """A line for each experiment that lacks rows: how many are there and missing, and minutes on the GPU, several runs
    at a time."""
    records = {name: on_gpu(read_records(folder / name / RECORDS)) for name in EXPERIMENTS}
    lines = []
    for name in by_importance():
        keys = missing_keys(folder, name)
        if keys:
            wanted = len(experiment_named(name).keys(read_config(folder / name)))
            trained = {tuple(field for field in key.items() if field[0] != "way"): key for key in keys}  # ways share it
            minutes = sum(seconds_of(key, records, name) for key in trained.values()) / 60 / PARALLEL
            dense = len({(key["task"], key.get("model"), key.get("sentences"), key.get("seed")) for key in keys})
            lines.append(
                [f"[{name}]({name}/README.md)", f"{wanted - len(keys)} of {wanted}", f"{minutes:.0f}", str(dense)]
            )
    return lines


def write(folder: Path) -> str:
    """The table, in the folder's page."""
    header = ["not complete", "rows measured", f"GPU minutes, {PARALLEL} runs at a time", "dense models"]
    table = markdown_table(header, lines_of(folder))
    write_between_marks(folder / "README.md", MARK, table)
    return table


if __name__ == "__main__":
    sys.stdout.write(write(Path("experiments")) + "\n")
