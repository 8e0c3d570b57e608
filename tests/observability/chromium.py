"""Debian's Chromium without a screen, told what to do over a pipe: no port, no further package.

The protocol is that of its developer tools: JSON messages that end with a zero byte, on descriptors 3 and 4.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time
from typing import Any

ANSWER_SECONDS = 120.0


def missing() -> str:
    """Why there is no browser; empty if there is one."""
    return "" if shutil.which("chromium") else "chromium is missing; apt-get install --no-install-recommends chromium"


class Browser:
    """Starts with `with`; ends with its end, and so do its pages."""

    def __enter__(self) -> Browser:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        commands, self._to = os.pipe()
        self._from, answers = os.pipe()
        flags = [
            "--headless",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--no-first-run",
            "--remote-debugging-pipe",
            f"--user-data-dir={self._profile.name}",
        ]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")  # it refuses to start as root with one
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec chromium "$@" 3<&{commands} 4>&{answers}', "chromium", *flags],
            pass_fds=(commands, answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._numbers = itertools.count(1)
        self._rest = b""
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self._profile.cleanup()

    def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """One command and its answer; what the browser tells unasked is dropped."""
        message: dict[str, Any] = {"id": next(self._numbers), "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == message["id"]:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "chromium does not answer"
            piece = os.read(self._from, 1 << 20)
            assert piece, "chromium has ended"
            self._rest += piece
        text, self._rest = self._rest.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        return message

    def open(
        self, url: str, *, scripts: bool = True, dark: bool = False, width: int = 1240, height: int = 800
    ) -> Page:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        page.call("Emulation.setEmulatedMedia", features=scheme)
        page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        if not scripts:
            page.call("Emulation.setScriptExecutionDisabled", value=True)
        page.call("Page.enable")
        page.call("Page.navigate", url=url)
        page.await_true("document.readyState == 'complete' && location.href != 'about:blank'")
        return page


class Page:
    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, (expression, answer)
        return answer["result"].get("value")

    def await_true(self, expression: str, seconds: float = ANSWER_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not self.evaluate(expression):
            assert time.monotonic() < deadline, f"it never becomes true: {expression}"
            time.sleep(0.05)

    def press(self, key: str) -> None:
        """One key as a keyboard sends it: "Tab", "Enter"."""
        codes = {"Tab": 9, "Enter": 13}
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key], **text)

    def screenshot(self, path: pathlib.Path, *selectors: str) -> None:
        """All of the first elements that match, and what is between them, however long it is."""
        box = self.evaluate(
            f"(() => {{ const all = {json.dumps(selectors or ['body'])}"
            ".map(one => document.querySelector(one).getBoundingClientRect());"
            " const x = Math.min(...all.map(r => r.left)), y = Math.min(...all.map(r => r.top));"
            " return {x: x + scrollX, y: y + scrollY, width: Math.max(...all.map(r => r.right)) - x,"
            " height: Math.max(...all.map(r => r.bottom)) - y}; })()"
        )
        image = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip={**box, "scale": 1})
        path.write_bytes(base64.b64decode(image["data"]))
