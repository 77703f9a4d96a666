"""`thresher reproduce all`: rows of several experiments in one pool of places, in the plan's order, none for another's
trouble."""

import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli import tiny
from tests.experiments import runs
from tests.experiments.test_interruption import still_running
from thresher.cli import reproduce
from thresher.errors import ConfigError, RunError
from thresher.experiments import everything, trained
from thresher.experiments.everything import absent, measure_all, parts_of, publish_all
from thresher.experiments.experiment import EXPERIMENTS, Key, Places, Row, Setting, experiment_named
from thresher.experiments.runner import RECORDS, Part, Progress, chosen_keys, read_config, read_records

ROOT = Path(__file__).parents[2] / "experiments"
CALL = "reproduce all --folder {folder} --models {models} --data {data} --work {work}"


class Fake:
    """Notes which rows have a place, in their order, and how many places were taken at most."""

    KEY = ("model", "number", "seed")
    order: list[str]
    taken, most = 0, 0
    lock = threading.Lock()

    def __init__(self, name: str, *, fails: Exception | None = None, within: Callable[[Setting], None] | None = None):
        self.name, self.fails, self.within = name, fails, within
        self.published: list[int] = []

    def check(self, setting: Setting) -> None:
        setting.data_folder()

    def folders(self, key: Key, config: dict[str, Any]) -> list[str]:
        return config.get("folders", [])

    def keys(self, config: dict[str, Any]) -> list[Key]:
        more = {"way": config["way"]} if "way" in config else {}
        return [{"model": "m", "number": number, "seed": 0, **more} for number in config["numbers"]]

    def measure(self, key: Key, setting: Setting) -> Row | None:
        with setting.place() as free:
            if not free:
                return None
            with self.lock:
                Fake.order.append(f"{self.name}{key['number']}")
                Fake.taken += setting.weight
                Fake.most = max(Fake.most, Fake.taken)
            if self.within is not None:
                self.within(setting)
            time.sleep(0.01)
            with self.lock:
                Fake.taken -= setting.weight
            if self.fails is not None:
                raise self.fails
            return {"square": key["number"] ** 2}

    def publish(self, rows: Sequence[Row], folder: Path, config: dict[str, Any]) -> list[Path]:
        self.published.append(len(rows))
        return [folder / "README.md"]


class Call:
    """Fake experiments in a folder, and what a call of all of them says and gives."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, monkeypatch
        self.fakes: dict[str, Fake] = {}
        self.troubles: list[str] = []
        self.failures: list[str] = []
        (folder / "models" / "m").mkdir(parents=True)
        (folder / "data").mkdir()
        Fake.order, Fake.taken, Fake.most = [], 0, 0
        monkeypatch.setattr(everything, "experiment_named", self.fakes.__getitem__)
        monkeypatch.setattr(everything, "by_importance", lambda: list(self.fakes))
        monkeypatch.setattr(everything, "ORDER", ("a", "b"))

    def add(self, name: str, config: str, **about: Any) -> Fake:
        self.fakes[name] = Fake(name, **about)
        place = self.folder / "experiments" / name
        place.mkdir(parents=True)
        (place / "config.toml").write_text(config, encoding="utf-8")
        return self.fakes[name]

    def parts(self, **given: Any) -> list[Part]:
        places = {name: self.folder / name for name in ("models", "data", "work")}
        only = given.pop("only", {})
        setting = Setting({}, **places, **given)
        return parts_of(
            self.folder / "experiments", setting, only=only, device="cpu", on_trouble=lambda *said: self.trouble(*said)
        )

    def trouble(self, name: str, error: Exception) -> None:
        self.troubles.append(f"{name}: {error}")

    def measure(self, *, parallel: int = 2, **given: Any) -> dict[str, Progress]:
        parts = self.parts(**given)
        found = measure_all(
            parts,
            parallel=parallel,
            keep=False,
            on_row=lambda part, key, row: None,
            on_failure=lambda part, key, error: self.failures.append(f"{part.folder.name}: {error}"),
            on_trouble=self.trouble,
        )
        return {part.folder.name: one for part, one in zip(parts, found, strict=True)}


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    return Call(tmp_path, monkeypatch)


def test_the_name_is_no_experiments() -> None:
    assert reproduce.ALL not in EXPERIMENTS


def unheard(*given: Any) -> None:
    """Nobody listens."""


@pytest.mark.parametrize("parallel", [1, 3])
def test_rows_come_in_the_plans_order_and_never_more_than_there_are_places(call: Call, parallel: int) -> None:
    call.add("a", "numbers = [2, 1]")
    call.add("b", "numbers = [3, 4, 5]")
    call.add("c", "numbers = [6]")
    found = call.measure(parallel=parallel)
    assert found == {"a": Progress(2, 2, 0), "b": Progress(3, 3, 0), "c": Progress(1, 1, 0)}
    assert Fake.most <= parallel
    if parallel == 1:
        assert Fake.order == ["a2", "a1", "b3", "b4", "b5", "c6"]
    rows = read_records(call.folder / "experiments" / "b" / RECORDS)
    assert {row["command"] for row in rows} == {"thresher reproduce b --models models --data data"}


def test_what_is_important_comes_first_while_places_are_scarce(call: Call) -> None:
    """Rows of `a` take both places until all others wait; then the next of `a` gets the first that is free."""
    begun = threading.Barrier(2)
    waiting: list[int] = []

    def first_two_wait(setting: Setting) -> None:
        if setting.rank < 2:
            begun.wait()
            while len(setting.places._waiting) < 3:
                time.sleep(0.01)
            waiting.append(len(setting.places._waiting))

    call.add("a", "numbers = [1, 2, 3]", within=first_two_wait)
    call.add("b", "numbers = [4, 5]")
    call.measure()
    assert waiting and sorted(Fake.order[:2]) == ["a1", "a2"] and Fake.order[2] == "a3" and Fake.most == 2


def test_a_row_of_long_texts_takes_several_places(call: Call) -> None:
    call.add("a", "numbers = [1, 2, 3, 4]\n[all]\nplaces = 3")
    call.add("b", "numbers = [5, 6, 7, 8]")
    assert sum(one.measured for one in call.measure(parallel=4).values()) == 8
    assert Fake.most <= 4
    call.add("c", "numbers = [1, 2]\n[all]\nplaces = 9")
    assert call.measure()["c"] == Progress(2, 2, 0), "more than there are: all of them"


def test_who_needs_more_places_is_not_overtaken() -> None:
    places, order = Places(2), list[str]()
    assert places.acquire(0, timeout=1)

    def take(rank: int, weight: int) -> None:
        assert places.acquire(rank, timeout=20, weight=weight)
        order.append(f"{rank}")
        places.release(weight=weight)

    threads = [threading.Thread(target=take, args=given) for given in ((1, 2), (2, 1))]
    for number, thread in enumerate(threads, start=1):
        thread.start()
        while len(places._waiting) < number:
            time.sleep(0.01)
    assert order == [], "one place is free, but the first needs two"
    places.release()
    for thread in threads:
        thread.join()
    assert order == ["1", "2"]


def test_only_narrows_where_a_row_has_the_field_and_leaves_other_experiments_alone(call: Call) -> None:
    call.add("a", "numbers = [1, 2]")
    call.add("b", 'numbers = [2, 3]\nway = "x"')
    call.add("c", "numbers = [1]")
    assert call.measure(only={"way": ["x"], "number": ["2"]}) == {"a": Progress(0, 0, 0), "b": Progress(1, 1, 0)}
    assert call.measure(only={"number": ["2"]}) == {"a": Progress(1, 1, 0), "b": Progress(0, 1, 0)}
    with pytest.raises(ConfigError, match="--only number=7: no row has it; there are: 1, 2, 3"):
        call.measure(only={"number": ["1", "7"]})
    with pytest.raises(ConfigError, match="no row has 'soup'; rows are told apart by: model, number, seed, way"):
        call.measure(only={"soup": ["1"]})


def test_a_configuration_says_which_rows_may_be_beside_others(call: Call) -> None:
    call.add("a", "numbers = [1, 2]\n[all]\nonly = { number = ['2'] }")
    assert call.measure() == {"a": Progress(1, 1, 0)} and Fake.order == ["a2"]
    with pytest.raises(ConfigError, match="--only number=1: no row has it; there are: 2"):
        call.measure(only={"number": ["1"]})


@pytest.mark.parametrize("parallel", [1, 4])
def test_one_experiments_failure_is_not_the_others(call: Call, parallel: int) -> None:
    call.add("a", "numbers = [1, 2]", fails=RunError("no memory"))
    call.add("b", "numbers = [3]")
    found = call.measure(parallel=parallel)
    assert found == {"a": Progress(0, 0, 2, failed=2), "b": Progress(1, 1, 0)}
    assert call.failures == ["a: no memory"] * (2 if parallel == 1 else 4) and call.troubles == []


def test_what_is_wrong_with_an_experiment_is_said_once_and_the_others_go_on(call: Call) -> None:
    call.add("a", "numbers = [1, 2]\nfolders = ['imdb']\n[all]\ndata = 'prepared'")
    call.add("b", "numbers = [3]").publish = lambda rows, folder, config: [][1]  # type: ignore[method-assign]
    call.add("c", "numbers = [4]")
    call.add("d", "numbers = [5]")  # not in the plan either
    (call.folder / "experiments" / "c" / RECORDS).write_text("nonsense\n", encoding="utf-8")
    found = call.measure()
    assert found == {"a": Progress(0, 0, 2), "b": Progress(1, 1, 0), "d": Progress(1, 1, 0)}
    broken, left_out = call.troubles
    assert broken.startswith("c: ") and "not JSON" in broken
    assert left_out == f"a: left out, as these are not there: {call.folder / 'data' / 'prepared' / 'imdb'}"
    (call.folder / "experiments" / "c" / RECORDS).unlink()
    call.troubles.clear()
    assert publish_all(call.parts(), on_trouble=call.trouble) == []
    assert call.troubles == ["b: list index out of range"]


def test_pages_are_made_of_what_is_recorded_also_of_the_plans_experiments_that_lack_nothing(call: Call) -> None:
    one, two, other = call.add("a", "numbers = [1]"), call.add("b", "numbers = [2]"), call.add("c", "numbers = [3]")
    call.measure(only={"number": ["1", "3"]})
    parts = call.parts()
    assert [part.folder.name for part in parts] == ["a", "b"], "c lacks nothing, and is not in the plan"
    assert [file.parent.name for file in publish_all(parts, on_trouble=call.trouble)] == ["a"]
    assert (one.published, two.published, other.published) == ([1], [], [])


def test_the_deadline_ends_all(call: Call) -> None:
    call.add("a", "numbers = [1, 2]")
    call.add("b", "numbers = [3]")
    found = call.measure(deadline=time.monotonic() - 1)
    assert found == {"a": Progress(0, 0, 2), "b": Progress(0, 0, 1)} and Fake.order == []
    assert call.measure()["b"] == Progress(1, 1, 0), "the same call goes on"


def test_an_interruption_ends_all_and_the_same_call_goes_on(call: Call) -> None:
    def interrupt(setting: Setting) -> None:
        signal.raise_signal(signal.SIGINT)
        assert setting.stopping.wait(20)

    call.add("a", "numbers = [1]", within=interrupt)
    call.add("b", "numbers = [2, 3, 4]", within=lambda setting: setting.stopping.wait(20) and None)
    with pytest.raises(KeyboardInterrupt):
        call.measure()
    assert len(Fake.order) == 2, "rows that wait begin nothing"
    for fake in call.fakes.values():
        fake.within = None
    found = call.measure()
    assert [found[name].left for name in "ab"] == [0, 0] and [found[name].recorded for name in "ab"] == [1, 3]


TABLE1 = """
models = ["tiny"]
seeds = [0]
[train]
{train}
[tasks.sst2]
name = "SST-2"
target = {{ tiny = 0.6 }}
paper = "the paper's"
"""
QUERIES = """
models = ["tiny"]
seeds = [0]
targets = [0.6]
[train]
{train}
[variants.all]
score_queries = 1
[tasks.sst2]
name = "SST-2"
"""


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    """Two experiments of ours, with one task, on tiny models."""
    train = "\n".join(f"{name} = {value!r}" for name, value in runs.QUICK.items())
    for name, config in (("table1", TABLE1), ("queries", QUERIES)):
        (tmp_path / "experiments" / name).mkdir(parents=True)
        text = config.format(train=train)
        (tmp_path / "experiments" / name / "config.toml").write_text(text, encoding="utf-8")
        marks = "".join(f"<!-- {mark} -->\n<!-- end -->\n" for mark in ("table", "summary", "goals", "remarks"))
        (tmp_path / "experiments" / name / "README.md").write_text(marks, encoding="utf-8")
        (tmp_path / "README.md").write_text(marks, encoding="utf-8")
    return {"folder": tmp_path / "experiments", **runs.places(tmp_path)}


TRAINED = ["dense-sst2-tiny-0", "sst2-tiny-thresher-0.6-0", "sst2-tiny-thresher-all-0.6-0"]


def test_experiments_share_dense_models_while_they_are_trained(
    places: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = runs.train_here(monkeypatch)
    train, one = trained._finished, threading.Lock()  # the command's own words are the process's

    def finished(*given: Any) -> bool:
        with one:
            return train(*given)

    monkeypatch.setattr(trained, "_finished", finished)
    setting = Setting({}, **{name: places[name] for name in ("models", "data", "work")})
    parts = parts_of(places["folder"], setting, only={}, device="cpu", on_trouble=unheard)
    found = measure_all(parts, parallel=2, keep=False, on_row=unheard, on_failure=unheard, on_trouble=unheard)
    assert found == [Progress(1, 1, 0)] * 2 and sorted(names) == TRAINED


def test_a_table_says_how_far_each_is(places: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    names = runs.train_here(monkeypatch)
    done = tiny.thresher(CALL, **places)
    assert done.code == 0, done.err + done.out
    assert sorted(names) == TRAINED
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.out.splitlines() if "│" in line]
    assert lines == [["table1", "1", "1", "0", "0"], ["queries", "1", "1", "0", "0"]]
    assert "queries: sst2 tiny thresher all 0.6 0: " in done.out
    assert "| SST-2 |" in (places["folder"] / "queries" / "README.md").read_text(encoding="utf-8")
    again = tiny.thresher(f"{CALL} --draw", **places)
    assert again.code == 0 and "written" in again.out and "left" not in again.out


def test_an_interrupted_call_leaves_nothing_running(
    places: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = runs.endless_trainings(tmp_path, monkeypatch)
    another = QUERIES.format(train="batch_size = 9")  # its dense model is not table1's
    (places["folder"] / "queries" / "config.toml").write_text(another, encoding="utf-8")

    def send() -> None:
        runs.wait_for(started, 2)
        signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, unheard)
    try:
        threading.Thread(target=send, daemon=True).start()
        done = tiny.thresher(f"{CALL} --parallel 2", **places)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert done.code == 1 and "records have what was measured, and the same call goes on" in done.err
    assert still_running(started) == []


def test_folders_are_asked_for_and_what_is_not_in_them_is_named(places: dict[str, Path]) -> None:
    done = tiny.thresher("reproduce all --folder {folder} --work {work}", **places)
    assert done.code == 2 and "with --models DIR and --data DIR" in done.err
    (places["models"] / "tiny").rename(places["models"] / "other")
    done = tiny.thresher(CALL, **places)
    assert done.code == 1 and "trouble with table1, queries, as said above" in done.err
    for name in ("table1", "queries"):
        assert done.out.count(f"{name}: left out, as these are not there: {places['models'] / 'tiny'}") == 1
    done = tiny.thresher(CALL, **{**places, "folder": places["work"]})
    assert done.code == 1 and "config.toml does not exist; call this in the repository's root" in done.err


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_committed_experiments_say_what_their_rows_need(name: str, tmp_path: Path) -> None:
    config, its = read_config(ROOT / name), experiment_named(name)
    own = config.get("all", {})
    assert set(own) <= {"data", "places", "only"}
    keys = chosen_keys(its.keys(config), own.get("only", {}))
    setting = Setting(config, models=tmp_path, data=tmp_path)
    names = {place.name for place in absent(Part(its, ROOT / name, setting, {}, keys, recorded=0))}
    assert {key["model"] for key in keys if "model" in key} <= names
    expected = {
        "table1": {"mnli", "qqp"},
        "tries": {"imdb", "mnli"},
        "ner": {"conll2003"},
        "squad": {"squad_v2"},
        "long": {"imdb"},
    }
    assert expected.get(name, set()) <= names and not names & {"mnli-m", "mnli-mm"}


def test_rows_that_are_timed_are_not_beside_others() -> None:
    assert read_config(ROOT / "int8")["all"]["only"] == {"way": ["pruned"]}


def test_a_row_takes_as_many_places_as_it_weighs() -> None:
    setting = Setting({}, places=Places(4), weight=3)
    with setting.place() as free:
        assert free and not setting.places.acquire(0, timeout=0.01, weight=2)
    assert setting.places.acquire(0, timeout=0.01, weight=4)
