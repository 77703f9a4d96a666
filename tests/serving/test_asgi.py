"""The application without a server: where it may stand, and what it says when it cannot begin."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.serving.conftest import setting
from thresher.serving.house import House
from thresher.serving.http.app import LAST_S, App


@pytest.fixture(scope="module")
def app(runs: Path) -> App:
    return App(House([setting(runs, "classes")]))


def asked(app: App, scope: dict[str, Any], *messages: dict[str, Any]) -> list[dict[str, Any]]:
    """What the application sends."""
    found: list[dict[str, Any]] = []
    left = list(messages)

    async def receive() -> dict[str, Any]:
        return left.pop(0)

    async def send(message: dict[str, Any]) -> None:
        found.append(message)

    asyncio.run(app(scope, receive, send))
    return found


@pytest.mark.parametrize(
    ("root", "path", "status"),
    [
        ("", "/livez", 200),
        ("/api", "/api/livez", 200),
        ("/api", "/livez", 200),  # some servers leave it out
        ("/api", "/api", 200),  # the page
        ("/api", "/api/run/classes/readyz", 200),
        ("/api", "/apilivez", 404),
    ],
)
def test_it_may_stand_below_another_path(app: App, root: str, path: str, status: int) -> None:
    start, body = asked(app, {"type": "http", "method": "GET", "root_path": root, "path": path, "headers": []})
    assert start["status"] == status
    if path.endswith("livez") and status == 200:
        assert json.loads(body["body"]) == {"alive": True}


def test_a_beginning_that_fails_is_said(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    def start() -> None:
        raise RuntimeError("no thread can be started\nmore")

    monkeypatch.setattr(app.house, "start", start)
    sent = asked(app, {"type": "lifespan"}, {"type": "lifespan.startup"})
    assert sent == [{"type": "lifespan.startup.failed", "message": "no thread can be started"}]


def test_a_life_begins_and_ends(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    waited, close = [], app.house.close
    monkeypatch.setattr(app.house, "close", lambda timeout: (waited.append(timeout), close(timeout=timeout))[1])
    sent = asked(app, {"type": "lifespan"}, {"type": "lifespan.startup"}, {"type": "lifespan.shutdown"})
    assert [message["type"] for message in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert app.house.closing and waited == [LAST_S]
