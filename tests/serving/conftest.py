"""Tiny runs of every head, and servers of them on real sockets."""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import uvicorn

from tests.cli import kinds, tiny
from thresher.serving.house import House
from thresher.serving.http.app import App, Options
from thresher.serving.http.protocol import protocol
from thresher.serving.http.server import bound_socket
from thresher.serving.queue import Limits
from thresher.serving.run import Setting


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Calibrated runs: embedder, reranker, labels, and classes."""
    before = torch.get_num_threads()
    place = tmp_path_factory.mktemp("runs")
    found = kinds.calibrated(kinds.save_models(place))
    tiny.save_model(place / "classes", tiny.classifier_config())
    kinds.write_texts(place / "classes.txt", [text for text, _ in tiny.sentences(90)])
    call = "calibrate {dir}/classes --texts {dir}/classes.txt --agreement 0.9 --out {dir}/runs/classes"
    tiny.succeeds(call, dir=place)
    torch.set_num_threads(before)
    return found


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Client:
    """A server at `url`, and what it is made of."""

    url: str
    house: House
    app: Any
    server: uvicorn.Server

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def get(self, path: str, headers: dict[str, str] | None = None) -> Reply:
        return self._send(urllib.request.Request(self.url + path, headers=headers or {}))

    def post(self, path: str, value: Any, headers: dict[str, str] | None = None) -> Reply:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        sent = {"content-type": "application/json", **(headers or {})}
        return self._send(urllib.request.Request(self.url + path, data=body, headers=sent, method="POST"))

    def _send(self, request: urllib.request.Request) -> Reply:
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return Reply(reply.status, {k.lower(): v for k, v in reply.headers.items()}, reply.read())
        except urllib.error.HTTPError as error:
            return Reply(error.code, {k.lower(): v for k, v in error.headers.items()}, error.read())


@contextmanager
def served(house: House, options: Options | None = None, *, wire_s: float = 60.0) -> Iterator[Client]:
    """A server in a thread, for the length of a `with`."""
    app = App(house, options or Options())
    listening = bound_socket("127.0.0.1", 0)
    kind = protocol(wire_s)
    server = uvicorn.Server(uvicorn.Config(app, http=kind, lifespan="on", log_config=None, access_log=False))
    app.untaken = kind.untaken
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    until = time.monotonic() + 60
    while not server.started and time.monotonic() < until:
        time.sleep(0.01)
    assert server.started
    try:
        yield Client(f"http://127.0.0.1:{listening.getsockname()[1]}", house, app, server)
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def setting(runs: Path, name: str, **more: Any) -> Setting:
    limits = more.pop("limits", Limits(timeout_s=60.0))
    return Setting(path=str(runs / name), name=name, device="cpu", dtype="fp32", limits=limits, **more)


@pytest.fixture(scope="session")
def all_heads(runs: Path) -> Iterator[Client]:
    """One server of four runs."""
    names = ("classes", "labels", "reranker", "embedder")
    with served(House([setting(runs, name) for name in names])) as client:
        yield client


Alone = Callable[[str], Client]


@pytest.fixture(scope="session")
def alone(runs: Path) -> Iterator[Alone]:
    """A server of one run by its name, started when it is first asked for."""
    stack: list[Any] = []
    found: dict[str, Client] = {}

    def start(name: str) -> Client:
        if name not in found:
            context = served(House([setting(runs, name)]))
            found[name] = context.__enter__()
            stack.append(context)
        return found[name]

    yield start
    for context in stack:
        context.__exit__(None, None, None)
