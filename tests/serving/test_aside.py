"""What is computed beside the queue, to explain, is let in, ends and gives way like what is in it."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving.conftest import Client, served, setting
from tests.serving.test_faults import LONG, head, raw, until
from thresher.engine.packed import PackedExecutor
from thresher.serving import explaining
from thresher.serving.house import House
from thresher.serving.pace import Pace
from thresher.serving.queue import Limits

SPANS = {"query": "a river", "documents": ["a warm long river"] * 64, "relevant_spans": {"threshold": 0.0}}
STATES = {"inputs": ["a warm long river"] * 64}
ROUTES = [("/run/reranker/v2/rerank", SPANS), ("/run/embedder/embed_all", STATES)]


@pytest.fixture
def client(runs: Path) -> Iterator[Client]:
    limits = Limits(timeout_s=LONG)
    with served(House([setting(runs, name, limits=limits) for name in ("reranker", "embedder")])) as client:
        yield client


class Watched:
    """Notes how many tokens are computed in a turn, and may take its time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float = 0.0) -> None:
        self.parts = list[int]()
        for name in ("trace", "states"):
            inner = getattr(PackedExecutor, name)

            def noting(executor: Any, packed: Any, inner: Any = inner) -> Any:
                self.parts.append(int(packed.ids.values.numel()))
                time.sleep(seconds)
                return inner(executor, packed)

            monkeypatch.setattr(PackedExecutor, name, noting)


@pytest.mark.parametrize(("route", "body"), ROUTES)
def test_many_texts_are_computed_in_parts_each_in_its_turn(
    client: Client, monkeypatch: pytest.MonkeyPatch, route: str, body: Any
) -> None:
    whole = client.post(route, body).json
    monkeypatch.setattr(explaining, "PORTION", 50)
    watched = Watched(monkeypatch)
    reply = client.post(route, body)
    assert reply.status == 200 and len(watched.parts) > 5 and max(watched.parts) <= 50
    found = reply.json["results"] if "results" in reply.json else reply.json
    assert found == pytest.approx(whole, abs=1e-5) if isinstance(found[0], float) else len(found) == 64


@pytest.mark.parametrize(("route", "body"), ROUTES)
def test_what_is_late_is_not_computed_on(
    client: Client, monkeypatch: pytest.MonkeyPatch, route: str, body: Any
) -> None:
    monkeypatch.setattr(explaining, "PORTION", 50)
    watched = Watched(monkeypatch, seconds=0.5)
    reply = client.post(route, body, {"x-thresher-timeout": "1.5"})
    assert reply.status == 504 and "not computed within 1.5 s" in str(reply.json)
    time.sleep(1.5)  # in which three parts more would have begun
    assert len(watched.parts) < 6


def test_what_a_client_left_behind_is_not_explained(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explaining, "PORTION", 50)
    watched = Watched(monkeypatch, seconds=0.5)
    route, body = ROUTES[1]
    sent = json.dumps(body).encode()
    one = raw(client, head(len(sent), route) + sent)
    assert until(lambda: bool(watched.parts))
    one.close()
    assert until(lambda: client.house.waiting_aside == 0, 20)
    assert len(watched.parts) < 6


@pytest.mark.parametrize(("route", "body"), [*ROUTES, ("/run/reranker/explain", {"text": "a", "pair": "warm " * 30})])
def test_what_would_not_be_done_in_time_is_not_begun(
    client: Client, monkeypatch: pytest.MonkeyPatch, route: str, body: Any
) -> None:
    queue = client.house.runs[route.split("/")[2]].queue
    watched = Watched(monkeypatch)
    check = type(queue).check

    def full(self: Any, tokens: int, deadline: float, *, degrade: bool) -> None:
        if degrade:  # what goes through the queue
            return check(self, tokens, deadline, degrade=degrade)
        quick, self.pace = self.pace, Pace(1e9, batch_seconds=1.0, most_tokens=1000)
        try:
            return check(self, tokens, deadline, degrade=degrade)
        finally:
            self.pace = quick

    monkeypatch.setattr(type(queue), "check", full)
    reply = client.post(route, body)
    assert reply.status == 413 and not watched.parts


def test_dials_that_clients_try_do_not_stay(client: Client) -> None:
    engines = client.house.runs["reranker"].computing._at
    before = len(engines)
    for number in range(12):
        body = {"text": "a", "pair": "warm", "dials": [0.5 + number / 20]}
        assert client.post("/run/reranker/explain", body).status == 200
    assert len(engines) <= before + 1
