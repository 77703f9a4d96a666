"""ASGI without a framework: what a request says, what a reply is, and an application's beginning and end.

What is needed of a framework is little, and its middleware and header objects would be in the way of every request.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from thresher.text import first_line

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Disconnected(Exception):
    """The client hung up before its body was complete."""


class Request:
    """One HTTP request; `path` is below wherever the application stands."""

    def __init__(self, scope: dict[str, Any], receive: Receive) -> None:
        self.method: str = scope["method"]
        root, path = scope.get("root_path", ""), scope["path"]
        self.path: str = (path[len(root) :] if f"{path}/".startswith(f"{root}/") else path) or "/"
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self._receive, self._begun, self._complete = receive, False, False

    def header(self, name: str) -> str | None:
        """By its name in lower case."""
        value = self._headers.get(name.encode())
        return None if value is None else value.decode("latin-1")

    @property
    def held_back(self) -> bool:
        """Whether the client waits for a word before it sends its body, and has not had it."""
        return not self._begun and (self.header("expect") or "").lower() == "100-continue"

    async def part(self) -> bytes | None:
        """The next part of the body; None after the last one."""
        if self._complete:
            return None
        self._begun = True
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        self._complete = not message.get("more_body", False)
        body: bytes = message.get("body", b"")
        return body

    async def gone(self) -> None:
        """Ends when the client has gone; it has sent its whole body before."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


@dataclass
class Reply:
    """`headers` beside content-type and content-length."""

    body: bytes
    kind: str = "application/json"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)

    async def send(self, send: Send, *, last: bool) -> None:
        """last: the connection ends with it."""
        pairs = {"content-type": self.kind, "content-length": str(len(self.body)), **self.headers}
        pairs |= {"connection": "close"} if last else {}
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs.items()]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


async def live(receive: Receive, send: Send, *, begin: Callable[[], None], end: Callable[[], Awaitable[None]]) -> None:
    """An application's life: what a server asks for before the first request and after the last."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            try:
                begin()
            except Exception as error:
                await send({"type": "lifespan.startup.failed", "message": first_line(error)})
                return
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await end()
            await send({"type": "lifespan.shutdown.complete"})
            return
