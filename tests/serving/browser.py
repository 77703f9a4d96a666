"""Headless Chromium, spoken to over a pipe in its own protocol: no driver, no library."""

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
KEYS = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowRight": 39, "End": 35}


def browser() -> str | None:
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


class Page:
    """One page of a browser."""

    def __init__(self, send: int, receive: Any, url: str) -> None:
        self._send, self._receive, self._number, self._session = send, receive, 0, ""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.size(1000, 900)
        self._call("Page.navigate", url=url)

    def size(self, width: int, height: int) -> None:
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def dark(self) -> None:
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])

    def says(self, script: str) -> Any:
        """The value of a line of JavaScript."""
        found = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, script: str, seconds: float = 60.0) -> None:
        end, tried = time.monotonic() + seconds, f"(() => {{ try {{ return {script} }} catch {{ return false }} }})()"
        while not self.says(tried):  # false while the page is not there
            assert time.monotonic() < end, f"never came true: {script}; status {self.says(STATUS)!r}"
            time.sleep(0.05)

    def press(self, key: str, times: int = 1) -> None:
        text = {"text": "\r"} if key == "Enter" else {}
        for _ in range(times):
            about = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
            self._call("Input.dispatchKeyEvent", type="keyDown", **about, **text)
            self._call("Input.dispatchKeyEvent", type="keyUp", **about)

    def write(self, text: str) -> None:
        """Into what has the focus, instead of what was there."""
        self.says("document.activeElement.select()")
        self._call("Input.insertText", text=text)

    def picture(self, file: Path) -> None:
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        found = self._call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(found["data"]))

    def _call(self, method: str, **given: Any) -> Any:
        self._number += 1
        asked: dict[str, Any] = {"id": self._number, "method": method, "params": given}
        if self._session:
            asked["sessionId"] = self._session
        os.write(self._send, json.dumps(asked).encode() + b"\0")
        while True:
            reply = json.loads(_message(self._receive))
            if reply.get("id") == self._number:
                assert "error" not in reply, reply
                return reply["result"]


STATUS = "document.getElementById('status').textContent + document.getElementById('problem').textContent"


def _message(receive: Any) -> bytes:
    found = bytearray()
    while (byte := receive.read(1)) != b"\0":
        assert byte, "the browser has ended"
        found += byte
    return bytes(found)


@contextmanager
def opened(url: str) -> Iterator[Page]:
    """A page at this address, for the length of a `with`."""
    (theirs, ours), (answers, says) = os.pipe(), os.pipe()
    words = [str(browser()), "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]

    def as_expected() -> None:
        """The browser reads file 3, and writes file 4."""
        high = os.dup(says)
        os.dup2(theirs, 3)
        os.dup2(high, 4)

    process = subprocess.Popen(
        words, stderr=subprocess.DEVNULL, preexec_fn=as_expected, pass_fds=(3, 4, theirs, says), close_fds=True
    )
    os.close(theirs)
    os.close(says)
    try:
        with os.fdopen(answers, "rb") as receive:
            yield Page(ours, receive, url)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
