"""The experiment of recipes: settings that become commands, a tiny run of a variant, and differences at equal cost."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.experiments import runs
from thresher.config import given_settings
from thresher.experiments import recipe
from thresher.experiments.experiment import Setting, experiment_named
from thresher.experiments.runner import RECORDS, in_order, read_config, read_records, run
from thresher.experiments.trained import command_of
from thresher.jobs.settings import resolve

ROOT = Path(__file__).parents[2] / "experiments" / "recipe"
VARIANTS = {
    "default": {},
    "attention-score": {"score": "attention"},
    "open-last-layer": {"method": "ltp", "collapse_last": False},
    "paper-1": {"recipe": "paper", "method": "ltp", "lambda_": 1.0},
}


def config(**more: Any) -> dict[str, Any]:
    own = {"target": 0.8, "targets": [0.7, 0.8], "variants": VARIANTS, **more}
    return runs.config("sst2", **own)


def command(variant: str, task: str = "qnli", target: float | None = 0.5) -> str:
    key = {"task": task, "model": "mpnet-base", "method": "thresher", "variant": variant, "target": target, "seed": 1}
    return " ".join(command_of(key, read_config(ROOT), source="M", rows=[], out="O"))


def resolved(words: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings that a command trains with, read as `thresher prune` reads them."""
    parts = words.split()[4:]
    pairs = list(zip(parts[::2], parts[1::2], strict=True))
    flags = [
        f"{'lambda_' if name == '--lambda' else name[2:].replace('-', '_')}={value}"
        for name, value in pairs
        if name not in ("--set", "--recipe")
    ]
    train, prune = given_settings([value for name, value in pairs if name == "--set"] + flags)
    found = resolve(dict(pairs).get("--recipe"), None, train_flags=train, prune_flags=prune)
    return found[0].to_dict(), found[1]


def test_the_committed_settings() -> None:
    settings = read_config(ROOT)
    keys = recipe.keys(settings)
    default, priced = len(settings["targets"]), 2
    reversals = len(settings["variants"]) - 1 - priced
    assert len(keys) == 2 * 3 * (default + reversals + priced) == len({tuple(key.values()) for key in keys})
    assert all(set(key) == set(recipe.KEY) for key in keys)
    assert experiment_named("recipe") is recipe
    for key in keys:
        resolved(" ".join(command_of(key, settings, source="M", rows=[], out="O")))
    assert "<!-- table -->" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("task", ["qnli", "mrpc"])
def test_a_variant_is_the_default_but_for_what_it_names(task: str) -> None:
    default = resolved(command("default", task))
    for name, settings in read_config(ROOT)["variants"].items():
        found = resolved(command(name, task, target=None if "lambda_" in settings else 0.5))
        changed = {
            key for now, before in zip(found, default, strict=True) for key in now if now[key] != before.get(key)
        }
        train, _ = found
        if not name.startswith("paper-1"):
            assert changed == set(settings)
        assert train["soft_epochs"] + train["hard_epochs"] == default[0]["soft_epochs"] + default[0]["hard_epochs"]


def test_the_literal_recipe_brings_its_own_rates() -> None:
    words = command("paper-1", target=None)
    assert "--recipe paper --lambda 1.0" in words and "--method ltp" in words and "target" not in words
    train, prune = resolved(words)
    assert (train["lr"], train["batch_size"], train["temperature"], train["target_flops"]) == (2e-5, 64, 1e-3, None)
    mild = {"ramp": "plain", "final_threshold": 0.01, "collapse_last": False}
    assert prune == {"score": "attention", "scale": "paper", **mild}
    assert "--set soft_mask=plain" in command("ltp-plain-mask")


def test_variants_start_from_one_dense_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = runs.train_here(monkeypatch)
    setting = Setting(config(targets=[0.8]), **runs.places(tmp_path))
    progress = run(recipe, tmp_path / "recipe", setting, command="thresher reproduce recipe")  # type: ignore[arg-type]
    assert (progress.measured, progress.left) == (4, 0)
    assert trained == [
        "dense-sst2-tiny-0",
        "sst2-tiny-thresher-default-0.8-0",
        "sst2-tiny-thresher-attention-score-0.8-0",
        "sst2-tiny-ltp-open-last-layer-0.8-0",
        "sst2-tiny-ltp-paper-1-None-0",
    ]
    rows = in_order(read_records(tmp_path / "recipe" / RECORDS), recipe, setting.config)  # type: ignore[arg-type]
    assert len(rows) == 4 and len({row["dense"] for row in rows}) == 1
    assert str(tmp_path) not in json.dumps(rows)
    default, _, whole, paper = rows
    assert default["kept_per_layer"][-1] == 1 < whole["kept_per_layer"][-1]
    assert paper["target"] is None and "--recipe paper --lambda 1.0" in paper["command"]


def made(variant: str, target: float | None, cost: float, score: float, seed: int = 0) -> dict[str, Any]:
    row = {"task": "sst2", "model": "tiny", "method": "thresher", "variant": variant, "target": target, "seed": seed}
    return {**row, "relative_flops": cost, "pruned": score, "dense": 0.9}


ROWS = [
    made("default", 0.7, 0.7, 0.84),
    made("default", 0.8, 0.8, 0.88),
    made("default", 0.7, 0.7, 0.85, seed=1),
    made("default", 0.8, 0.8, 0.87, seed=1),
    made("open-last-layer", 0.8, 0.75, 0.87),
    made("open-last-layer", 0.8, 0.75, 0.84, seed=1),
    made("paper-1", None, 0.75, 0.85),
    made("paper-1", None, 0.95, 0.89, seed=1),
]


def test_differences_are_paired_by_seed() -> None:
    own = [row for row in ROWS if row["variant"] == "open-last-layer"]
    assert recipe.same_target(ROWS, own) == pytest.approx([-1.0, -3.0])
    assert recipe.same_cost(ROWS, own) == [pytest.approx((86.0, 1.0)), pytest.approx((86.0, -2.0))]
    assert recipe.same_target(ROWS[:1], own) == recipe.same_cost([], own) == []


def test_outside_the_default_s_costs_nothing_is_said() -> None:
    paper = [row for row in ROWS if row["variant"] == "paper-1"]
    assert recipe.same_target(ROWS, paper) == []
    assert recipe.same_cost(ROWS, paper) == [pytest.approx((86.0, -1.0))]


def test_page_and_figure(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("<!-- table -->\n<!-- end -->\n", encoding="utf-8")
    written = recipe.publish(ROWS, tmp_path, config())
    assert [file.name for file in written] == ["README.md", "recipe.svg", "recipe.png"]
    assert all(file.stat().st_size > 0 for file in written)
    text = page.read_text(encoding="utf-8")
    assert "| SST2 | dense | 2 | 90.00 ± 0.00 | 1.000 |  |  |  |" in text
    assert "| SST2 | **default at 0.7** | 2 | 84.50 ± 0.50 | 0.700 |  |  |  |" in text
    assert "| SST2 | open-last-layer | 2 | 85.50 ± 1.50 | 0.750 | -2.00 ± 1.00 | 86.00 | -0.50 ± 1.50 |" in text
    assert "| SST2 | paper-1 | 2 | 87.00 ± 2.00 | 0.850 |  | 86.00 | -1.00 (1 of 2 seeds) |" in text
    assert "no-soft-stage" not in text  # not measured
    recipe.publish(ROWS[-1:], tmp_path, config())
    assert "| SST2 | paper-1 | 1 | 89.00 | 0.950 |  | outside |  |" in page.read_text(encoding="utf-8")
