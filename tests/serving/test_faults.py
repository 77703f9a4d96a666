"""Slow, rude and vanishing clients, failing batches, hanging engines, broken runs: only those concerned notice."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.serving.conftest import Client, served, setting
from thresher.serving.house import House
from thresher.serving.http.app import Options
from thresher.serving.queue import Limits

GOOD = {"inputs": "the film is good"}


class Stage:
    """Stands between a worker and what computes: holds batches, or lets them fail."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.in_flight, self.texts = inner, inner.in_flight, 0
        self.go, self.error, self.entered = threading.Event(), None, threading.Event()
        self.go.set()

    @property
    def stalls(self) -> int:
        return int(self.inner.stalls)

    def begin(self, tokens: Any, dial: float | None) -> Any:
        self.texts += len(tokens)
        return self.inner.begin(tokens, dial)

    def finish(self, begun: Any) -> Any:
        self.entered.set()
        assert self.go.wait(LONG)
        if self.error is not None:
            raise self.error
        return self.inner.finish(begun)


def staged(house: House, name: str) -> Stage:
    worker = house.runs[name].worker
    worker.computes = Stage(worker.computes)
    return worker.computes  # type: ignore[return-value]  # just put there


LONG = 120.0  # seconds that nothing takes, also where the machine is busy


@contextmanager
def two_runs(runs: Path, *, patience: float = LONG, body_s: float = LONG) -> Iterator[Client]:
    """Bodies of a megabyte at most. A test shortens only the time whose end it is about."""
    limits = Limits(timeout_s=LONG)
    house = House([setting(runs, name, limits=limits) for name in ("classes", "labels")], patience=patience)
    with served(house, Options(body_bytes=2**20, body_s=body_s)) as client:
        yield client


@pytest.fixture
def two(runs: Path) -> Iterator[Client]:
    with two_runs(runs) as client:
        yield client


@pytest.fixture
def impatient(runs: Path) -> Iterator[Client]:
    """An engine that is silent for a second hangs."""
    with two_runs(runs, patience=1.0) as client:
        yield client


def until(found: Any, seconds: float = LONG) -> bool:
    end = time.monotonic() + seconds
    while not found() and time.monotonic() < end:
        time.sleep(0.01)
    return bool(found())


def raw(client: Client, data: bytes) -> socket.socket:
    one = socket.create_connection(("127.0.0.1", client.port), timeout=LONG)
    one.sendall(data)
    return one


def head(length: int, path: str = "/run/classes/predict") -> bytes:
    return f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n".encode()


def test_large_bodies_are_refused_whether_they_say_so_or_not(two: Client) -> None:
    reply = two.post("/run/classes/predict", {"inputs": "x" * 10 * 2**20})
    assert reply.status == 413 and "larger than 1048576 bytes" in reply.json["error"]
    with raw(two, b"POST /run/classes/predict HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n") as one:
        piece = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
        found = b""
        try:
            for _ in range(40):
                one.sendall(piece)
            one.sendall(b"0\r\n\r\n")
            found = one.recv(300)
        except OSError:  # it hung up on us, which is as good
            found = b"413"
        assert b"413" in found
    assert two.post("/run/classes/predict", GOOD).status == 200


def test_a_body_that_does_not_come_is_not_waited_for(runs: Path) -> None:
    with two_runs(runs, body_s=1.0) as two, raw(two, head(100) + b'{"inputs":') as one:
        assert two.get("/livez").status == 200  # meanwhile
        assert b"408" in one.recv(300)


def test_a_head_that_does_not_come_is_not_waited_for(runs: Path) -> None:
    body = json.dumps(GOOD).encode()
    with served(House([setting(runs, "classes")]), wire_s=1.0) as client:
        with raw(client, b"") as silent, raw(client, b"POST /predict HT") as half:
            assert silent.recv(300) == half.recv(300) == b""  # hung up on
        with raw(client, head(len(body), "/predict") + body) as kept:  # a kept connection, and half a head after that
            assert b"200 OK" in kept.recv(10_000)
            kept.sendall(b"POST /predict HT")
            assert kept.recv(300) == b""
        stage = staged(client.house, "classes")
        stage.go.clear()
        with raw(client, head(len(body), "/predict") + body) as patient:  # a slow answer is not a slow head
            time.sleep(1.5)
            stage.go.set()
            assert b"200 OK" in patient.recv(300)


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/9.9\r\n\r\n", head(-5)])
def test_what_is_not_http_gets_an_error_like_all_others(two: Client, sent: bytes) -> None:
    with raw(two, sent) as one:
        top, _, body = one.recv(1000).partition(b"\r\n\r\n")
    assert top.startswith(b"HTTP/1.1 400 ") and b"connection: close" in top
    assert json.loads(body) == {"error": "Invalid HTTP request received.", "error_type": "Validation"}


def test_too_many_connections_are_told_so_and_health_is_not(two: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two.app, "crowded", lambda: True)
    reply = two.post("/run/classes/predict", GOOD)
    assert (reply.status, reply.headers["retry-after"]) == (429, "2")
    assert "too many connections" in reply.json["error"] and two.get("/readyz").status == 200


def test_a_client_that_does_not_read_holds_nobody_up(two: Client) -> None:
    body = json.dumps({"inputs": [["the film is good"]] * 2000}).encode()
    with raw(two, head(len(body)) + body) as lazy:
        for _ in range(3):
            assert two.post("/run/classes/predict", GOOD).status == 200
        found = b""
        while not found.endswith(b"]]"):
            found += lazy.recv(2**20)
    assert found.count(b"label") == 4000


def test_half_sent_requests_and_hang_ups_harm_nobody(two: Client) -> None:
    for data in (b"POST /pre", head(100) + b"{", b"\x16\x03\x01\x02\x00", b"GET / HTTP/9.9\r\n\r\n"):
        raw(two, data).close()
    assert two.post("/run/classes/predict", GOOD).status == 200


def test_what_a_client_left_behind_is_not_computed(two: Client) -> None:
    stage = staged(two.house, "classes")
    queue = two.house.runs["classes"].queue
    stage.go.clear()
    body = json.dumps(GOOD).encode()
    first = raw(two, head(len(body)) + body)
    assert stage.entered.wait(LONG)  # it is being computed
    second = raw(two, head(len(body)) + body)
    assert until(lambda: queue.waiting > 0)
    second.close()
    assert until(lambda: queue.waiting == 0)
    stage.go.set()
    assert b"200 OK" in first.recv(300)
    first.close()
    assert stage.texts == 1


def test_a_batch_that_fails_is_an_error_of_its_own(two: Client) -> None:
    stage = staged(two.house, "classes")
    stage.error = RuntimeError("a kernel tripped")
    reply = two.post("/run/classes/predict", GOOD)
    assert reply.status == 424 and reply.json["error_type"] == "Backend" and "a kernel tripped" in reply.json["error"]
    assert two.post("/run/labels/predict", GOOD).status == 200
    stage.error = None
    assert two.post("/run/classes/predict", GOOD).status == 200


def test_an_engine_that_hangs_is_noticed_and_others_go_on(impatient: Client) -> None:
    stage = staged(impatient.house, "classes")
    stage.go.clear()
    with ThreadPoolExecutor(1) as pool:
        stuck = pool.submit(impatient.post, "/run/classes/predict", GOOD)
        assert until(lambda: impatient.get("/run/classes/readyz").status == 503)
        assert "no sign of life" in impatient.get("/run/classes/readyz").json["error"]
        reply = impatient.post("/run/classes/predict", GOOD)
        assert reply.status == 503 and reply.json["error_type"] == "Unhealthy" and reply.headers["retry-after"]
        assert impatient.post("/run/labels/predict", GOOD).status == 200
        assert impatient.get("/readyz").status == impatient.get("/livez").status == 200
        stage.go.set()
        assert stuck.result().status == 200
    assert until(lambda: impatient.get("/run/classes/readyz").status == 200)


def test_the_only_engine_that_hangs_makes_the_server_unready(runs: Path) -> None:
    with served(House([setting(runs, "classes", limits=Limits(timeout_s=LONG))], patience=1.0)) as client:
        stage = staged(client.house, "classes")
        stage.go.clear()
        with ThreadPoolExecutor(1) as pool:
            stuck = pool.submit(client.post, "/predict", GOOD)
            assert until(lambda: client.get("/readyz").status == 503)
            assert client.get("/health").status == 503 and client.get("/livez").status == 200
            assert "thresher_engine_silent_seconds" in client.get("/metrics").body.decode()
            stage.go.set()
            assert stuck.result().status == 200
        assert until(lambda: client.get("/readyz").status == 200)


def test_a_request_of_a_hanging_engine_ends_with_its_deadline(two: Client) -> None:
    stage = staged(two.house, "classes")
    stage.go.clear()
    reply = two.post("/run/classes/predict", GOOD, {"x-thresher-timeout": "0.5"})
    assert reply.status == 504 and reply.json["error_type"] == "Timeout"
    stage.go.set()


def test_a_broken_run_is_unready_alone(two: Client) -> None:
    from thresher.errors import ModelError

    stage = staged(two.house, "classes")
    stage.error = ModelError("the device is gone")  # type: ignore[assignment]  # what a lost GPU raises
    assert two.post("/run/classes/predict", GOOD).status == 424
    assert two.post("/run/classes/predict", GOOD).status == 503
    assert two.get("/run/classes/readyz").status == 503 and two.get("/readyz").status == 200
    assert two.post("/run/labels/predict", GOOD).status == 200


def test_a_full_queue_refuses_with_a_time_to_come_back(runs: Path) -> None:
    limits = Limits(timeout_s=LONG, queue_tokens=20)
    with served(House([setting(runs, "classes", limits=limits)])) as client:
        stage = staged(client.house, "classes")
        stage.go.clear()
        with ThreadPoolExecutor(4) as pool:
            first = pool.submit(client.post, "/predict", GOOD)
            assert stage.entered.wait(LONG)
            waiting = [pool.submit(client.post, "/predict", GOOD) for _ in range(3)]
            assert until(lambda: client.house.runs["classes"].queue.waiting == 18)
            reply = client.post("/predict", GOOD)
            assert reply.status == 429 and int(reply.headers["retry-after"]) >= 1
            assert reply.json["error_type"] == "Overloaded"
            began = time.monotonic()
            assert [client.post("/predict", GOOD).status for _ in range(5)] == [429] * 5
            assert time.monotonic() - began > 0.4, "who comes back at once takes the engine's time"
            stage.go.set()
            assert [one.result().status for one in (first, *waiting)] == [200] * 4
        large = client.post("/predict", {"inputs": [["the film is good"]] * 10})
        assert large.status == 413 and "send fewer texts" in large.json["error"]


def test_keys_are_asked_for_everywhere_but_at_health(runs: Path) -> None:
    with served(House([setting(runs, "classes")]), Options(key=b"secret")) as client:
        for route in ("/predict", "/explain", "/"):
            assert client.post(route, GOOD).status == 401
        for header in ({"authorization": "Bearer wrong"}, {"authorization": "Basic secret"}, {"x-api-key": "sécret"}):
            assert client.post("/predict", GOOD, header).status == 401
        for route in ("/metrics", "/info", "/v1/models"):
            assert client.get(route).status == 401
        for route in ("/livez", "/readyz", "/health", "/", "/docs"):
            assert client.get(route).status == 200
        for header in ({"authorization": "Bearer secret"}, {"authorization": "secret"}, {"x-api-key": "secret"}):
            assert client.post("/predict", GOOD, header).status == 200
