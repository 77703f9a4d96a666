"""The process: a socket, uvicorn, and what signals mean."""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from thresher.errors import RunError
from thresher.serving.house import House

log = logging.getLogger("thresher.serving")


class Server(uvicorn.Server):
    """SIGTERM and Ctrl-C: unready at once, then everything that was let in is answered, then the end. A second one
    does not wait. SIGHUP: runs are loaded anew."""

    def __init__(self, config: uvicorn.Config, house: House, *, unready_s: float) -> None:
        super().__init__(config)
        self.house, self.unready_s = house, unready_s
        self._reloading: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.remove_signal_handler(number)

    def _end(self) -> None:
        if self.house.closing:
            self.force_exit = self.should_exit = True
            return
        log.info("shutting down", extra={"facts": {"waiting_tokens": self._waiting()}})
        self.house.closing = True
        asyncio.get_running_loop().call_later(self.unready_s, self._stop)

    def _stop(self) -> None:
        self.should_exit = True

    def _waiting(self) -> int:
        return sum(run.queue.load for run in self.house.runs.values())

    def _reload(self) -> None:
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.get_running_loop().create_task(self.house.reload())


def protocol(head_s: float) -> type[asyncio.Protocol]:
    """uvicorn's own, with a clock for heads: it waits for ever for one that was begun, and such connections are
    counted."""
    base: Any = AutoHTTPProtocol

    class Impatient(base):  # type: ignore[misc]  # one of two classes, by what is installed
        _clock: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, error: Exception | None) -> None:
            super().connection_lost(error)
            self._stop()

        def _headless(self) -> bool:
            return self.cycle is None or bool(self.cycle.response_complete)

        def _watch(self) -> None:
            if not self._headless():
                self._stop()
            elif self._clock is None:
                self._clock = self.loop.call_later(head_s, self._late)

        def _late(self) -> None:
            if self._headless():
                self.transport.close()

        def _stop(self) -> None:
            if self._clock is not None:
                self._clock.cancel()
                self._clock = None

    return Impatient


def bound_socket(host: str, port: int) -> socket.socket:
    """Taken before models are loaded: who gave a port that is in use need not wait for that."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except OSError as error:
        found.close()
        raise RunError(f"cannot listen on {host}:{port}: {error.strerror or error}; give another --port") from error
    return found


def run_server(
    app: Starlette,
    house: House,
    listening: socket.socket,
    *,
    drain_s: float,
    unready_s: float,
    connections: int,
    head_s: float,
    ready: Callable[[], None],
) -> None:
    """Until a signal ends it; `ready` is called once it listens. head_s: in which the head of a request must come."""
    config = uvicorn.Config(
        app,
        http=protocol(head_s),
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        limit_concurrency=connections,
        timeout_graceful_shutdown=max(1, round(drain_s)),
        timeout_keep_alive=30,
    )
    server = Server(config, house, unready_s=unready_s)

    async def serve() -> None:
        announced = asyncio.get_running_loop().create_task(_announced(server, ready))
        await server.serve(sockets=[listening])
        announced.cancel()

    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(serve())


async def _announced(server: uvicorn.Server, ready: Callable[[], None]) -> None:
    while not server.started:
        await asyncio.sleep(0.01)
    ready()
