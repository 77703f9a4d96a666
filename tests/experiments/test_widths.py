"""The experiment of widths: its committed settings, and a page that says what the race took."""

from pathlib import Path
from typing import Any

from tests.experiments import runs
from thresher.experiments import widths
from thresher.experiments.experiment import experiment_named
from thresher.experiments.runner import read_config
from thresher.experiments.trained import resolved

ROOT = Path(__file__).parents[2] / "experiments"


def test_the_committed_settings() -> None:
    settings = read_config(ROOT / "widths")
    keys = widths.keys(settings)
    assert experiment_named("widths") is widths
    assert all(set(key) == set(widths.KEY) for key in keys)
    assert settings["tasks"] == read_config(ROOT / "tradeoff")["tasks"]
    by_variant = {key["variant"]: resolved(key, settings)["widths"] for key in keys}
    assert by_variant["race"] == [1, 3, 5, 8]
    assert all(by_variant[f"width-{width}"] == [width] for width in (1, 2, 3, 5))


def made(variant: str, selection: float, score: float, **more: Any) -> dict[str, Any]:
    row = {"task": "sst2", "model": "tiny", "method": "thresher", "variant": variant, "target": 0.5, "seed": 0}
    return {**row, "selection_score": selection, "pruned": score, **more}


def test_page(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(
        "<!-- leads -->\n<!-- end -->\n<!-- table -->\n<!-- end -->\n", encoding="utf-8"
    )
    race = [
        {"step": 10, "divergence_by_width": {"1": 0.1, "3": 0.3, "5": 0.2}},
        {"step": 20, "divergence_by_width": {"1": 0.2, "5": 0.1}},
    ]
    rows = [
        made("race", 0.8, 0.9, race=race),
        made("width-1", 0.7, 0.6),
        made("width-3", 0.6, 0.95),
        made("race", 0.6, 0.7, race=race[:1], seed=1),
    ]
    config = runs.config("sst2", variants={"race": {}, "width-1": {}, "width-3": {}}, targets=[0.5])
    (page,) = widths.publish(rows, tmp_path, config)
    text = page.read_text(encoding="utf-8")
    assert (
        "| task | target | seed | race | width-1 | width-3 | best of the widths on selection rows | the race took |"
        in text
    )
    assert "| SST2 | 0.5 | 0 | 80.00 / 90.00 | 70.00 / 60.00 | 60.00 / 95.00 | 70.00 / 60.00 | 5 |" in text
    assert "| SST2 | 0.5 | 1 | 60.00 / 70.00 |  |  |  | 1 |" in text  # not complete, and so in no mean
    assert "| **mean of 1** |  |  | 80.00 / 90.00 | 70.00 / 60.00 | 60.00 / 95.00 | 70.00 / 60.00 |  |" in text
    assert "| SST2 | 1 | +10.00 / +30.00 | +20.00 / -5.00 | +10.00 / +30.00 |" in text
    assert "| **all** | 1 | +10.00 / +30.00 | +20.00 / -5.00 | +10.00 / +30.00 |" in text
