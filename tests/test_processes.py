"""Processes of thresher's own leave the script that called it alone."""

import subprocess
import sys
from pathlib import Path

import pytest

from thresher.processes import FreshProcesses

SCRIPT = """
import os, sys
from thresher.processes import FreshProcesses
print("begins", flush=True)
with FreshProcesses(2, initializer=os.getcwd) as processes:
    found = [processes.submit(os.getpid) for _ in range(4)]
    print(len({os.getpid(), *(each.result() for each in found)}) > 1)
print(__file__ == sys.argv[0], __spec__)
"""


def test_a_script_without_a_guard_runs_once(tmp_path: Path) -> None:
    """`thresher.bench(...)` stands in scripts like this one; each process that it starts would begin it anew."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    done = subprocess.run((sys.executable, str(script)), capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout.split("\n"), done.stderr) == (["begins", "True", "True None", ""], "")


def test_what_work_raises_is_raised_and_the_script_is_back() -> None:
    before = dict(vars(sys.modules["__main__"]))
    with FreshProcesses(1, initializer=int) as processes, pytest.raises(ValueError, match="invalid literal"):
        processes.submit(int, "x").result()
    assert vars(sys.modules["__main__"]).items() >= before.items()
