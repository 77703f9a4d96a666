"""What reaches the terminal: nothing that it would obey, one line for an error, and no traceback where it is narrow."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table
from rich.text import Text

from thresher import cli
from thresher.cli import output
from thresher.cli.output import Screen, fail, layers_table, print_json
from thresher.errors import RunError

HOSTILE = "good\x1b]0;owned\x07\x9b31m\u202e"
SHOWN = "good\\u001b]0;owned\\u0007\\u009b31m\\u202e"


def screen(**settings: Any) -> tuple[Screen, io.StringIO]:
    file = io.StringIO()
    return Screen(file=file, width=100, highlight=False, **settings), file


def test_text_tables_and_markup_are_shown_and_not_obeyed() -> None:
    table = Table(title="t")
    table.add_column(HOSTILE, min_width=60)
    table.add_row(HOSTILE)
    for renderable in (HOSTILE, Text(HOSTILE), table, f"[bold]{HOSTILE}[/bold]"):
        console, file = screen()
        console.print(renderable)
        assert SHOWN.replace("\\u0007", "") in file.getvalue()  # the library leaves out bells itself
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(file.getvalue())


def test_colours_of_our_own_stay() -> None:
    console, file = screen(force_terminal=True, color_system="truecolor")
    console.print(Text("red", style="red"))
    assert "\x1b[31mred" in file.getvalue()


def test_an_error_is_one_short_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(f"label {HOSTILE}\n\x1b[2J\udc80", code=2) == 2
    assert capsys.readouterr().err == f"error: label {SHOWN} \\u001b[2J\\udc80\n"
    fail("a" * 10_000 + "; name another", code=1)
    line = capsys.readouterr().err
    assert len(line) < 2100 and line.endswith("; name another\n") and " ... " in line


def test_the_json_line_says_the_same_and_is_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"label": HOSTILE, "path": "\udc80"})
    line = capsys.readouterr().out
    assert json.loads(line) == {"label": HOSTILE, "path": "\udc80"} and SHOWN in line


class Narrow(io.TextIOWrapper):
    """A stream as PYTHONIOENCODING=ascii makes it."""

    def __init__(self) -> None:
        self.inner = io.BytesIO()
        super().__init__(self.inner, encoding="ascii", write_through=True)


def test_ascii_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, Narrow())
    output.take_any_character()
    print_json({"label": "schön"})
    assert json.loads(sys.stdout.inner.getvalue()) == {"label": "schön"}  # type: ignore[attr-defined]
    console = output.console(as_json=False)
    console.print(layers_table({"mean_length": 8.0, "kept_per_layer": [8.0, 4.0]}))
    console.print("schön", markup=False)
    console.print("film₃", markup=False)
    fail("schön", code=1)
    written = sys.stdout.inner.getvalue()  # type: ignore[attr-defined]
    assert b"#" * 12 in written and b"sch\\xf6n" in written and b"film_3" in written
    assert sys.stderr.inner.getvalue() == b"error: sch\\xf6n\n"  # type: ignore[attr-defined]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_behind_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(RunError, match="cannot write the JSON line to standard output: No space left on device"):
            print_json({"a": 1})
        assert fail("so it is", code=1) == 1
        full.write("again")
        full.flush()  # goes nowhere now: Python's own flush at its end says nothing
    assert capsys.readouterr().err == "error: so it is\n"


def test_a_full_disk_anywhere_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device", "runs/first/a.json")

    monkeypatch.setattr(cli, "app", full)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 1
    line = capsys.readouterr().err
    assert (
        line == "error: cannot write runs/first/a.json: No space left on device; free some space, or write elsewhere\n"
    )

    def bug() -> None:
        raise FileNotFoundError(2, "No such file")

    monkeypatch.setattr(cli, "app", bug)
    with pytest.raises(FileNotFoundError):
        cli.main()
