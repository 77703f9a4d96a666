"""What one connection can ask of the server: heads, offers and answers that nobody takes have an end."""

import contextlib
import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.serving.conftest import Alone, served, setting
from tests.serving.test_faults import GOOD, LONG, head, raw, until
from thresher.serving.house import House
from thresher.serving.http.app import Options
from thresher.serving.http.protocol import AHEAD, HEAD_BYTES

BODY = json.dumps(GOOD).encode()
MUCH = json.dumps({"inputs": "good film " * 50_000}).encode()  # /tokenize answers with several megabytes


def asks_for_much(client: Any, times: int = 1) -> socket.socket:
    """A client that asks, and does not read."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.connect(("127.0.0.1", client.port))
    one.settimeout(LONG)
    for _ in range(times):
        one.sendall(head(len(MUCH), "/tokenize") + MUCH)
    return one


@pytest.mark.parametrize("times", [1, 2])
def test_who_takes_no_answer_is_hung_up_on(runs: Path, times: int) -> None:
    with served(House([setting(runs, "classes")]), wire_s=1.0) as client, asks_for_much(client, times):
        found = client.server.server_state.connections
        assert until(lambda: len(found) == 1, 20)
        assert until(lambda: not found, 20)
        assert client.post("/predict", GOOD).status == 200


def test_who_takes_no_answer_does_not_keep_the_server_from_ending(runs: Path) -> None:
    with served(House([setting(runs, "classes")])) as client:
        lazy = asks_for_much(client)
        assert until(lambda: client.server.server_state.total_requests == 1, 20)
        began = time.monotonic()
    with lazy:
        assert time.monotonic() - began < 15


def test_who_reads_slowly_gets_all_of_it_while_the_server_ends(runs: Path) -> None:
    with served(House([setting(runs, "classes")])) as client:
        slow = asks_for_much(client)
        assert until(lambda: client.server.server_state.total_requests == 1, 20)
        client.server.should_exit = True
        found = b""
        for number in range(200):
            found += slow.recv(2**20)
            if found.endswith(b"]]"):
                break
            time.sleep(0.01 if number < 100 else 0.0)
        while not found.endswith(b"]]") and (part := slow.recv(2**20)):
            found += part
        slow.close()
    assert found.endswith(b"]]")


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /livez HTTP/1.1\r\nhost: x\r\nx-long: " + b"x" * (HEAD_BYTES + 1),
        b"GET /livez HTTP/1.1\r\n" + b"".join(b"x-%d: y\r\n" % number for number in range(HEAD_BYTES // 5)),
        b"GET /livez HTTP/1.1\r\nhost: x\r\nx-long: " + b"x" * (HEAD_BYTES + 1) + b"\r\n\r\n",
        b"GET /" + b"x" * (HEAD_BYTES + 1),
    ],
)
def test_a_head_has_a_largest_size(alone: Alone, sent: bytes) -> None:
    with raw(alone("classes"), sent) as one:
        found = b""
        while part := one.recv(4096):
            found += part
    top, _, body = found.partition(b"\r\n\r\n")
    assert top.startswith(b"HTTP/1.1 431 ") and b"connection: close" in top
    assert f"longer than {HEAD_BYTES} bytes" in json.loads(body)["error"] and b"\n" not in body


def test_what_follows_a_body_is_no_way_around_it(alone: Alone) -> None:
    top = b"POST /predict HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    with raw(alone("classes"), top + b"%x\r\n%b\r\n0\r\nx-trailer: " % (len(BODY), BODY)) as one:
        found = b""
        try:
            for _ in range(100):
                one.sendall(b"x" * 65_536)
            found = one.recv(300)
        except OSError:  # hung up on, as it should be
            found = b"431"
        assert b"431" in found
    assert alone("classes").post("/predict", GOOD).status == 200


def offer(*more: bytes, body: bytes = BODY, method: bytes = b"POST /predict") -> bytes:
    """As Java's client asks when nobody tells it to stay with HTTP/1.1."""
    lines = [method + b" HTTP/1.1", b"Host: x", b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c"]
    lines += [b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA", *more]
    return b"\r\n".join([*lines, b"", b""]) + body


@pytest.mark.parametrize(
    ("parts", "answers"),
    [
        ([offer(b"content-length: %d" % len(BODY))], 1),
        ([offer(b"content-length: %d" % len(BODY), body=b""), BODY[:9], BODY[9:]], 1),
        ([offer(b"transfer-encoding: chunked", body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY))], 1),
        ([2 * offer(b"content-length: %d" % len(BODY))], 2),
        ([offer(body=b"", method=b"GET /livez")], 1),
        ([offer(body=b"", method=b"GET /livez").replace(b"h2c", b"websocket")], 1),
    ],
)
def test_who_offers_another_protocol_is_answered_in_this_one(alone: Alone, parts: list[bytes], answers: int) -> None:
    with raw(alone("classes"), parts[0]) as one:
        for part in parts[1:]:
            time.sleep(0.05)
            one.sendall(part)
        found = b""
        while found.count(b"HTTP/1.1 200 OK") < answers or not found.endswith((b"]", b"}")):
            part = one.recv(4096)
            assert part, found
            found += part
        assert found.count(b"label") >= (0 if b"livez" in parts[0] else 2 * answers)
        one.sendall(head(len(BODY), "/predict") + BODY)  # and the connection stays
        assert one.recv(300).startswith(b"HTTP/1.1 200 OK")


LIVE = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"


def everything(one: socket.socket) -> bytes:
    """Until it is hung up, also on what is still on its way there."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while part := one.recv(65_536):
            found += part
    return found


def test_requests_may_be_sent_ahead_of_their_answers(alone: Alone) -> None:
    last = LIVE.replace(b"host: x", b"connection: close")
    with raw(alone("classes"), LIVE * AHEAD + last) as one:
        assert everything(one).count(b"HTTP/1.1 200 OK") == AHEAD + 1


@pytest.mark.parametrize("sent", [LIVE, offer(body=b"", method=b"GET /livez")])
def test_requests_are_not_sent_ahead_without_end(alone: Alone, sent: bytes) -> None:
    """Each takes a hundred times as much memory as it has bytes, and a client that does not read pays for none."""
    with raw(alone("classes"), sent * 1500) as one:
        top, _, body = everything(one).partition(b"\r\n\r\n")
    assert top.startswith(b"HTTP/1.1 400 ") and b"connection: close" in top
    assert f"more than {AHEAD} requests are sent ahead" in json.loads(body)["error"]
    assert alone("classes").post("/predict", GOOD).status == 200


def test_answers_that_nobody_takes_do_not_fill_the_memory(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(House([setting(runs, "classes")])) as client:
        lazy = asks_for_much(client)
        assert until(lambda: client.server.server_state.total_requests == 1, 20)
        assert client.post("/predict", GOOD).status == 200
        monkeypatch.setattr("thresher.serving.http.app.UNTAKEN_BYTES", 2**20)
        reply = client.post("/predict", GOOD)
        assert (reply.status, reply.headers["retry-after"]) == (429, "2") and "do not take" in reply.json["error"]
        assert client.get("/readyz").status == 200
        lazy.close()
        assert until(lambda: client.post("/predict", GOOD).status == 200, 20)
        for body, status in ((GOOD, 200), ({"inputs": "good film " * 5000}, 429)):  # what was not, when it was let in
            looks = iter((0, 2**40))
            monkeypatch.setattr(client.app, "untaken", lambda looks=looks: next(looks))
            assert client.post("/tokenize", body).status == status


def waits(length: int, path: str, *more: str) -> bytes:
    """The head of a request whose body is sent when the server asks for it."""
    lines = [f"POST {path} HTTP/1.1", "host: x", f"content-length: {length}", "Expect: 100-continue", *more]
    return "\r\n".join([*lines, "", ""]).encode()


def test_a_body_is_asked_for_only_where_it_is_wanted(runs: Path) -> None:
    with served(House([setting(runs, "classes")]), Options(key=b"secret", body_bytes=2**16)) as client:
        key = "authorization: Bearer secret"
        with raw(client, waits(len(BODY), "/predict", key)) as one:
            assert one.recv(300) == b"HTTP/1.1 100 Continue\r\n\r\n"
            one.sendall(BODY)
            one.sendall(LIVE.replace(b"host: x", b"connection: close"))
            assert everything(one).count(b"HTTP/1.1 200 OK") == 2
        for length, path, more, status in (
            (2**20, "/predict", [key], b"413"),
            (len(BODY), "/predict", [], b"401"),
            (len(BODY), "/nothing", [], b"404"),
        ):
            with raw(client, waits(length, path, *more)) as one:
                found = everything(one)
            # What comes next on that connection could be the body or a new request: there is no next.
            assert found.startswith(b"HTTP/1.1 " + status) and b"connection: close" in found


def test_bodies_share_their_room(runs: Path) -> None:
    """Two bodies of the largest size fit, a third has to wait for one of them to be answered."""
    options = Options(body_bytes=2**16, bodies_bytes=0)
    with served(House([setting(runs, "classes")]), options) as client:
        half = head(2**16, "/predict") + b" " * (2**16 - len(BODY))
        with raw(client, half) as first, raw(client, half) as second:
            assert until(lambda: client.app.room.taken == 2 * (2**16 - len(BODY)), 20)
            reply = client.post("/predict", BODY + b" " * 1000)
            assert (reply.status, reply.headers["retry-after"]) == (429, "2") and "at once" in reply.json["error"]
            assert client.get("/readyz").status == 200
            first.sendall(BODY)
            assert b"200 OK" in first.recv(300)
            assert client.post("/predict", BODY + b" " * 1000).status == 200
            second.close()
        assert until(lambda: client.app.room.taken == 0, 20)


@pytest.mark.parametrize("path", ["/", "/run/", "/run/classes/"])
def test_a_message_says_little_of_what_was_sent(alone: Alone, path: str) -> None:
    reply = alone("classes").get(path + "x" * 9000)
    assert reply.status in (404, 405) and len(reply.body) < 600


def test_a_model_of_any_name_is_not_repeated(all_heads: Any) -> None:
    reply = all_heads.post("/v1/embeddings", {"input": "a", "model": "x" * 100_000})
    assert reply.status == 404 and len(reply.body) < 1000


def test_a_key_may_have_any_letters(runs: Path) -> None:
    with served(House([setting(runs, "classes")]), Options(key="schlüssel".encode())) as client:
        sent = "schlüssel".encode().decode("latin-1")  # urllib writes headers in latin-1
        assert client.post("/predict", GOOD, {"authorization": f"Bearer {sent}"}).status == 200
        assert client.post("/predict", GOOD, {"x-api-key": "schlüssel"}).status == 401
