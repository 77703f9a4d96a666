"""Progress: silence is silent, bars show the latest numbers."""

import io

import pytest
from rich.console import Console

from thresher.training import progress
from thresher.training.progress import Bars, Silent


def test_silence(capsys: object) -> None:
    with Silent() as silent:
        silent.begin("soft", total=3)
        silent.step(loss=1.0, flops=None)
        silent.note("nothing to see")
    out, err = capsys.readouterr()  # type: ignore[attr-defined]
    assert (out, err) == ("", "")


def test_bars_show_stage_count_and_the_latest_numbers() -> None:
    screen = io.StringIO()
    with Bars(Console(file=screen, width=120, force_terminal=True, color_system=None)) as bars:
        bars.step(loss=1.0)  # before any stage: nothing to show it on
        bars.begin("finetune", total=2)
        bars.step(loss=9.0, flops=None, metric=None)
        bars.begin("soft", total=10, done=4)
        bars.step(loss=0.75, flops=0.5, metric=None)
        bars.step(loss=0.5, flops=None, metric=0.9)
        bars.note("dense: selection score 0.9000")
        bars._progress.refresh()  # what the next tick of the clock draws
        last = screen.getvalue().rsplit("soft", 1)[1]
    assert "6/10" in last
    assert "loss 0.500" in last and "flops 0.500" in last and "metric 0.900" in last
    assert "9.000" not in last  # another stage's loss
    assert "dense: selection score 0.9000" in screen.getvalue()


def test_a_stage_that_needs_fewer_steps_ends_full() -> None:
    screen = io.StringIO()
    with Bars(Console(file=screen, width=120, force_terminal=True, color_system=None)) as bars:
        bars.begin("thresholds", total=10)
        bars.step(flops=0.5)
        bars.begin("soft", total=3)
    assert "1/1" in screen.getvalue().rsplit("thresholds", 1)[1]


def test_a_log_file_gets_lines_instead_of_bars() -> None:
    screen = io.StringIO()
    with Bars(Console(file=screen, width=120)) as bars:
        bars.begin("soft", total=100)
        for step in range(100):
            bars.step(loss=float(step))
        bars.note("done")
    lines = screen.getvalue().splitlines()
    assert lines[0] == "soft 10/100  loss 9.000" and lines[9] == "soft 100/100  loss 99.000"
    assert lines[10:] == ["done"]


def test_a_log_file_gets_a_line_a_minute_and_each_measurement_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    screen = io.StringIO()
    with Bars(Console(file=screen, width=120)) as bars:
        bars.begin("hard", total=1000)
        for step in range(100):
            now += 25
            bars.step(loss=1.0, metric=0.5 if step == 1 else None)
    lines = screen.getvalue().splitlines()
    assert lines[:2] == ["hard 3/1000  loss 1.000  metric 0.500", "hard 6/1000  loss 1.000"]


def test_bars_make_others_for_the_same_screen() -> None:
    """One for every trial of a search, and brief ones, of which nothing is left, and nothing shown in a log file."""
    for terminal in (True, False):
        screen = io.StringIO()
        bars = Bars(Console(file=screen, width=80, force_terminal=terminal, color_system=None))
        other = bars.anew()
        assert isinstance(other, Bars) and other is not bars
        other.note("from another")
        assert screen.getvalue() == "from another\n"
        with bars.brief() as brief:
            brief.step()  # before any stage: nothing to show it on
            brief.begin("racing", total=2)
            brief.step()
            brief.step(flops=0.5)
        assert ("racing" in screen.getvalue()) == terminal
    assert screen.getvalue() == "from another\n"


def test_silence_makes_silence() -> None:
    silent = Silent()
    assert silent.anew() is silent and type(silent.brief()) is Silent
