"""Experiments whose rows are training runs: on a tiny model, from the dense model to table and figure."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli import tiny
from tests.experiments import runs
from thresher.errors import ConfigError, RunError
from thresher.experiments import table1, table1_page, tradeoff
from thresher.experiments.answers import ANSWERS, Answers, by_key, packed
from thresher.experiments.controls import controls_of
from thresher.experiments.experiment import Setting, key_of
from thresher.experiments.intervals import drawn_interval, lost_interval
from thresher.experiments.runner import RECORDS, chosen_keys, read_config, read_records, run
from thresher.experiments.trained import command_of, measure_trained, settings_of
from thresher.records import append_record
from thresher.tasks.glue import GLUE_TASKS

ROOT = Path(__file__).parents[2] / "experiments"
QUICK = {"max_steps": 2, "batch_size": 8, "precision": "fp32", "device": "cpu", "finetune_epochs": 1}


MARKS = "".join(f"<!-- {mark} -->\n<!-- end -->\n" for mark in ("table", "summary", "goals", "remarks"))


OF_TOKENS = """models = ["tiny"]
targets = [0.5]
[compared]
thresher = [0, 1]
dense = [0]
"""


def config(**more: Any) -> dict[str, Any]:
    task = {"name": "SST-2", "target": {"tiny": 0.6}, "paper": "the paper's"}
    return {"models": ["tiny"], "seeds": [0, 1], "train": QUICK, "tasks": {"sst2": task}, **more}


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    data = tmp_path / "data" / "sst2"
    data.mkdir(parents=True)
    tiny.save_model(tmp_path / "models" / "tiny", tiny.config(), head=False)
    rows = [{"sentence": text, "label": int(label == "positive")} for text, label in tiny.sentences(60)]
    tiny.write_rows(data / "train.jsonl", rows[:40])
    tiny.write_rows(data / "validation.jsonl", rows[40:])
    return {"models": tmp_path / "models", "data": tmp_path / "data", "work": tmp_path / "work"}


@pytest.mark.slow
def test_two_runs_share_nothing_but_the_machine(places: dict[str, Path], tmp_path: Path) -> None:
    """Two seeds at a time, each from a dense model of its own; then a table of them."""
    setting = Setting(config(), **places)
    progress = run(table1, tmp_path / "table1", setting, command="thresher reproduce table1", parallel=2)
    assert (progress.measured, progress.left) == (2, 0)
    rows = read_records(tmp_path / "table1" / RECORDS)
    wanted = {"task", "model", "method", "seed", "dense", "pruned", "gflops_dense", "gflops_pruned", "relative_flops"}
    for row in rows:
        assert wanted | {"train_seconds", "device", "versions", "command"} <= set(row)
        assert str(tmp_path) not in json.dumps(row)
        assert "--method thresher" in row["command"] and "--target-flops 0.6" in row["command"]
    left = {runs.without_digest(path.name) for path in places["work"].iterdir() if path.is_dir()}
    assert left == {"dense-sst2-tiny-0", "dense-sst2-tiny-1"}
    known = by_key(read_records(tmp_path / "table1" / ANSWERS), table1.KEY)
    for row in rows:
        answers = known[key_of(row, table1.KEY)]
        assert len(answers.said) == 20 and np.mean(answers.said == answers.truth) == pytest.approx(row["pruned"])
    page = tmp_path / "table1" / "README.md"
    page.write_text(MARKS, encoding="utf-8")
    table1.publish(rows, page.parent, config())
    text = page.read_text(encoding="utf-8")
    assert "| **SST-2** | tiny | mean of 2 |" in text and "fewer FLOPs on average over 1 rows" in text


def test_the_project_s_page_has_the_means(tmp_path: Path) -> None:
    """Where it has the mark for them; pages of others are left alone."""
    folder, front = tmp_path / "experiments" / "table1", tmp_path / "README.md"
    folder.mkdir(parents=True)
    (folder / "README.md").write_text(MARKS, encoding="utf-8")
    numbers = {"gflops_dense": 4.0, "gflops_pruned": 2.0, "relative_flops": 0.5}
    rows = [
        {"task": "sst2", "model": "tiny", "method": method, "seed": seed, "dense": 0.9 + seed / 100, **numbers, **score}
        for seed in (0, 1)
        for method, score in (("thresher", {"pruned": 0.9}), ("dense", {"pruned": 0.92 + seed / 100}))
    ]
    assert table1.publish(rows, folder, config()) == [folder / "README.md"]
    assert "mean of 2 |" in (folder / "README.md").read_text(encoding="utf-8")  # without the control
    front.write_text("mine\n", encoding="utf-8")
    assert table1.publish(rows, folder, config()) == [folder / "README.md"]
    front.write_text("before\n<!-- quality -->\n<!-- end -->\nafter\n", encoding="utf-8")
    assert len(table1.publish(rows, folder, config())) == 2
    text = front.read_text(encoding="utf-8")
    assert "| tiny, rows that took no part in training, mean of 2 seeds | SST-2 |" in text
    assert "| dense | 90.50 |" in text and "| **pruned** | 90.00 |" in text and "| fewer FLOPs | 2.00x |" in text
    assert "| dense, trained as long: the control | 92.50 |" in text
    assert text.startswith("before\n") and text.endswith("after\n")
    table1.publish(rows[:-1], folder, config())  # the last is a control
    assert "| dense, trained as long: the control | 92.00 (1 seed) |" in front.read_text(encoding="utf-8")


def scored(method: str, seed: int, score: float, **more: Any) -> dict[str, Any]:
    row = {"task": "sst2", "model": "tiny", "method": method, "seed": seed, "target": 0.5 if method != "dense" else 1.0}
    numbers = {"dense": 0.9, "gflops_dense": 4.0, "gflops_pruned": 2.0, "relative_flops": 0.5}
    return {**row, **numbers, "pruned": score, **more}


def test_a_control_of_another_experiment_stands_in(tmp_path: Path) -> None:
    """Until the table has its own, which count before others; rows are recorded again with what they gain."""
    folder = tmp_path / "table1"
    for name, rows in (("tradeoff", [scored("dense", 0, 0.91)]), ("table1", [scored("thresher", 0, 0.88)])):
        for row in rows:
            append_record(tmp_path / name / RECORDS, row)
    (gained,) = table1.joined(folder, config())
    assert (gained["control"], gained["control_from"], gained["pruned"]) == (0.91, 0.9, 0.88)
    append_record(folder / RECORDS, gained)
    assert table1.joined(folder, config()) == []
    (folder / "README.md").write_text(MARKS, encoding="utf-8")
    own = scored("dense", 0, 0.95)
    for controls, expected in (
        ([], "91.00 (90.00) | 88.00 | +2.00 | +3.30% | +3.30% |"),
        ([own], "95.00 (90.00) | 88.00 | +2.00 | +7.37% | +7.37% |"),
    ):
        table1.publish([gained, *controls], folder, config())
        assert f"| SST-2 | tiny | 0 | 90.00 | {expected}" in (folder / "README.md").read_text(encoding="utf-8")


def test_means_have_intervals_over_seeds() -> None:
    """Losses of 1, 2 and 3 points: a standard deviation of 1, and 4.30 of its standard errors."""
    rows = [scored("thresher", seed, 0.89 - seed / 100) for seed in range(3)]
    text = table1_page.table(rows, {}, config())
    assert "| **SST-2** | tiny | mean of 3 | 90.00 |  | 88.00 | +2.00 ± 2.48 |  |  |" in text
    controls = controls_of([scored("dense", seed, 0.9) for seed in range(3)])
    assert "| 88.00 | +2.00 ± 2.48 | +2.22% ± 2.76 |" in table1_page.table(rows, controls, config())
    assert "against the control: 2.22% lost on average; SST-2 2.2%." in table1_page.summary(rows, controls, config())


def trained(method: str, seed: int, score: float, hard: float, **more: Any) -> dict[str, Any]:
    words = f"--lr 1e-05 --hard-epochs {hard:g} --method {method} --seed {seed} --set score=value"
    return scored(method, seed, score, command=f"thresher prune dense --out OUT {words}", **more)


def test_a_control_that_was_not_trained_as_long_is_none(tmp_path: Path) -> None:
    """Its cell stays empty, means are of the seeds that have one, and a record that named it is corrected."""
    rows = [trained("thresher", seed, 0.87 + seed / 100, 2) for seed in range(2)]
    short, fair = trained("dense", 0, 0.95, 1), trained("dense", 1, 0.9, 2, dense=0.91)
    controls = controls_of([short, fair])
    text = table1_page.table(rows, controls, config())
    assert "| SST-2 | tiny | 0 | 90.00 |  | 87.00 | +3.00 |  |  |" in text
    assert "| SST-2 | tiny | 1 | 90.00 | 90.00 (91.00) | 88.00 | +2.00 | +2.22% | +1.11% |" in text
    assert "mean of 2 | 90.00 | 90.00 (91.00) | 87.50 | +2.50 ± 6.36 | +2.22% | +1.11% |" in text
    assert "| lost against the control, same seeds | 2.2% |" in table1_page.means(rows, controls, config())
    wrong = {**rows[0], "control": 0.95, "control_from": 0.9}
    for row in (wrong, rows[1], short, fair):
        append_record(tmp_path / "table1" / RECORDS, row)
    first, second = table1.joined(tmp_path / "table1", config())
    assert first == rows[0] and (second["control"], second["control_from"]) == (0.9, 0.91)


def test_goals_are_judged_on_rows_that_have_all_seeds() -> None:
    tasks = {name: {"name": name.upper(), "target": {"tiny": 0.5}} for name in ("one", "two", "three", "four", "five")}
    rows = [trained("thresher", seed, 0.895, 2, task="one") for seed in (0, 1)]
    rows += [trained("thresher", seed, 0.88, 2, task="two", relative_flops=0.6) for seed in (0, 1)]
    rows += [trained("thresher", 0, 0.8, 2, task="three")]
    controls = controls_of([trained("dense", seed, 0.9, 2, task=row["task"]) for row in rows for seed in (0, 1)])
    text = table1_page.goals(rows, controls, config(tasks=tasks))
    assert "**missed**; 2 of 9 are complete, with 1.83x" in text
    assert "1.8x on every row: **missed** on TWO 1.67x, 1.67x at least (TWO)" in text
    assert "within 1% of the dense score: **missed** on TWO 2.22%" in text
    assert "lost against the control on every row: **missed** on TWO 2.22%." in text
    assert "these means: THREE (1 of 2 seeds, losing 11.1% against the control); FOUR, FIVE (0 of 2 seeds)." in text
    one = table1_page.goals(rows[:2], {}, config(tasks={"one": tasks["one"]}))
    assert "1.8x on every row: **met** on all 1" in one and "no control yet: ONE" in one


def test_controls_are_trained_where_they_are_asked_for() -> None:
    found = table1.keys({**config(), "controls": ["tiny"]})
    assert [(key["method"], key["target"]) for key in found] == [("thresher", 0.6)] * 2 + [("dense", 1.0)] * 2


def test_only_some_rows_can_be_asked_for() -> None:
    keys = table1.keys({**config(), "controls": ["tiny"]})
    assert chosen_keys(keys, {"method": ["dense"], "seed": ["1"]}) == [keys[3]]
    assert chosen_keys(keys, {}) == keys
    with pytest.raises(ConfigError, match="--only seed=7: no row has it; there are: 0, 1"):
        chosen_keys(keys, {"seed": ["7"]})
    with pytest.raises(ConfigError, match="no row has 'way'; rows are told apart by: task, model"):
        chosen_keys(keys, {"way": ["x"]})


def test_test_sets_of_one_run_share_it(places: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Trained once; each row has the numbers of its own test rows, and the control is there for both."""
    data = places["data"] / "mnli"
    data.mkdir()
    rows = [{"premise": text, "hypothesis": "so", "label": i % 3} for i, (text, _) in enumerate(tiny.sentences(70))]
    for name, part in (("train", rows[:50]), ("validation_matched", rows[50:62]), ("validation_mismatched", rows[62:])):
        tiny.write_rows(data / f"{name}.jsonl", part)
    halves = {f"mnli-{split[:3]}": split for split in ("matched", "mismatched")}
    of = {name: {"name": name, "of": "mnli", "split": split, "target": {"tiny": 0.6}} for name, split in halves.items()}
    settings = config(seeds=[0], controls=["tiny"], tasks={"mnli": {}, **of})
    trained = runs.train_here(monkeypatch)
    folder = places["work"].parent / "table1"
    progress = run(table1, folder, Setting(settings, **places), command="thresher reproduce table1")
    assert (progress.measured, progress.left) == (4, 0)
    assert trained == ["dense-mnli-tiny-0", "mnli-tiny-thresher-0.6-0", "mnli-tiny-dense-1.0-0"]
    first, second, *_, again, last = read_records(folder / RECORDS)
    assert [first["task"], second["task"]] == ["mnli-mat", "mnli-mis"] and first["gflops_dense"] != second[
        "gflops_dense"
    ]
    assert "control" not in first and (again["task"], last["task"]) == (first["task"], second["task"])
    assert {"control", "control_from"} <= set(last)


def test_rows_of_another_experiment_stand_in_the_table(tmp_path: Path) -> None:
    settings = {**config(), "others": {"squad_v2": {"name": "Other", "experiment": "squad", "target": {"tiny": 0.5}}}}
    rows = [scored("thresher", 0, 0.88, task="squad_v2"), scored("thresher", 0, 0.1, task="squad_v2", target=0.4)]
    for row in [*rows, scored("dense", 0, 0.9, task="squad_v2"), scored("lat", 0, 0.2, task="squad_v2")]:
        append_record(tmp_path / "squad" / RECORDS, row)
    (tmp_path / "squad" / "config.toml").write_text(OF_TOKENS, encoding="utf-8")
    (tmp_path / "table1").mkdir()
    (tmp_path / "table1" / "README.md").write_text(MARKS, encoding="utf-8")
    table1.publish([scored("thresher", 0, 0.9)], tmp_path / "table1", settings)
    text = (tmp_path / "table1" / "README.md").read_text(encoding="utf-8")
    assert text.count("| Other | tiny |") == 1 and "| Other | tiny | 0 | 90.00 | 90.00 (90.00) | 88.00 |" in text


def test_a_run_that_the_deadline_stops_is_not_a_row(places: dict[str, Path]) -> None:
    (key, _) = table1.keys(config())
    assert measure_trained(key, Setting(config(), **places, deadline=time.monotonic())) is None


def test_a_run_that_fails_says_why(places: dict[str, Path]) -> None:
    broken = config(train={**QUICK, "lr": -1})
    with pytest.raises(RunError, match="dense-sst2-tiny-0-.{8} failed: .*lr"):
        measure_trained(table1.keys(broken)[0], Setting(broken, **places))


def test_the_nearest_setting_wins() -> None:
    found = {
        "train": {"lr": 1, "batch_size": 2, "small": {"lr": 3}},
        "tasks": {"rte": {"train": {"batch_size": 4, "small": {"batch_size": 5}}}},
    }
    assert settings_of(found, model="base", task="rte") == {"lr": 1, "batch_size": 4}
    assert settings_of(found, model="small", task="rte") == {"lr": 3, "batch_size": 5}
    key = {"task": "rte", "model": "small", "method": "lat", "target": 0.5, "seed": 7}
    words = command_of(key, found, source="M", rows=["--task", "rte", "--data", "D"], out="O")
    assert words[:8] == ["prune", "M", "--task", "rte", "--data", "D", "--out", "O"]
    assert " ".join(words[8:]) == "--lr 3 --batch-size 5 --method lat --seed 7 --target-flops 0.5"


def made(method: str, target: float, cost: float, score: float, seed: int = 0) -> dict[str, Any]:
    row = {"task": "sst2", "model": "tiny", "method": method, "target": target, "seed": seed}
    return {**row, "relative_flops": cost, "pruned": score, "dense": 0.9}


TRADED = [
    made("thresher", 0.4, 0.4, 0.86),
    made("thresher", 0.6, 0.6, 0.88),
    made("spatten", 0.4, 0.5, 0.86),
    made("spatten", 0.6, 0.7, 0.89),
    made("dense", 1.0, 1.0, 0.91),
]


def test_leads_are_taken_at_matched_cost() -> None:
    """Both cover 0.5 to 0.6: there thresher has 0.87 and 0.88, the other 0.86 and 0.875."""
    assert tradeoff.lead(TRADED, "sst2", "spatten") == pytest.approx([1.0, 0.5])
    assert tradeoff.lead(TRADED, "sst2", "lat") == []


def test_seeds_are_averaged() -> None:
    rows = [made("thresher", 0.5, 0.48, 0.8), made("thresher", 0.5, 0.52, 0.9, seed=1)]
    assert tradeoff.points(rows, "sst2", "thresher") == [pytest.approx((0.5, 0.85))]


def test_only_seeds_that_both_methods_have_are_compared() -> None:
    """Seed 1 of thresher is far better, and the rival has none; seed 2 lacks a target."""
    lucky = [made("thresher", 0.4, 0.4, 0.96, seed=1), made("thresher", 0.6, 0.6, 0.98, seed=1)]
    half = [made("thresher", 0.4, 0.4, 0.1, seed=2), made("spatten", 0.4, 0.5, 0.9, seed=2)]
    rows = [*TRADED, *lucky, *half]
    assert tradeoff.lead(rows, "sst2", "spatten") == pytest.approx([1.0, 0.5])
    assert tradeoff.whole_seeds(rows, "sst2", "thresher") == [0, 1]
    assert tradeoff.points(rows, "sst2", "thresher") == [pytest.approx((0.4, 0.91)), pytest.approx((0.6, 0.93))]


def test_a_lead_s_interval_is_of_tasks_seeds_and_costs() -> None:
    """Certain where nothing differs; wider where tasks do, and the mean of them inside."""
    assert drawn_interval([[[1.0, 1.0]], [[1.0]]]) == (1.0, 1.0)
    tasks, seeds, costs = ([[[0.0]], [[2.0]]], [[[0.0], [2.0]]], [[[0.0, 2.0]]])
    for leads in (tasks, seeds, costs):
        assert drawn_interval(leads) == (0.0, 2.0), "one draw in four has the same twice"
    low, high = drawn_interval([[[value]] for value in range(5)])
    assert 0 < low < 1.2 and 2.8 < high < 4
    settings = {"tasks": {"sst2": {"name": "SST-2"}}, "compared": {"thresher": [0], "spatten": [0], "dense": [0]}}
    assert "| 95% interval | +0.50 to +1.00 |" in tradeoff.verdict(TRADED, settings)
    assert "interval is above zero, **met**; no task" in tradeoff.verdict(TRADED, settings)
    worse = [{**row, "pruned": row["pruned"] - 0.02 * (row["method"] == "thresher")} for row in TRADED]
    text = tradeoff.verdict(worse, settings)
    assert "**missed for spatten**" in text and "**missed on SST-2 (spatten, -1.25)**" in text


def test_what_is_lost_has_an_interval_over_rows_and_seeds() -> None:
    """Of rows: what they give alone where seeds agree; of seeds: where rows say nothing. Values stand in any order."""
    spec, truth = GLUE_TASKS["sst2"], np.arange(400) % 2
    right, wrong = Answers(truth, truth), Answers(np.where(np.arange(400) < 40, 1 - truth, truth), truth)
    assert lost_interval(spec, [(right, right)] * 3) == (0.0, 0.0)
    low, high = lost_interval(spec, [(wrong, right)] * 3) or (0.0, 0.0)
    error = 100 * 1.96 * (0.1 * 0.9 / 400) ** 0.5
    assert (low, high) == pytest.approx((10 - error, 10 + error), abs=0.4), "the binomial formula"
    low, high = lost_interval(spec, [(wrong, right), (right, right), (right, right)]) or (0.0, 0.0)
    assert low == 0 and 6 < high < 11, "the seed that loses is drawn never, or twice of three times"
    assert lost_interval(spec, [(right, Answers(truth, 1 - truth))]) is None, "of other rows"
    grades = np.linspace(0, 5, 50)
    assert lost_interval(GLUE_TASKS["stsb"], [(Answers(grades / 2, grades), Answers(grades, grades))]) == (0.0, 0.0)


def test_the_table_s_interval_is_of_stored_answers(tmp_path: Path) -> None:
    """Where every seed and its control have them; else it is of the seeds alone."""
    rows = [scored(method, seed, score) for seed in (0, 1) for method, score in (("thresher", 0.75), ("dense", 1.0))]
    (tmp_path / "README.md").write_text(MARKS, encoding="utf-8")
    truth = np.arange(80) % 2
    for row in rows:
        table1.publish(rows, tmp_path, config())
        assert "+25.00% ± 0.00" in (tmp_path / "README.md").read_text(encoding="utf-8")
        said = np.where(np.arange(80) < (20 if row["method"] == "thresher" else 0), 1 - truth, truth)
        line = {name: row[name] for name in table1.KEY} | packed(said, truth, means="classes")
        append_record(tmp_path / ANSWERS, line)
        assert len(json.dumps(line)) < 300, "packed"
    table1.publish(rows, tmp_path, config())
    assert "| +25.00% (+16.2" in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_repetitions_take_the_place_of_runs_with_the_same_key() -> None:
    again = [
        {**made("thresher", 0.4, 0.41, 0.80), "variant": "race"},
        {**made("thresher", 0.6, 0.61, 0.10), "variant": "width-1"},  # other settings
        {**made("thresher", 0.4, 0.42, 0.20, seed=1), "variant": "race"},  # no such run
    ]
    assert tradeoff.repeated(TRADED, again) == [again[0], *TRADED[1:]]
    assert tradeoff.repeated(TRADED, []) == TRADED


def test_the_tradeoff_page_and_figure(tmp_path: Path) -> None:
    settings = {"tasks": {"sst2": {"name": "SST-2"}}, "compared": {"thresher": [0], "spatten": [0], "dense": [0]}}
    page = tmp_path / "README.md"
    marks = ("table", "verdict", "repeated")
    page.write_text("".join(f"<!-- {mark} -->\n<!-- end -->\n" for mark in marks), encoding="utf-8")
    written = tradeoff.publish(TRADED, tmp_path, settings)
    assert all(file.stat().st_size > 0 for file in written)
    text = page.read_text(encoding="utf-8")
    assert "| SST-2 | +0.50 / +0.75 |" in text and "| SST-2 | 90.00 | dense | 1 | 91.00 @ 1.000 |" in text


@pytest.mark.parametrize(("name", "rows"), [("table1", (30 + 9) + (15 + 9)), ("tradeoff", 5 * (5 * 3 * 3 + 3 + 1))])
def test_the_committed_settings_give_commands(name: str, rows: int) -> None:
    settings = read_config(ROOT / name)
    experiment = {"table1": table1, "tradeoff": tradeoff}[name]
    keys = experiment.keys(settings)
    assert len(keys) == rows == len({tuple(key.values()) for key in keys})
    for key in keys:
        assert "--lr" in command_of(key, settings, source="M", rows=[], out="O")
