"""Long texts: which rows are taken, what is measured, and what the page says of it."""

from pathlib import Path
from typing import Any

from thresher.experiments import long, long_rows
from thresher.experiments.rows import read_rows, write_rows
from thresher.experiments.runner import read_config

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "long"


def test_rows_are_chosen_by_their_text_and_no_review_stands_on_two_sides(tmp_path: Path, monkeypatch: Any) -> None:
    for name, count in {"TRAIN": 6, "SELECTION": 2, "TEST": 3}.items():
        monkeypatch.setattr(long_rows, name, count)
    for part in ("train", "test"):
        rows = [{"text": f"{part} {number}", "label": number % 2} for number in range(20)]
        write_rows(tmp_path / "imdb" / f"{part}.jsonl.xz", rows)
        write_rows(tmp_path / "turned" / "imdb" / f"{part}.jsonl.xz", rows[::-1])
    assert long_rows.prepare(tmp_path, tmp_path / "a") == {"train": 6, "selection": 2, "test": 3}
    long_rows.prepare(tmp_path / "turned", tmp_path / "b")
    found = {name: read_rows(tmp_path / "a" / "imdb" / f"{name}.jsonl.xz") for name in ("train", "selection", "test")}
    assert found["train"] == read_rows(tmp_path / "b" / "imdb" / "train.jsonl.xz"), "whatever the order of the file"
    texts = [row["text"] for rows in found.values() for row in rows]
    assert len(set(texts)) == 11 and all(row["text"].startswith("test") for row in found["test"])


def test_every_model_has_its_targets_and_a_control_of_each_seed() -> None:
    config = read_config(FOLDER)
    keys = long.keys(config)
    for model, targets in config["targets"].items():
        own = [key for key in keys if key["model"] == model]
        assert {key["seed"] for key in own if key["method"] == "dense"} == set(config["seeds"])
        assert len(own) == (len(targets) + 1) * len(config["seeds"])


def test_the_page_says_what_is_lost_against_the_control_of_the_same_seed(tmp_path: Path) -> None:
    def row(method: str, seed: int, score: float, cost: float) -> dict[str, Any]:
        about = {"model": "m", "method": method, "target": cost, "seed": seed, "dense": 0.9, "pruned": score}
        return {**about, "relative_flops": cost, "gflops_dense": 40.0, "gflops_pruned": 40 * cost}

    rows = [row("thresher", 0, 0.91, 0.25), row("thresher", 1, 0.90, 0.25), row("dense", 0, 0.92, 1.0)]
    rows.append(row("dense", 1, 0.94, 1.0))
    page = tmp_path / "README.md"
    page.write_text("<!-- means -->\n<!-- end -->\n<!-- table -->\n<!-- end -->\n", encoding="utf-8")
    assert long.publish(rows, tmp_path, {}) == [page]
    said = page.read_text(encoding="utf-8")
    assert "| m | 2 | 90.00 | 93.00 | 90.50 | +2.50 | +4.00 | 4.00x |" in said
    assert "| m | thresher | 1 | 90.00 | 90.00 | 40.0 -> 10.0 | 4.00x |" in said
