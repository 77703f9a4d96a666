"""HTTP on one connection: uvicorn's, with an end to what it would wait for, or take in, for ever."""

import asyncio
from typing import Any, ClassVar

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from thresher.serving.http.replies import TEI, error_reply

HEAD_BYTES = 64 * 2**10  # of a request's head: others allow 8 to 64 KiB
AHEAD = 32  # requests that one connection may send before their answers; each is a hundred times what it is as bytes
STILL_S = 2.0  # in which whoever still reads takes something, while the server waits for its last connections
NOT_HTTP, TOO_LONG = "Invalid HTTP request received.", "the head of the request is longer than {} bytes; send less"
TOO_MANY = "more than {} requests are sent ahead of their answers; wait for these, or open more connections"


def protocol(wire_s: float) -> "type[Impatient]":
    """Of one server: so many seconds for the head of a request, and for its answer."""
    return type("Impatient", (Impatient,), {"wire_s": wire_s, "slow": set()})


class Impatient(HttpToolsProtocol):
    """For heads that do not come, or do not end, and answers that nobody takes. What is not HTTP gets an error like all
    others, and whoever offers another protocol is answered in this one."""

    wire_s = 30.0
    slow: "ClassVar[set[Impatient]]"  # who does not take answers as fast as they are given
    _head_clock: asyncio.TimerHandle | None = None
    _answer_clock: asyncio.TimerHandle | None = None
    _ending = _refused = False
    _unfinished = 0  # bytes that came since a head, or a part of a body, was complete
    _head = 0  # bytes of what is complete of it

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        if self._refused:  # read, and forgotten: a client that still sends does not see the refusal
            return
        self._unset_keepalive_if_required()
        self._unfinished += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as found:
            self._stay(data[found.args[0] :])
            return
        except httptools.HttpParserError:
            self.send_400_response(NOT_HTTP)
            return
        if self._unfinished > HEAD_BYTES:
            self.send_400_response(NOT_HTTP)
        else:
            self._watch()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self.slow.discard(self)
        self._head_clock = _stopped(self._head_clock)
        self._answer_clock = _stopped(self._answer_clock)

    # What is read.

    def on_message_begin(self) -> None:
        self._head = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._grow(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._grow(len(name) + len(value))
        super().on_header(name, value)

    def _grow(self, size: int) -> None:
        self._head += size
        if self._head > HEAD_BYTES:
            raise ValueError("too long")  # the parser's error, which becomes the client's

    def on_headers_complete(self) -> None:
        self._unfinished = 0
        if len(self.pipeline) >= AHEAD:
            raise ValueError("too many")  # as above
        if not self._offered():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unfinished = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unfinished = 0
        if not self._offered():
            super().on_message_complete()

    def _offered(self) -> bool:
        """Whether the client would speak another protocol, for which the parser leaves the body unread."""
        return bool(self.parser.should_upgrade()) and self.parser.get_method() != b"CONNECT"

    def _stay(self, rest: bytes) -> None:
        """Read the same request without the offer, as a server may that does not take it."""
        if self.parser.get_method() == b"CONNECT":
            return
        headers = [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        version = self.parser.get_http_version().encode()
        head = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version), *headers, b"", b""]
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"\r\n".join(head) + rest)

    def send_400_response(self, msg: str) -> None:
        long = max(self._unfinished, self._head) > HEAD_BYTES
        status, says = (431, TOO_LONG.format(HEAD_BYTES)) if long else (400, msg)
        if not long and len(self.pipeline) >= AHEAD:
            says = TOO_MANY.format(AHEAD)
        body = error_reply(TEI, says, kind="Validation", status=status).body
        line = f"HTTP/1.1 {status} {'Request Header Fields Too Large' if long else 'Bad Request'}"
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close"
        self.transport.write(f"{line}\r\n{head}\r\n\r\n".encode() + body)
        if long and self._headless():
            self._refused = True
            self.loop.call_later(min(self.wire_s, STILL_S), self._close)
        else:
            self._close()

    def _headless(self) -> bool:
        return self.cycle is None or bool(self.cycle.response_complete)

    def _watch(self) -> None:
        if not self._headless():
            self._head_clock = _stopped(self._head_clock)
        elif self._head_clock is None:
            self._head_clock = self.loop.call_later(self.wire_s, self._late)

    def _late(self) -> None:
        if self._headless():
            self._close()

    # What is written.

    def pause_writing(self) -> None:
        super().pause_writing()
        self.slow.add(self)
        self._answer_clock = self._answer_clock or self.loop.call_later(self.wire_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.slow.discard(self)
        self._answer_clock = _stopped(self._answer_clock)

    @classmethod
    def untaken(cls) -> int:
        """Bytes of answers that stand in the memory because their clients do not take them."""
        return sum(one.transport.get_write_buffer_size() for one in cls.slow)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._taken()

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    def shutdown(self) -> None:
        self._ending = True
        super().shutdown()
        if self.transport.is_closing() or self.flow.write_paused:
            self._taken()

    def _close(self) -> None:
        """When what is written has been taken; of that transports make sure for as long as it takes."""
        self.transport.close()
        self._taken()

    def _taken(self, before: float = float("inf")) -> None:
        """Hang up on whoever has taken nothing since the last look."""
        left = self.transport.get_write_buffer_size()
        if left >= before:
            self.transport.abort()
        elif left:
            seconds = min(self.wire_s, STILL_S) if self._ending else self.wire_s
            self.loop.call_later(seconds, self._taken, left)


def _stopped(clock: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    if clock is not None:
        clock.cancel()
    return None
