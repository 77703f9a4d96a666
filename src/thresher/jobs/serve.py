"""The serve job: runs behind HTTP until a signal ends it."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from thresher.errors import ConfigError
from thresher.jobs.request import Request, asked
from thresher.quiet import quiet

KEY_VARIABLE = "THRESHER_API_KEY"
LEVELS = ("debug", "info", "warning", "error")
PACKAGES = ("uvicorn", "httptools", "msgspec", "prometheus_client")


@dataclass(frozen=True, kw_only=True)
class ServeRequest(Request):
    """What `serve` is asked for: runs, each a folder or NAME=FOLDER, where to listen, and how to behave under load.

    degrade: the dial may go up before anybody is refused, to gears of at least `min_agreement` with the dense model,
    which `thresher bench --gears` measured. on_drift: warn, or dense; shadow: the share of texts that the dense model
    computes too, while nobody waits. rerank: the one output of each model is a reranker's score, where its folder does
    not say so. drain: seconds for what was let in, at the end; unready: seconds before the end in
    which /readyz says so already. warm_up: seconds at most, for each run, in which a GPU prepares for batches of all
    sizes before the server listens; what is left then is done while nobody waits.
    """

    PATHS: ClassVar[tuple[str, ...]] = ("api_key_file",)
    COUNTS: ClassVar[tuple[str, ...]] = ("max_length", "threads", "max_queue_tokens", "connections")

    runs: Sequence[str]
    host: str = "127.0.0.1"
    port: int = 8080
    device: str = "auto"
    dtype: str = "auto"
    dial: float = 1.0
    max_length: int | None = None
    rerank: bool = False
    threads: int | None = None
    timeout: float = 30.0
    max_queue_tokens: int = 4_000_000
    batch_seconds: float = 0.1
    max_body_mb: float = 8.0
    connections: int = 1024
    degrade: bool = False
    min_agreement: float = 0.95
    on_drift: str = "warn"
    shadow: float = 0.0
    api_key_file: Path | None = None
    warm_up: float = 120.0
    patience: float = 30.0
    drain: float = 30.0
    unready: float = 0.0
    log_level: str = "info"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.runs:
            raise ConfigError("no run is given; name at least one folder")
        above = ("timeout", "batch_seconds", "max_body_mb", "patience", "drain")
        for name in above:
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"{name.replace('_', '-')} = {getattr(self, name)} must be a number above 0")
        for name in ("min_agreement", "shadow"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name.replace('_', '-')} = {getattr(self, name)} must be from 0 to 1")
        for name in ("unready", "warm_up"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name.replace('_', '-')} = {getattr(self, name)} must be a number from 0 on")
        if not 0 <= self.port <= 65_535:
            raise ConfigError(f"port = {self.port} must be from 0 to 65535; 0 takes a free one")
        if self.log_level not in LEVELS:
            raise ConfigError(f"log-level = {self.log_level!r} is not one of: {', '.join(LEVELS)}")
        if self.on_drift not in ("warn", "dense"):
            raise ConfigError(f"on-drift = {self.on_drift!r} is not one of: warn, dense")


@contextmanager
def hangups_ignored() -> Iterator[None]:
    """Until the server heeds SIGHUP, which it does when its runs are loaded: it must not end a server that loads."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@hangups_ignored()
def serve(
    runs: Sequence[str] | ServeRequest, *, note: Callable[[str], None] = lambda text: None, **given: object
) -> None:
    """Serve runs until SIGTERM or Ctrl-C. `given` are fields of `ServeRequest`; `note` is told where it listens."""
    request = asked(ServeRequest, runs, dict(given), name="runs")
    check_packages()
    key = read_key(request)
    from thresher.serving.house import House
    from thresher.serving.http.app import App, Options
    from thresher.serving.http.logs import log_lines
    from thresher.serving.http.server import bound_socket, run_server
    from thresher.serving.queue import Limits
    from thresher.serving.run import Setting

    limits = Limits(
        timeout_s=request.timeout, age_s=min(5.0, request.timeout / 2), queue_tokens=request.max_queue_tokens
    )
    listening = bound_socket(request.host, request.port)
    with listening:
        log_lines(request.log_level)
        settings = [
            Setting(
                name=name,
                path=path,
                device=request.device,
                dtype=request.dtype,
                dial=request.dial,
                max_length=request.max_length,
                means="score" if request.rerank else None,
                threads=request.threads,
                batch_seconds=request.batch_seconds,
                degrade=request.degrade,
                least_agreement=request.min_agreement,
                on_drift=request.on_drift,
                shadow=request.shadow,
                warm_up_s=request.warm_up,
                limits=limits,
            )
            for name, path in named_runs(request.runs)
        ]
        with quiet():
            house = House(settings, patience=request.patience)
        options = Options(key=key, body_bytes=int(request.max_body_mb * 2**20), body_s=request.timeout)
        host, port = listening.getsockname()[:2]
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        heads = ", ".join(f"{name} ({run.engine.head.means})" for name, run in house.runs.items())
        run_server(
            App(house, options),
            listening,
            drain_s=request.drain,
            unready_s=request.unready,
            connections=request.connections,
            wire_s=request.timeout,
            ready=lambda: note(f"serving {heads} at http://{where}"),
        )


def named_runs(runs: Sequence[str]) -> list[tuple[str, str]]:
    """NAME=FOLDER, or a folder, whose own name it is then."""
    found = []
    for run in runs:
        name, equals, path = str(run).partition("=")
        if not equals or "/" in name:
            name, path = Path(run).resolve().name or "run", str(run)
        if not name or not path:
            raise ConfigError(f"{run!r} is not a run; give a folder, or NAME=FOLDER")
        found.append((name, path))
    return found


def read_key(request: ServeRequest) -> bytes | None:
    """From a file, or from the environment; never from the command line, which others can read."""
    if request.api_key_file is not None:
        try:
            key = request.api_key_file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"api-key-file = {request.api_key_file} cannot be read: {error}") from error
        if not key:
            raise ConfigError(f"api-key-file = {request.api_key_file} is empty; write the key into it")
        return key.encode()
    if KEY_VARIABLE not in os.environ:
        return None
    found = os.fsencode(os.environ[KEY_VARIABLE]).strip()
    if not found:  # a variable of others that is not set, in a file that sets this one: not a wish to serve everybody
        raise ConfigError(f"{KEY_VARIABLE} is empty; write the key into it, or unset it to serve without one")
    return found


def check_packages() -> None:
    from importlib.util import find_spec

    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigError(f'serve needs {", ".join(missing)}; run: pip install "thresher[serve]"')
