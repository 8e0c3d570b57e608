"""A real Prometheus that scrapes daemons each second and computes our rules."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from daemon_process import free_ports
from expressions import PROMETHEUS

START_SECONDS = 60.0


class Prometheus:
    """Starts with `with`; ends with its end."""

    def __init__(self, folder: pathlib.Path, *targets: str) -> None:
        self._folder = folder
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        for name in ("rules.yaml", "alerts.yaml"):
            shutil.copy(PROMETHEUS / name, folder)
        configuration = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml", "alerts.yaml"],
            "scrape_configs": [{"job_name": "penstock", "static_configs": [{"targets": targets}]}],
        }
        # JSON is YAML.
        (folder / "prometheus.yaml").write_text(json.dumps(configuration))
        self._command = [
            "prometheus",
            "--config.file=prometheus.yaml",
            f"--web.listen-address=127.0.0.1:{port}",
            "--storage.tsdb.path=data",
            "--log.level=warn",
        ]

    def __enter__(self) -> Prometheus:
        with open(self._folder / "prometheus.log", "wb") as log:
            environment = {**os.environ, "GOMAXPROCS": "1"}
            self._process = subprocess.Popen(self._command, cwd=self._folder, stdout=log, stderr=log, env=environment)
        deadline = time.monotonic() + START_SECONDS
        while True:
            assert self._process.poll() is None, (self._folder / "prometheus.log").read_text()
            try:
                with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5):
                    return self
            except (urllib.error.URLError, ConnectionError):
                assert time.monotonic() < deadline, "Prometheus is not ready"
                time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def query(self, expression: str, at: float) -> list[dict[str, Any]]:
        """The samples of an expression at a time; of a range selector their values."""
        return self._ask("query", expression, time=f"{at:.3f}")

    def query_range(self, expression: str, begin: float, end: float, step: float) -> list[dict[str, Any]]:
        """The values of an expression from time to time."""
        return self._ask("query_range", expression, start=f"{begin:.3f}", end=f"{end:.3f}", step=f"{step:.3f}")

    def _ask(self, path: str, expression: str, **arguments: str) -> list[dict[str, Any]]:
        encoded = urllib.parse.urlencode({"query": expression, **arguments})
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{encoded}", timeout=30) as answer:
                result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
                return result
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from error

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return json.load(answer)["data"]
