"""The process: a socket, uvicorn, and what signals mean."""

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn

from thresher.errors import RunError
from thresher.serving.house import House
from thresher.serving.http.app import App
from thresher.serving.http.protocol import protocol
from thresher.serving.memory import keep_what_stays

SPARE_FILES = 64  # beside connections
log = logging.getLogger("thresher.serving")


class Server(uvicorn.Server):
    """SIGTERM and Ctrl-C: unready at once, then everything that was let in is answered, then the end. A second one
    does not wait. SIGHUP: runs are loaded anew; gone_s later nothing is left of the old ones."""

    def __init__(self, config: uvicorn.Config, house: House, *, unready_s: float, gone_s: float) -> None:
        super().__init__(config)
        self.house, self.unready_s, self.gone_s = house, unready_s, gone_s
        self._reloading: asyncio.Task[None] | None = None
        self._newer = False  # whether files may be newer than those that were read last

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
        self._newer = True
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.get_running_loop().create_task(self._anew())

    async def _anew(self) -> None:
        gc.unfreeze()
        while self._newer:
            self._newer = False
            await self.house.reload()
        asyncio.get_running_loop().call_later(self.gone_s, keep_what_stays)


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
    app: App,
    listening: socket.socket,
    *,
    drain_s: float,
    unready_s: float,
    connections: int,
    wire_s: float,
    ready: Callable[[], None],
) -> None:
    """Until a signal ends it; `ready` is called once it listens. wire_s: in which the head of a request must come, and
    an answer be taken."""
    allow_files(connections)
    kind = protocol(wire_s)
    config = uvicorn.Config(
        app,
        interface="asgi3",
        ws="none",
        proxy_headers=False,
        http=kind,
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(drain_s)),
        timeout_keep_alive=30,
    )
    server = Server(config, app.house, unready_s=unready_s, gone_s=wire_s + drain_s)
    app.crowded, app.untaken = (lambda: len(server.server_state.connections) > connections), kind.untaken

    async def serve() -> None:
        announced = asyncio.get_running_loop().create_task(_announced(server, ready))
        await server.serve(sockets=[listening])
        announced.cancel()

    keep_what_stays()
    try:
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(serve())
    finally:
        gc.unfreeze()  # whoever called from Python goes on


def allow_files(connections: int) -> None:
    """Each connection is an open file, and systems allow 1,024 of these to a program that does not ask for more. Those
    above `connections` are answered, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections + SPARE_FILES
    if resource.RLIM_INFINITY != soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        if most < connections + SPARE_FILES:
            log.warning("few open files are allowed", extra={"facts": {"files": most, "connections": connections}})


async def _announced(server: uvicorn.Server, ready: Callable[[], None]) -> None:
    while not server.started:
        await asyncio.sleep(0.01)
    ready()
