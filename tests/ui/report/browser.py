"""A real browser without a screen, driven over a pipe in the DevTools protocol.

    test ──fd──► 3 chromium 4 ──fd──► test        JSON, each message ended by a zero byte

Started once for all tests of a session. It may not reach any network, and everything it writes is
in one folder that goes with it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PATIENCE_S = 60.0  # a browser's start on a busy machine; never waited out when all is well

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-crash-reporter", "--disable-breakpad", "--disable-dev-shm-usage"),
    *("--hide-scrollbars", "--remote-debugging-pipe", "--host-resolver-rules=MAP * ~NOTFOUND"),
)

# The browser wants its pipe at 3 and 4; `subprocess` can pass descriptors on, not number them.
START = (
    "import os, sys; r, w = (os.dup(os.dup(int(n))) for n in sys.argv[1:3]); "
    "os.dup2(r, 30); os.dup2(w, 31); os.dup2(30, 3); os.dup2(31, 4); "
    "os.execvp(sys.argv[3], sys.argv[3:])"
)


class Browser:
    def __init__(self) -> None:
        self.home = tempfile.mkdtemp(prefix="w")
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        command = ["chromium", *FLAGS, f"--user-data-dir={self.home}/profile"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, str(theirs_in), str(theirs_out), *command],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": self.home, "TMPDIR": self.home},
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._number = 0
        self._read = b""
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str = "", **params: Any) -> Any:
        """Ask, and wait for the answer; what happens meanwhile is kept in `events`."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (found := self._message()).get("id") != self._number:
            self.events.append(found)
        assert "error" not in found, (method, found)
        return found["result"]

    def wait_for(self, method: str) -> None:
        """Until the browser says so."""
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._message())

    def _message(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while b"\0" not in self._read:
            ready = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))[0]
            assert ready, f"the browser said nothing for {PATIENCE_S:g} s"
            piece = os.read(self._in, 1 << 20)
            assert piece, "the browser is gone"
            self._read += piece
        first, _, self._read = self._read.partition(b"\0")
        found: dict[str, Any] = json.loads(first)
        return found

    def close(self) -> None:
        with contextlib.suppress(AssertionError, OSError):
            self.call("Browser.close")
        os.close(self._out)
        os.close(self._in)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(PATIENCE_S)
        with contextlib.suppress(ProcessLookupError):  # its helpers are in its session, ours alone
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)
        shutil.rmtree(self.home, ignore_errors=True)


class Tab:
    """A page that was opened, as wide and as bright as wanted."""

    def __init__(
        self, browser: Browser, page: Path, width: int, *, dark: bool = False, script: bool = True
    ) -> None:
        self._browser = browser
        browser.events.clear()
        self._target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.call("Target.attachToTarget", targetId=self._target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.url = page.as_uri()
        browser.events.clear()
        self.call("Page.navigate", url=self.url)
        browser.wait_for("Page.loadEventFired")

    def call(self, method: str, **params: Any) -> Any:
        return self._browser.call(method, self._session, **params)

    def resize(self, width: int) -> None:
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript gives, asked from outside the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def happened(self, *methods: str) -> list[dict[str, Any]]:
        self.value("0")  # everything that was on its way is here now
        return [event for event in self._browser.events if event.get("method") in methods]

    def requests(self) -> list[str]:
        sent = self.happened("Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in sent]

    def screenshot(self, path: Path) -> None:
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)
