"""The experiment of searches: one tiny search beside a tiny sweep, and the numbers that are made of such rows."""

import json
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from tests.cli import tiny
from tests.experiments import runs
from thresher.core.cost import EncoderShape
from thresher.core.gates import ramp
from thresher.experiments import search, search_page, trained
from thresher.experiments.experiment import Setting, experiment_named
from thresher.experiments.runner import RECORDS, in_order, read_config, read_records, run
from thresher.training.budget import check_reachable

ROOT = Path(__file__).parents[2] / "experiments" / "search"
MARKS = "<!-- verdict -->\n<!-- end -->\n<!-- tables -->\n<!-- end -->\n"


def config(**more: Any) -> dict[str, Any]:
    own = {"max_drop": 0.01, "sweep_seeds": [0], "targets": [0.7, 0.8], "search": {"max_trials": 2}}
    return runs.config("sst2", **{**own, **more})


def test_the_committed_settings() -> None:
    settings = read_config(ROOT)
    keys = search.keys(settings)
    assert len(keys) == 2 * (10 + 16) == len({tuple(key.values()) for key in keys})
    assert experiment_named("search") is search
    words = " ".join(search.search_command(keys[1], settings, source="DENSE", data="D", out="O"))
    assert words.startswith("search DENSE --task sst2 --data D --out O --max-drop 1% --finetune never --seed 0 ")
    assert "--lr 5e-05 --batch-size 64" in words and "--hard-epochs 1.5" in words
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"<!-- {mark} -->" in page for mark in ("verdict", "tables"))


@pytest.mark.parametrize("length", [13, 53])  # mean lengths of SST-2's and MRPC's training rows
def test_every_target_of_the_sweep_can_be_had(length: int) -> None:
    shape = EncoderShape(layers=6, width=384, ffn_width=1536)
    thresholds = ramp("late", layers=6, final=1.0, collapse_last=True)
    for target in read_config(ROOT)["targets"]:
        check_reachable(shape, torch.tensor([length]), thresholds, target)
        assert target < 0.89  # what the collapsed last layer alone leaves


def test_a_search_and_a_sweep_from_one_dense_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = runs.train_here(monkeypatch)
    setting = Setting(config(targets=[0.8]), **runs.places(tmp_path))
    place = tmp_path / "search"
    assert run(search, place, setting, command="thresher reproduce search").left == 0  # type: ignore[arg-type]
    assert names == ["dense-sst2-tiny-0", "search-sst2-tiny-0", "sst2-tiny-thresher-0.8-0"]
    rows = in_order(read_records(place / RECORDS), search, setting.config)  # type: ignore[arg-type]
    assert str(tmp_path) not in json.dumps(rows)
    found, swept = rows
    assert found["dense"] == swept["dense"] and found["drop"] == pytest.approx(found["dense"] - found["pruned"])
    assert found["within"] == (found["drop"] <= 0.01) and 1 <= found["trials"] <= 2
    assert found["interval"][0] <= found["drop"] <= found["interval"][1]
    assert "search runs/sst2-tiny-0/dense" in found["command"] and "--max-trials 2" in found["command"]
    assert swept["train_epochs"] == 5.0  # 2 soft and 3 hard
    assert found["train_epochs"] == 5.0 + 1.5 * (found["trials"] - 1)
    (dense,) = (path for path in setting.work.iterdir() if path.is_dir())
    assert runs.without_digest(dense.name) == "dense-sst2-tiny-0"
    assert swept["selection_drop"] == tiny.manifest(dense)["selection_score"] - swept["selection_score"]
    assert found["selection_score"] == found["selection"]["score"]
    (place / "README.md").write_text(MARKS, encoding="utf-8")
    assert all(file.stat().st_size > 0 for file in search.publish(rows, place, setting.config))


@pytest.mark.parametrize(("left", "flag"), [("study.journal", "--resume"), ("state", "--resume"), ("", "--overwrite")])
def test_an_interrupted_search_goes_on(left: str, flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    popen = mock.Mock(return_value=mock.Mock(poll=lambda: 0, returncode=0))
    monkeypatch.setattr(trained.subprocess, "Popen", popen)
    (tmp_path / "out.partial" / left).mkdir(parents=True)
    assert trained.ensured(["search", "M"], tmp_path / "out", Setting({}, work=tmp_path))
    assert popen.call_args.args[0][-3:] == ["search", "M", flag]


def test_a_search_that_the_deadline_stops_is_not_a_row(tmp_path: Path) -> None:
    setting = Setting(config(), **runs.places(tmp_path), deadline=time.monotonic())
    assert all(search.measure(key, setting) is None for key in search.keys(setting.config))


def manifest(*, dense: float, pruned: float, cost: float, **more: Any) -> dict[str, Any]:
    whole = {"metrics": {"score": dense}, "gflops": 1.0}
    small = {"metrics": {"score": pruned}, "gflops": cost, "relative_flops": cost, "kept_per_layer": [3, 1]}
    recipe = {"soft_epochs": 2.0, "hard_epochs": 4.0, "target_flops": 0.5}
    about = {"device": "cpu", "versions": {}}
    quality = {"validation": {"dense": whole, "pruned": small}}
    return {"quality": quality, "recipe": recipe, "provenance": about, "seconds": 50.0, **more}


def point(dial: float, start: float | None, seconds: float, **more: Any) -> dict[str, Any]:
    known = {"relative_flops": 0.4, "score": 0.9, "drop": 0.0, "expected_drop": 0.002, "bound": 0.008}
    return {"dial": dial, "trained_from": start, "seconds": seconds, "chosen": False, **known, **more}


def test_given_up_trials_are_counted_like_the_longest_of_the_others() -> None:
    points = [point(1.0, None, 100.0), point(0.7, 0.6, 0.0, chosen=True), point(1.0, 0.6, 20.0), point(1.0, 0.5, 30.0)]
    report = {
        "points": points,
        "given_up": [0.3],
        "within": True,
        "settings": {"trial_share": 0.5},
        "seconds": 150.0,
        "held_out_drop": {"validation": {"drop": 0.02, "low": -0.01, "high": 0.04}},
    }
    row = search.search_row(manifest(dense=0.9, pruned=0.88, cost=0.4), report, limit=0.01)
    assert (row["trials"], row["given_up"], row["train_seconds"]) == (4, 1, 180.0)
    assert row["train_epochs"] == 6 + 3 * 2 and row["selection"]["bound"] == 0.008
    assert not row["within"] and row["selection_within"] and row["interval"] == [-0.01, 0.04]


def test_a_sweep_s_selection_drop_is_that_of_what_the_runs_keep() -> None:
    """Whatever else was seen on the way."""
    history = [{"stage": "hard", "score": 0.99, "relative_flops": 0.5}]
    row = search.sweep_row(
        manifest(dense=0.9, pruned=0.89, cost=0.5, history=history, selection_score=0.9), {"selection_score": 0.92}
    )
    assert row["selection_drop"] == pytest.approx(0.02) and row["drop"] == pytest.approx(0.01)
    assert row["selection_score"] == 0.9


def swept(cost: float, drop: float, selection: float) -> dict[str, Any]:
    key = {"task": "sst2", "model": "tiny", "kind": "sweep", "target": cost, "seed": 0}
    return {**key, "relative_flops": cost, "drop": drop, "selection_drop": selection} | WORK


def searched(seed: int, cost: float, drop: float) -> dict[str, Any]:
    key = {"task": "sst2", "model": "tiny", "kind": "search", "target": None, "seed": seed}
    known = {"expected_drop": 0.004, "bound": 0.0093}
    row = {**key, "relative_flops": cost, "drop": drop, "interval": [drop - 0.01, drop + 0.01], "within": drop <= 0.01}
    return {**row, "selection": known, "selection_within": seed == 0, "trials": 5, **WORK}


WORK = {"train_seconds": 100.0, "train_epochs": 6.0}
SWEEP = [swept(0.4, 0.03, 0.02), swept(0.5, 0.009, 0.015), swept(0.6, 0.012, 0.004), swept(0.8, 0.0, 0.0)]
SEARCHES = [searched(0, 0.5, 0.005), searched(1, 0.6, 0.002), searched(2, 0.45, 0.02)]
PAGE = config(targets=[0.4, 0.5, 0.6, 0.8], seeds=[0, 1, 2])


def test_the_best_point_is_the_cheapest_within_the_limit() -> None:
    taken, fair = search_page.best(SWEEP, 0.01), search_page.best(SWEEP, 0.01, by="selection_drop")
    assert taken is SWEEP[1] and fair is SWEEP[2]
    assert search_page.best(SWEEP, -0.01) is None
    rows = [*SWEEP, *SEARCHES]
    assert [search_page.cost_ratio(row, rows, 0.01) for row in SEARCHES] == pytest.approx([1.0, 1.2, 0.9])
    assert search_page.work_ratio(SEARCHES[0], rows, PAGE) == 0.25
    assert search_page.work_ratio(SEARCHES[0], rows[1:], PAGE) is None  # a part of a sweep is cheap


def test_a_seed_is_compared_with_its_own_sweep_if_there_is_one() -> None:
    other = {**SWEEP[3], "seed": 1}
    assert search_page.sweep_for(1, [*SWEEP, other]) == [other]
    assert search_page.sweep_for(2, [*SWEEP, other]) == SWEEP
    assert search_page.sweep_for(0, SEARCHES) == []


def test_the_verdict() -> None:
    said = search_page.verdict([*SWEEP, *SEARCHES], PAGE)
    assert "2 of 3 searches within 1 point on validation rows (not as claimed)" in said
    assert "cost 1.03 of the sweep's best point on average (as claimed), at most 1.1 in 2" in said
    assert "within the limit as well in 1 (0.86 of the point that selection rows would take)" in said
    assert "25% of the sweep's epochs of training (as claimed) and 25% of its seconds." in said
    delayed = [{**row, "train_seconds": 300.0} for row in SEARCHES]
    slow = search_page.verdict([*SWEEP, *delayed], PAGE)
    assert (
        "25% of the sweep's epochs of training (as claimed) and 75% of its seconds, which is more than claimed." in slow
    )
    early = search_page.verdict([*SWEEP[:1], *SEARCHES[:2]], PAGE)
    assert "(2 of 3 seeds so far): 2 of 2 searches" in early and "claimed" not in early
    assert "no point of a sweep" in early and "nothing is said of training" in early
    assert search_page.verdict(SWEEP, PAGE) == ""


def test_page_and_figure(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(MARKS, encoding="utf-8")
    written = search.publish([*SEARCHES, *SWEEP], tmp_path, PAGE)
    assert [file.name for file in written] == ["README.md", "search.svg", "search.png"]
    text = page.read_text(encoding="utf-8")
    assert "| search, seed 0 | 0.500 | 1.00 | +0.50 | -0.50 to +1.50 | yes | +0.40 | 0.93 | 5 | 100 | 25% |" in text
    assert "| no | +0.40 | 0.93, over the limit |" in text
    assert "| sweep, seed 0: best on validation rows | 0.500 | 1.00 | +0.90 |  | yes |  |  | 4 of 4 | 400 |  |" in text
    assert "| sweep, seed 0: best on selection rows | 0.600 | 1.20 | +1.20 |  | no |" in text
    for some in (SEARCHES[:1], SWEEP[:1]):  # nothing to compare with yet, and no sweep within the limit
        assert all(file.stat().st_size > 0 for file in search.publish(some, tmp_path, PAGE))
    assert "| sweep, seed 0: best on validation rows | none |" in page.read_text(encoding="utf-8")
