"""The experiment of queries: its committed settings, and a table of leads over runs that differ in nothing else."""

from pathlib import Path
from typing import Any

from tests.experiments import runs
from thresher.experiments import queries
from thresher.experiments.experiment import experiment_named
from thresher.experiments.runner import read_config
from thresher.experiments.trained import command_of, resolved

ROOT = Path(__file__).parents[2] / "experiments"


def test_the_committed_settings() -> None:
    settings = read_config(ROOT / "queries")
    keys = queries.keys(settings)
    assert experiment_named("queries") is queries
    assert len(keys) == 5 * 3 * 3 and all(set(key) == set(queries.KEY) for key in keys)
    assert settings["tasks"] == read_config(ROOT / "tradeoff")["tasks"]
    asked = {key["variant"]: resolved(key, settings)["score_queries"] for key in keys}
    assert asked == {"all": 1, "every-8": 8, "first": 0}
    words = command_of(keys[-1], settings, source="M", rows=[], out="O")
    assert words[words.index("score_queries=0") - 1] == "--set"


def made(variant: str, score: float, seed: int = 0) -> dict[str, Any]:
    row = {"task": "sst2", "model": "tiny", "method": "thresher", "variant": variant, "target": 0.46, "seed": seed}
    return {**row, "dense": 0.9, "pruned": score, "relative_flops": 0.46}


def test_page(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("<!-- table -->\n<!-- end -->\n", encoding="utf-8")
    config = runs.config("sst2", variants={"all": {}, "first": {}}, targets=[0.46])
    queries.publish([], tmp_path, config)
    assert "Not measured yet." in page.read_text(encoding="utf-8")
    rows = [made("all", 0.8), made("first", 0.7), made("all", 0.82, seed=1), made("first", 0.76, seed=1)]
    assert queries.publish([*rows, made("all", 0.84, seed=2)], tmp_path, config) == [page]
    text = page.read_text(encoding="utf-8")
    assert "| task | dense | all | first | lead of first |" in text
    assert "| SST2 | 90.00 ± 0.00 | 82.00 ± 1.15 @ 0.460 | 73.00 ± 3.00 @ 0.460 | -8.00 ± 2.00 (2) |" in text
    assert "| **all** |  |  |  | -8.00 ± 2.00 (2) |" in text
