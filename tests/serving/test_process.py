"""The command as a process: it starts, says where it is, drains at SIGTERM, reloads at SIGHUP, and logs no texts."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.tiny import thresher
from tests.serving.test_faults import until
from thresher.errors import ConfigError
from thresher.jobs.serve import KEY_VARIABLE, ServeRequest, read_key

SECRET = "a very secret good film"


class Process:
    """`python -m thresher serve`; `lines` are what it has said on standard error."""

    def __init__(self, *words: str, **environment: str) -> None:
        start = environment.pop("start", "from thresher.cli import main; main()")
        command = [sys.executable, "-c", start, "serve", *words, "--port", "0", "--device", "cpu"]
        self.file = Path(tempfile.mkdtemp()) / "said"
        with self.file.open("wb") as log:
            self.popen = subprocess.Popen(command, stderr=log, env={**os.environ, **environment})
        # The limit is only for what would never end: nothing here is about how soon a busy machine loads a model.
        assert until(lambda: "http://" in self.said() or self.popen.poll() is not None, 600), self.said()
        found = re.search(r"http://\S+", self.said())
        assert found, self.said()
        self.url = found.group()

    def said(self) -> str:
        return self.file.read_text()

    def post(self, path: str, value: Any, **headers: str) -> Any:
        body = json.dumps(value).encode()
        request = urllib.request.Request(self.url + path, data=body, headers=headers)
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.loads(reply.read())

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=60) as reply:
            return str(reply.read().decode())


@contextmanager
def process(*words: str, **environment: str) -> Iterator[Process]:
    one = Process(*words, **environment)
    try:
        yield one
    finally:
        one.popen.kill()
        one.popen.wait()
        shutil.rmtree(one.file.parent)


def test_sigterm_answers_what_was_let_in_and_logs_no_text(runs: Path) -> None:
    with process(str(runs / "classes")) as server, ThreadPoolExecutor(8) as pool:
        assert server.post("/predict", {"inputs": SECRET})[0]["label"]
        many = {"inputs": [[SECRET]] * 400}
        asked = [pool.submit(server.post, "/predict", many) for _ in range(8)]
        assert until(lambda: 'thresher_batch_texts_count{run="classes"}' in server.get("/metrics"))
        time.sleep(0.05)
        server.popen.send_signal(signal.SIGTERM)
        answered = [one.result() for one in asked if one.exception() is None]
        assert server.popen.wait(60) == 0
        # A connection that was not accepted yet may be reset; what was let in is answered whole.
        assert answered and all(len(one) == 400 for one in answered)
        lines = [json.loads(line) for line in server.said().splitlines() if line.startswith("{")]
        assert {line["event"] for line in lines} >= {"request", "shutting down"}
        assert "secret" not in server.said()


def test_it_takes_its_key_from_the_environment_and_is_unready_before_it_ends(runs: Path) -> None:
    words = (str(runs / "classes"), "--unready", "300", "--log-level", "error")
    with process(*words, THRESHER_API_KEY="secret") as server:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            server.post("/predict", {"inputs": SECRET})
        assert '"ready":true' in server.get("/readyz"), "which needs no key"
        server.popen.send_signal(signal.SIGTERM)
        assert until(lambda: unready(server))
        answers = server.post("/predict", {"inputs": SECRET}, authorization="Bearer secret")
        assert answers, "who has not looked yet is still answered"
        server.popen.send_signal(signal.SIGTERM)
        assert server.popen.wait(60) == 0, "a second one does not wait"


def unready(server: Process) -> bool:
    try:
        server.get("/readyz")
    except urllib.error.HTTPError as error:
        return error.code == 503 and "shutting down" in json.loads(error.read())["error"]
    return False


HANGS = """
import time
from thresher.serving.computing import Computing
Computing.finish = lambda self, begun: time.sleep(600)
from thresher.cli import main
main()
"""


def test_what_takes_longer_than_drain_is_not_waited_for(runs: Path) -> None:
    words = (str(runs / "classes"), "--drain", "1", "--log-level", "error")
    with process(*words, start=HANGS) as server, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.post, "/predict", {"inputs": SECRET})
        assert until(lambda: 'thresher_flying_tokens{run="classes"} 0.0' not in server.get("/metrics"))
        server.popen.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert server.popen.wait(60) == 0 and time.monotonic() - began < 30, "as long as without --drain"
        assert asked.exception() is not None
        assert "secret" not in server.said() and "Traceback" not in server.said()


HUNG_UP_WHILE_LOADING = """
import os, signal
from thresher.serving import run
load = run.ServedRun.load
def loads(*given, **more):
    run.ServedRun.load = staticmethod(load)  # once, and not again when it loads anew
    os.kill(os.getpid(), signal.SIGHUP)
    return load(*given, **more)
run.ServedRun.load = staticmethod(loads)
from thresher.cli import main
main()
"""


def test_sighup_loads_runs_anew_and_ends_nothing(runs: Path, tmp_path: Path) -> None:
    """No server that still loads, no request, and no run whose files do not load again."""
    copy = tmp_path / "copy"
    shutil.copytree(runs / "classes", copy)
    words = (f"mine={copy}", "--log-level", "warning")
    with process(*words, start=HUNG_UP_WHILE_LOADING) as server, ThreadPoolExecutor(4) as pool:
        stop = time.monotonic() + 60
        done = False

        def ask() -> int:
            count = 0
            while not done and time.monotonic() < stop:
                assert server.post("/run/mine/predict", {"inputs": SECRET})
                count += 1
            return count

        asking = [pool.submit(ask) for _ in range(3)]
        server.popen.send_signal(signal.SIGHUP)
        good = until(lambda: 'thresher_reloads_total{outcome="good"} 1.0' in server.get("/metrics"), 50)
        done = True
        assert good and all(one.result() > 0 for one in asking)
        assert '"event"' not in server.said()  # nothing went wrong, and requests are not logged at this level
        (copy / "thresher.json").write_text("{}")
        server.popen.send_signal(signal.SIGHUP)
        assert until(lambda: "reload failed" in server.said())
        assert server.post("/run/mine/predict", {"inputs": SECRET})


FEW_FILES = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 400))
from thresher.cli import main
main()
"""


def test_more_connections_than_allowed_are_told_to_come_back(runs: Path) -> None:
    """There are as many files as connections need: more than the process began with, which is told to nobody."""
    words = (str(runs / "classes"), "--connections", "100", "--log-level", "warning")
    with process(*words, start=FEW_FILES) as server:
        port = int(server.url.rpartition(":")[2])
        assert server.post("/predict", {"inputs": SECRET})
        idle = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(120)]
        with pytest.raises(urllib.error.HTTPError) as refused:
            server.post("/predict", {"inputs": SECRET})
        assert (refused.value.code, json.loads(refused.value.read())["error_type"]) == (429, "Overloaded")
        assert '"ready":true' in server.get("/readyz"), "who looks after the server must not take it for dead"
        for one in idle:
            one.close()
        assert until(lambda: server.post("/predict", {"inputs": SECRET}))
        assert "few open files are allowed" not in server.said()


def test_fewer_files_than_connections_need_are_told(runs: Path) -> None:
    words = (str(runs / "classes"), "--connections", "1000", "--log-level", "warning")
    with process(*words, start=FEW_FILES) as server:
        port = int(server.url.rpartition(":")[2])
        idle = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(120)]
        assert '"ready":true' in server.get("/readyz")
        assert "few open files are allowed" in server.said()
        for one in idle:
            one.close()


@pytest.mark.parametrize("empty", ["", " \n"])
def test_an_empty_variable_does_not_let_everybody_in(monkeypatch: pytest.MonkeyPatch, empty: str) -> None:
    request = ServeRequest(runs=["run"])
    monkeypatch.setenv(KEY_VARIABLE, empty)
    with pytest.raises(ConfigError, match="THRESHER_API_KEY is empty; write the key into it, or unset it"):
        read_key(request)
    monkeypatch.setenv(KEY_VARIABLE, " schl\udcfcssel\n")  # whatever bytes it has
    assert read_key(request) == b"schl\xfcssel"
    monkeypatch.delenv(KEY_VARIABLE)
    assert read_key(request) is None


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("{run} {run}", 2, "the name classes is given to two runs"),
        ("{run} --port 99999", 2, "port = 99999 must be from 0 to 65535"),
        ("{run} --timeout 0", 2, "timeout = 0.0 must be a number above 0"),
        ("{run} --degrade", 2, "classes has no table of gears; measure it first: thresher bench classes --gears"),
        ("{run} --degrade --dial 2", 2, "gears start at 1"),
        (
            "{run} --on-drift dense",
            2,
            "nothing to compare classes with; measure it at dial 1 first",
        ),
        ("{run} --on-drift panic", 2, "on-drift = 'panic' is not one of: warn, dense"),
        ("{run} --log-level loud", 2, "log-level = 'loud' is not one of"),
        ("{run} --shadow 2", 2, "shadow = 2.0 must be from 0 to 1"),
        ("{run} --host 203.0.113.7", 1, "cannot listen on 203.0.113.7"),
        ("{run} --api-key-file {run}/none", 2, "cannot be read"),
        ("{run}/none", 1, "none"),
        ("=x", 2, "'=x' is not a run"),
    ],
)
def test_a_bad_call_is_one_line(runs: Path, words: str, code: int, says: str) -> None:
    done = thresher(f"serve {words}" + ("" if "--port" in words else " --port 0"), run=runs / "classes")
    assert (done.code, done.err.count("\n")) == (code, 1), done.err[-2000:]
    assert says in done.err
