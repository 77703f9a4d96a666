"""Tokenizing in other processes: the same tokens, whatever happens to a worker."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tokenizing.kinds import tokenizer
from tests.tokenizing.test_read import HOSTILE
from thresher.tokenizing import workers
from thresher.tokenizing.fast import FastTokenizer
from thresher.tokenizing.read import read_texts
from thresher.tokenizing.workers import TokenizingProcesses

OPTIONS: dict[str, Any] = {"limit": 16, "cuts": "longest_first", "pairs": None}
ITEMS: list[Any] = [item for text in HOSTILE for item in (text, (text, "the plot " * 9))] + [7, None, ("a", "b", "c")]


@pytest.fixture(scope="module")
def processes() -> Any:
    reader = FastTokenizer.of(tokenizer("wordpiece"))
    assert reader is not None
    found = TokenizingProcesses(reader, 2)
    assert_the_same(found, ITEMS)  # by nobody else, as long as nobody is ready
    found.wait()
    yield found
    found.close()


def assert_the_same(processes: TokenizingProcesses, items: list[Any]) -> None:
    found, expected = processes.read(items, **OPTIONS), read_texts(processes.tokenizer, items, **OPTIONS)
    assert found.rows() == expected.rows() and found.problems == expected.problems
    assert found.truncated.tolist() == expected.truncated.tolist()


def test_the_same_tokens(processes: TokenizingProcesses) -> None:
    for _ in range(3):  # every worker has a turn
        assert_the_same(processes, ITEMS)
    assert all(worker.process is not None for worker in processes._team.workers)


def test_a_worker_that_is_ended_takes_nothing_with_it(processes: TokenizingProcesses) -> None:
    victim = processes._team.workers[0].process
    assert victim is not None
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    for _ in range(4):
        assert_the_same(processes, ITEMS)


def test_an_item_that_cannot_be_sent(processes: TokenizingProcesses) -> None:
    assert_the_same(processes, ["a", lambda: None, "film"])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
def test_a_forked_child_leaves_its_parents_workers_alone(processes: TokenizingProcesses) -> None:
    child = os.fork()
    if child == 0:
        try:
            assert_the_same(processes, ITEMS)
            processes.close()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert_the_same(processes, ITEMS)


def test_after_the_end() -> None:
    reader = FastTokenizer.of(tokenizer("cased"))
    assert reader is not None
    found = TokenizingProcesses(reader, 1)
    found.wait()
    (worker,) = found._team.workers
    process = worker.process
    assert process is not None
    found.close()
    assert process.returncode is not None
    assert_the_same(found, ITEMS)


def test_an_end_before_the_beginning() -> None:
    reader = FastTokenizer.of(tokenizer("cased"))
    assert reader is not None
    found = TokenizingProcesses(reader, 3)
    found.close()
    assert_the_same(found, ITEMS)
    found.wait()
    assert_the_same(found, ITEMS)


def new_processes(count: int = 1) -> TokenizingProcesses:
    reader = FastTokenizer.of(tokenizer("wordpiece"))
    assert reader is not None
    found = TokenizingProcesses(reader, count)
    found.wait()
    return found


def test_what_lies_in_the_folder_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    found = new_processes()
    assert found._team.workers[0].process is not None
    found.close()


def test_what_is_printed_at_the_start_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('hi', flush=True)")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = new_processes()
    assert found._team.workers[0].process is not None
    assert_the_same(found, ITEMS)
    found.close()


def test_a_worker_that_cannot_be_started_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise RuntimeError("no more processes")

    monkeypatch.setattr(workers.subprocess, "Popen", refuse)
    found = new_processes(2)
    assert_the_same(found, ITEMS)
    found.close()


def test_ctrl_c_in_the_first_moment_is_not_for_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a terminal sends it to all processes, while this one still imports what it needs."""
    (tmp_path / "numpy.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nraise SystemExit(7)")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), *filter(None, sys.path)))}
    ended = subprocess.run([sys.executable, "-P", "-c", workers._SERVE], env=environment, stdin=subprocess.DEVNULL)
    assert ended.returncode == 7
