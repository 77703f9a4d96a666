"""Film reviews that long texts are measured with, from IMDB.

    python -m thresher.experiments.long_rows --data DIR --out DIR

`--data` has imdb (train and test, which share no review). Rows are taken by the hash of their text, the same ones
wherever this runs; selection rows come from the training part.
"""

from pathlib import Path

from thresher.experiments.rows import chosen, prepared_by_command, read_rows, write_rows

TRAIN, SELECTION, TEST = 12_000, 1_000, 5_000


def prepare(data: Path, out: Path) -> dict[str, int]:
    """Write train, selection and test; returns the number of rows of each."""
    parts = {part: read_rows(data / "imdb" / f"{part}.jsonl.xz") for part in ("train", "test")}
    seen = chosen(parts["train"], TRAIN + SELECTION, key=lambda row: str(row["text"]), salt="long")
    unseen = chosen(parts["test"], TEST, key=lambda row: str(row["text"]), salt="long")
    rows = {"train": seen[SELECTION:], "selection": seen[:SELECTION], "test": unseen}
    return {name: write_rows(out / "imdb" / f"{name}.jsonl.xz", found) for name, found in rows.items()}


if __name__ == "__main__":
    prepared_by_command(prepare, __doc__)
