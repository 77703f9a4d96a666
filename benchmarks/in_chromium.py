"""A page in headless Chromium: its folder served here, and what it reports. For export_browser.py, and for tests."""

import importlib.util
import json
import os
import queue
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=900,700")


def browser() -> str | None:
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def prepare() -> Any:
    """examples/browser/prepare.py, which fetches what a page needs."""
    file = Path(__file__).resolve().parents[1] / "examples" / "browser" / "prepare.py"
    found = importlib.util.spec_from_file_location("prepare", file)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


class Handler(SimpleHTTPRequestHandler):
    """Serves files, and takes what the page posts."""

    def __init__(self, *args: Any, reports: "queue.Queue[Any]", **named: Any) -> None:
        self.reports = reports
        super().__init__(*args, **named)

    def do_POST(self) -> None:
        self.reports.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Nothing is to be read on the terminal."""


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, "queue.Queue[Any]"]]:
    """The folder's address, and the reports of pages in it."""
    reports: queue.Queue[Any] = queue.Queue()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, reports=reports, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", reports
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def reported(
    address: str,
    reports: "queue.Queue[Any]",
    *,
    seconds: float,
    shot: Path | None = None,
    on_report: Callable[[int], None] = lambda session: None,
) -> Any:
    """What the page at an address reports; `shot`: a picture of it, once it has. `on_report` is then told the session
    that the browser's processes are in."""
    program = browser()
    assert program is not None
    # A picture waits for the page's own clock, which stands still while something is fetched or computed.
    extra = [] if shot is None else [f"--screenshot={shot}", "--virtual-time-budget=60000"]
    # In a group of its own: where the program is a script that starts another, both are ended.
    process = subprocess.Popen(
        [program, *FLAGS, *extra, address],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        found = reports.get(timeout=seconds)
        on_report(process.pid)
        if shot is not None:
            process.wait(timeout=seconds)
        return found
    finally:
        with suppress(ProcessLookupError):  # it may have ended by itself
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
