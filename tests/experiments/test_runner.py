"""Experiments go on where they stopped, and their records say where they come from."""

import json
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from thresher.errors import ConfigError, DataError, RunError
from thresher.experiments import runner
from thresher.experiments.answers import ANSWERS
from thresher.experiments.experiment import EXPERIMENTS, Key, Places, Row, Setting, experiment_named
from thresher.experiments.runner import RECORDS, Progress, in_order, read_config, read_records, run

COMMAND = "thresher reproduce squares --models models --data data"


class Squares:
    """Measures squares; `dies_at` interrupts it there, `cut_at` runs out of time there, `fails_at` gives an error."""

    KEY = ("number", "seed")

    def __init__(
        self,
        *,
        dies_at: int | None = None,
        cut_at: int | None = None,
        fails_at: int | None = None,
        error: Exception | None = None,
    ) -> None:
        self.dies_at, self.cut_at, self.fails_at = dies_at, cut_at, fails_at
        self.error = error or RunError("the row's own words")
        self.measured: list[int] = []
        self.checked = 0

    def check(self, setting: Setting) -> None:
        self.checked += 1

    def keys(self, config: dict[str, Any]) -> list[Key]:
        return [{"number": number, "seed": 7} for number in config["numbers"]]

    def measure(self, key: Key, setting: Setting) -> Row | None:
        if key["number"] == self.dies_at:
            raise KeyboardInterrupt
        if key["number"] == self.fails_at:
            raise self.error
        if key["number"] == self.cut_at:
            return None
        self.measured.append(key["number"])
        return {"square": key["number"] ** 2}

    def publish(self, rows: Sequence[Row], folder: Path, config: dict[str, Any]) -> list[Path]:
        return []


NUMBERS = Setting({"numbers": [3, 1, 2]})


def test_an_interrupted_experiment_goes_on(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(Squares(dies_at=1), tmp_path, NUMBERS, command=COMMAND)
    assert [row["number"] for row in read_records(tmp_path / RECORDS)] == [3]
    again = Squares()
    progress = run(again, tmp_path, NUMBERS, command=COMMAND)
    assert again.measured == [1, 2]
    assert (progress.measured, progress.recorded, progress.left) == (2, 3, 0)
    done = Squares()
    assert run(done, tmp_path, NUMBERS, command=COMMAND).measured == 0
    assert done.measured == [] and done.checked == 0  # nothing to do needs nothing


@pytest.mark.parametrize("parallel", [1, 2])
@pytest.mark.parametrize("error", [RunError("no"), KeyError("quality"), OSError("no space"), ValueError("nan")])
def test_a_row_that_fails_does_not_stop_the_others(error: Exception, tmp_path: Path, parallel: int) -> None:
    said: list[tuple[int, Exception]] = []
    progress = run(
        Squares(fails_at=3, error=error),
        tmp_path,
        NUMBERS,
        command=COMMAND,
        parallel=parallel,
        on_failure=lambda key, error: said.append((key["number"], error)),
    )
    assert progress == Progress(measured=2, recorded=2, left=1, failed=1)
    assert said == [(3, error)] * parallel, "beside others it is tried twice"
    assert run(Squares(), tmp_path, NUMBERS, command=COMMAND) == Progress(measured=1, recorded=3, left=0)


class Crowded(Squares):
    """Fails while more than one row is measured at a time."""

    def measure(self, key: Key, setting: Setting) -> Row | None:
        with setting.place():
            alone = not setting.places.acquire(-1, timeout=0)  # before all that wait
            if not alone:
                setting.places.release()
                raise RunError("out of memory")
            return super().measure(key, setting)


def test_what_failed_beside_others_is_tried_again_with_fewer(tmp_path: Path) -> None:
    said: list[int] = []
    crowded = Crowded()
    progress = run(
        crowded, tmp_path, NUMBERS, command=COMMAND, parallel=4, on_failure=lambda key, _: said.append(key["number"])
    )
    assert progress == Progress(measured=3, recorded=3, left=0)
    assert sorted(said) == sorted(crowded.measured) == [1, 2, 3]
    late = Setting({"numbers": [1]}, deadline=time.monotonic() - 1)
    assert run(Crowded(), tmp_path / "late", late, command=COMMAND, parallel=4) == Progress(0, 0, 1)


def test_a_row_cut_off_by_the_deadline_comes_again(tmp_path: Path) -> None:
    progress = run(Squares(cut_at=1), tmp_path, NUMBERS, command=COMMAND)
    assert (progress.measured, progress.left) == (1, 2)
    assert run(Squares(), tmp_path, NUMBERS, command=COMMAND).measured == 2


def test_no_row_begins_after_the_deadline(tmp_path: Path) -> None:
    late = Setting({"numbers": [1, 2]}, deadline=time.monotonic() - 1)
    progress = run(Squares(), tmp_path, late, command=COMMAND)
    assert (progress.measured, progress.left) == (0, 2)


def test_half_a_line_is_measured_again(tmp_path: Path) -> None:
    run(Squares(), tmp_path, NUMBERS, command=COMMAND)
    file = tmp_path / RECORDS
    whole = file.read_text(encoding="utf-8")
    file.write_text(whole[:-20], encoding="utf-8")  # killed while writing the last row
    again = Squares()
    run(again, tmp_path, NUMBERS, command=COMMAND)
    assert again.measured == [2]
    assert [row["square"] for row in read_records(file)] == [9, 1, 4]


def test_half_a_line_of_answers_is_written_again(tmp_path: Path) -> None:
    class Answered(Squares):
        def measure(self, key: Key, setting: Setting) -> Row | None:
            found = super().measure(key, setting)
            return None if found is None else {**found, "answers": {"said": "x" * key["number"]}}

    run(Answered(), tmp_path, NUMBERS, command=COMMAND)
    for name, cut in ((ANSWERS, 5), (RECORDS, None)):  # killed while writing the last answers, before their record
        lines = (tmp_path / name).read_text(encoding="utf-8").splitlines(keepends=True)
        half = "" if cut is None else lines[-1][:-cut]
        (tmp_path / name).write_text("".join(lines[:-1]) + half, encoding="utf-8")
    again = Answered()
    run(again, tmp_path, NUMBERS, command=COMMAND)
    assert again.measured == [2]
    said = [(row["number"], row["said"]) for row in read_records(tmp_path / ANSWERS)]
    assert said == [(3, "xxx"), (1, "x"), (2, "xx")]


def test_records_with_a_methods_former_name_are_read_with_the_present_one_and_stay_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / RECORDS
    written = '{"method": "learned", "variant": "soft-plain-mask", "seed": 0}\n'
    file.write_text(written, encoding="utf-8")
    assert read_records(file) == [{"method": "thresher", "variant": "ltp-plain-mask", "seed": 0}]
    assert file.read_text(encoding="utf-8") == written


def test_records_say_where_they_come_from(tmp_path: Path) -> None:
    run(Squares(), tmp_path, Setting({"numbers": [5]}, models=tmp_path, data=tmp_path), command=COMMAND)
    (row,) = read_records(tmp_path / RECORDS)
    assert row["square"] == 25 and row["seed"] == 7 and row["command"] == COMMAND
    assert row["versions"]["torch"] and row["device"] and row["seconds"] >= 0
    assert str(tmp_path) not in json.dumps(row)


def test_rows_in_the_order_of_the_configuration(tmp_path: Path) -> None:
    squares = Squares()
    run(squares, tmp_path, NUMBERS, command=COMMAND)
    rows = read_records(tmp_path / RECORDS)
    assert [row["number"] for row in in_order(rows, squares, {"numbers": [2, 3]})] == [2, 3]


def test_the_last_row_of_a_key_counts() -> None:
    rows = [{"number": number, "seed": 7, "square": square} for number, square in ((1, 0), (2, 4), (1, 1))]
    assert [row["square"] for row in in_order(rows, Squares(), {"numbers": [1, 2]})] == [1, 4]


class Training(Squares):
    """Has a run that is needed until its row is recorded; a row may interrupt the call while it is measured."""

    def __init__(self, *, interrupts_at: int | None = None) -> None:
        super().__init__()
        self.interrupts_at = interrupts_at

    def measure(self, key: Key, setting: Setting) -> Row | None:
        out = setting.work / str(key["number"])
        out.mkdir(parents=True, exist_ok=True)
        setting.leftovers.append(out)
        with setting.place() as free:
            if key["number"] == self.interrupts_at:
                signal.raise_signal(signal.SIGINT)
                setting.stopping.wait()  # until the main thread is at its end
            return {"square": key["number"] ** 2} if free else None


@pytest.mark.parametrize("parallel", [1, 3])
def test_a_run_is_kept_until_its_row_is_recorded(
    parallel: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = Setting({"numbers": [3, 1, 2]}, work=tmp_path / "work")
    append, there = runner.append_record, []

    def no_space(handle: int) -> None:
        raise OSError("no space left on device")

    def full(path: Path, row: Row) -> None:
        there.append((setting.work / str(row["number"])).is_dir())
        with pytest.MonkeyPatch.context() as patch:
            if row["number"] == 1:
                patch.setattr("thresher.records.os.fsync", no_space)
            append(path, row)

    monkeypatch.setattr(runner, "append_record", full)
    progress = run(Training(), tmp_path, setting, command=COMMAND, parallel=parallel)
    assert progress == Progress(measured=2, recorded=2, left=1, failed=1) and there == [True] * (
        3 if parallel == 1 else 4
    )
    assert sorted(row["square"] for row in read_records(tmp_path / RECORDS)) == [4, 9]
    assert [path.name for path in setting.work.iterdir()] == ["1"]


def test_an_interruption_loses_no_row_that_another_thread_has_measured(tmp_path: Path) -> None:
    setting = Setting({"numbers": [1, 2, 3, 4]}, work=tmp_path / "work")
    with pytest.raises(KeyboardInterrupt):
        run(Training(interrupts_at=2), tmp_path, setting, command=COMMAND, parallel=2)
    rows = read_records(tmp_path / RECORDS)
    assert 2 in {row["number"] for row in rows}
    kept = {path.name for path in setting.work.iterdir()}
    assert not kept & {str(row["number"]) for row in rows}


def test_an_interruption_while_a_row_is_shown_ends_the_others(tmp_path: Path) -> None:
    """It comes in the caller's code, not where rows are waited for."""
    stopping = []
    begun = threading.Barrier(3)

    class Waiting(Squares):
        def measure(self, key: Key, setting: Setting) -> Row | None:
            begun.wait()
            if key["number"] > 1:
                stopping.append(setting.stopping.wait())
                return None
            return {"square": 1}

    def interrupted(key: Key, row: Row) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        run(Waiting(), tmp_path, NUMBERS, command=COMMAND, parallel=3, on_row=interrupted)
    assert stopping == [True, True] and caught.tb, "with the error and all that it holds still at hand"


def test_bad_files_and_names(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="config.toml does not exist; call this in the repository's root"):
        read_config(tmp_path)
    (tmp_path / "config.toml").write_text("a = ", encoding="utf-8")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        read_config(tmp_path)
    (tmp_path / RECORDS).write_text("{}\nnonsense\n", encoding="utf-8")
    with pytest.raises(DataError, match="a line that is not JSON"):
        read_records(tmp_path / RECORDS)
    with pytest.raises(ConfigError, match="unknown experiment 'soup'; known experiments: lengths"):
        experiment_named("soup")
    with pytest.raises(ConfigError, match="--models DIR"):
        Setting({}).model("mpnet-base")
    with pytest.raises(ConfigError, match="--data .* is not a folder"):
        Setting({}, data=tmp_path / "no").data_folder()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_is_there(name: str) -> None:
    experiment = experiment_named(name)
    folder = Path(__file__).parents[2] / "experiments" / name
    config = read_config(folder)
    keys = [tuple(key.items()) for key in experiment.keys(config)]
    assert keys and len(set(keys)) == len(keys)
    assert all(tuple(name for name, _ in key) == experiment.KEY for key in keys)
    read_records(folder / RECORDS)


class Computing(Squares):
    """Looks at how many rows compute at a time: each waits until it is one of three."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.most = 0, 0
        self.counting, self.three = threading.Lock(), threading.Barrier(3)

    def measure(self, key: Key, setting: Setting) -> Row | None:
        with setting.place() as free:
            with self.counting:
                self.now += 1
                self.most = max(self.most, self.now)
            self.three.wait()
            with self.counting:
                self.now -= 1
        return {"square": key["number"] ** 2} if free else None


def test_no_more_rows_compute_than_asked_for(tmp_path: Path) -> None:
    several = Computing()
    many = Setting({"numbers": list(range(12))})
    assert run(several, tmp_path, many, command=COMMAND, parallel=3).measured == 12
    assert several.most == 3


def test_a_row_that_gets_no_place_before_the_deadline_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: 7.0)
    monkeypatch.setattr("thresher.experiments.experiment.time", clock)
    with Setting({}, deadline=6.0).place() as free:
        assert not free
    setting = Setting({}, deadline=7.05)
    with setting.place() as first, setting.place() as second:
        assert first and not second
    clock.monotonic = lambda: 7.1
    with setting.place() as after:
        assert not after, "the deadline has passed"
    stopped = Setting({})
    stopped.stopping.set()
    with stopped.place() as late:
        assert not late


def test_of_those_that_wait_the_lowest_rank_gets_the_place() -> None:
    places, order = Places(1), list[int]()
    assert places.acquire(0, timeout=1)
    waiting = threading.Barrier(4)

    def take(rank: int) -> None:
        waiting.wait()
        assert places.acquire(rank, timeout=20)
        order.append(rank)
        places.release()

    threads = [threading.Thread(target=take, args=(rank,)) for rank in (3, 1, 2)]
    for thread in threads:
        thread.start()
    waiting.wait()
    while len(places._waiting) < 3:
        time.sleep(0.01)
    assert not places.acquire(9, timeout=0.01), "there is no place"
    places.release()
    for thread in threads:
        thread.join()
    assert order == [1, 2, 3]


@pytest.mark.parametrize("keep", [False, True])
def test_runs_are_kept_where_asked_for(keep: bool, tmp_path: Path) -> None:
    class Leaving(Squares):
        def measure(self, key: Key, setting: Setting) -> Row | None:
            folder = tmp_path / f"run-{key['number']}"
            folder.mkdir()
            setting.leftovers.append(folder)
            return super().measure(key, setting)

    run(Leaving(), tmp_path, NUMBERS, command=COMMAND, keep=keep)
    assert len(list(tmp_path.glob("run-*"))) == (3 if keep else 0)
