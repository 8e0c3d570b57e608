#!/usr/bin/env python3
"""Draws docs/screenshots: a daemon that trains and infers, its status pages, what `penstock top` shows of it, and what the
dashboard's expressions answer about it; light and dark. Pictures of several ranks: trace_screenshot.py, group_screenshot.py.

Usage: screenshots.py PENSTOCKD PENSTOCK [FOLDER]     (in the tests' Python environment)

Needs Debian's packages chromium and fonts-dejavu-core, and Prometheus (deploy/setup.sh --tests fetches that);
with the package pngquant the files become a third of their size.
"""

from __future__ import annotations

import contextlib
import html
import os
import pathlib
import pty
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / path) for path in ("client/python", "tests/integration", "deploy/grafana")]
os.environ["PENSTOCKD"] = sys.argv[1]
os.environ["PATH"] += f":{ROOT / 'build/deps/bin'}"

import charts  # noqa: E402
import chromium  # noqa: E402
import expressions  # noqa: E402
import panels  # noqa: E402
import penstock  # noqa: E402
from camera import PACKAGES, Camera  # noqa: E402
from daemon_process import Daemon  # noqa: E402
from prometheus_process import Prometheus  # noqa: E402

FEATURES = 8
STATES = [name for name, _, _ in panels.read_states()]

# File, page, dark; the first ones while `even` trains, the others while `uneven` trains and infers too.
EVEN_PAGES = [
    ("pipeline_1f1b.png", "/pipeline?name=even", False),
    ("pipeline_1f1b_dark.png", "/pipeline?name=even", True),
]
UNEVEN_PAGES = [
    ("overview.png", "/", False),
    ("status.png", "/statusz", False),
    ("pipeline_filled.png", "/pipeline?name=uneven", False),
    ("queues.png", "/queuez", False),
    ("handles_dark.png", "/handlez", True),
    ("memory_dark.png", "/memory", True),
    ("traces.png", "/tracez", False),
    ("log.png", "/logz", False),
]

# What happens, second by second, to the pipeline that Prometheus watches.
TRAINS = [(0.0, 20.0), (28.0, 60.0)]
INFERS = [(40.0, 60.0)]
SECONDS = 60.0
RATE_SECONDS = 5


def create(client: penstock.Client, name: str, factors: list[int], checkpoint: str) -> penstock.Pipeline:
    """Four stages that sleep, so that the pictures show the schedule and not what else the machine does."""
    layers = [
        penstock.Layer(
            "delay",
            f"layer{i}",
            {
                "features": FEATURES,
                "forward_ms": 25.0 * k,
                "input_ms": 25.0 * k,
                "weight_ms": 25.0 * k,
                "inference_ms": 12.0,
            },
        )
        for i, k in enumerate(factors)
    ]
    return client.create_pipeline(
        name,
        model=layers,
        balance=[1] * len(layers),
        schedule="1f1b",
        micro_batches=8,
        checkpoint=checkpoint,
        optimizer="adamw",
        optimizer_options={"learning_rate": 0.001},
        loss="mean_squared_error",
        seed=1,
        bubble_filling=True,
    )


class Load:
    """Threads that train and infer while they are told to; ends with `with`."""

    def __init__(self, pipeline: penstock.Pipeline, callers: int = 3) -> None:
        self._pipeline = pipeline
        self._end = threading.Event()
        self.training, self.inferring = threading.Event(), threading.Event()
        self._threads = [threading.Thread(target=self._train)]
        self._threads += [threading.Thread(target=self._infer) for _ in range(callers)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _train(self) -> None:
        rows, target = np.random.default_rng(0).standard_normal((2, 16, FEATURES), np.float32)
        while not self._end.is_set():
            if self.training.wait(0.1):
                self._pipeline.train_step(rows, target)

    def _infer(self) -> None:
        rows = np.zeros((1, FEATURES), np.float32)
        while not self._end.is_set():
            if self.inferring.wait(0.1):
                self._pipeline.infer(rows)


def follow(load: Load, begin: float) -> None:
    """Lets a load follow TRAINS and INFERS until their end."""
    while (at := time.time() - begin) < SECONDS:
        for event, spans in ((load.training, TRAINS), (load.inferring, INFERS)):
            if any(low <= at < high for low, high in spans):
                event.set()
            else:
                event.clear()
        time.sleep(0.05)


# --- The dashboard's expressions. ---


class Dashboard:
    def __init__(self, prometheus: Prometheus, begin: float, style: str) -> None:
        self._prometheus, self._begin, self._style = prometheus, begin, style
        self._panels = {panel["title"]: panel for panel in expressions.panels()}

    def series(self, title: str, step: float = 1.0, index: int = 0) -> list[tuple[dict[str, str], charts.Series]]:
        """Labels and points of each answer to one of a panel's expressions."""
        expression = expressions.Expression(title, self._panels[title]["targets"][index]["expr"])
        text = expressions.substituted(expression, "uneven", f"{max(RATE_SECONDS, step):.0f}s")
        answers = self._prometheus.query_range(text, self._begin + step, self._begin + SECONDS, step)
        return [
            (answer["metric"], [(float(at) - self._begin, float(v)) for at, v in answer["values"] if v != "NaN"])
            for answer in answers
        ]

    def by_stage(self, title: str, *, whole: bool) -> str:
        stages: dict[str, dict[str, charts.Series]] = {}
        for labels, points in self.series(title):
            if any(value > 0 for _, value in points):
                stages.setdefault(labels["lane"], {})[labels["state"]] = points
        most = 1.0
        if not whole:
            most = max(
                sum(dict(points).get(at, 0.0) for points in states.values())
                for states in stages.values()
                for at in {at for points in states.values() for at, _ in points}
            )
        frame = charts.Frame(SECONDS, most, 556, 168, charts.percent if whole else lambda v: f"{v:.2f} s")
        drawn = [
            f"<div><h3>stage {stage}</h3>{charts.stack(frame, stages[stage], STATES, f'stage {stage}', whole=whole)}</div>"
            for stage in sorted(stages)
        ]
        seen = {state for states in stages.values() for state in states}
        used = [state for state in STATES if state in seen]
        return f'<div class="several">{"".join(drawn)}</div>{charts.legend(used)}'

    def bubbles(self) -> str:
        series = {}
        for index, name in enumerate(("measured", "predicted", "ideal")):
            for _, points in self.series("Bubble: measured, predicted, ideal", index=index):
                series[name] = points
        most = max(value for points in series.values() for _, value in points)
        frame = charts.Frame(SECONDS, max(0.2, np.ceil(most * 5) / 5), 1120, 240, charts.percent, right=130)
        return charts.lines(frame, series, "bubbles")

    def busy(self) -> str:
        rows = {f"{labels['lane']}": points for labels, points in self.series("Busy share", step=3.0)}
        rows = dict(sorted((f"lane {stage}", points) for stage, points in rows.items()))
        return charts.cells(rows, SECONDS + 3, 1120, "backward", lambda v: f"{v * 100:.0f}%", "busy share")

    def waits(self) -> str:
        """Buckets are cumulative; a cell is what came between two bounds."""
        found = self.series("Queue wait", step=5.0)
        bounds = sorted((float(labels["le"]), points) for labels, points in found)
        rows: dict[str, charts.Series] = {}
        lower: dict[float, float] = {}
        for bound, points in bounds:
            here = [(at, value - lower.get(at, 0.0)) for at, value in points]
            lower = dict(points)
            if any(value > 0.5 for _, value in here) and bound != float("inf"):
                rows[f"{bound * 1000:g} ms" if bound < 1 else f"{bound:g} s"] = here
        ordered = dict(reversed(list(rows.items())))
        return charts.cells(ordered, SECONDS + 5, 1120, "infer", lambda v: f"{v:.0f}", "queue wait")

    def pages(self) -> Iterator[tuple[str, str]]:
        """File and page of each panel that is drawn."""
        for name, title, body in (
            ("dashboard_stage_time.png", "Stage time by state", self.by_stage("Stage time by state", whole=True)),
            ("dashboard_idle.png", "Idle time by cause", self.by_stage("Idle time by cause", whole=False)),
            ("dashboard_bubble.png", "Bubble: measured, predicted, ideal", self.bubbles()),
            ("dashboard_busy.png", "Busy share", self.busy()),
            ("dashboard_queue_wait.png", "Queue wait", self.waits()),
        ):
            note = self._panels[title]["description"].split(" More:")[0]
            yield name, charts.page(self._style, title, note, body)


# --- A terminal. ---


def terminal(command: list[str]) -> str:
    """What a program shows at last on a terminal that it clears for each look."""
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(command, stdout=child, stderr=child, stdin=child, env=environment)
    os.close(child)
    text = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while piece := os.read(parent, 65536):
            text += piece
    os.close(parent)
    assert process.wait() == 0, text
    return text.decode().rsplit("\x1b[2J", 1)[-1].replace("\r", "")


def as_html(text: str) -> str:
    """Colours of a terminal as those of a page."""
    out, opened = "", 0
    for part in re.split(r"(\x1b\[[0-9;]*m)", text):
        code = re.fullmatch(r"\x1b\[([0-9;]*)m", part)
        if code is None:
            out += html.escape(part)
        elif colour := re.fullmatch(r"([34]8);2;(\d+);(\d+);(\d+)", code[1]):
            kind = "background" if colour[1] == "48" else "color"
            out += f'<span style="{kind}:rgb({colour[2]},{colour[3]},{colour[4]})">'
            opened += 1
        else:
            out += "</span>" * opened
            opened = 0
    return out


TERMINAL = """<!DOCTYPE html><meta charset="utf-8"><style>
:root { color-scheme: light dark; } body { display: inline-block; margin: 0; padding: 14px 18px; background: #fafafa; color: #1c2530; }
@media (prefers-color-scheme: dark) { body { background: #12171c; color: #e3e8ec; } }
pre { margin: 0; font: 14px/1.4 "DejaVu Sans Mono", monospace; }</style><body><pre>"""


# --- All of it. ---


def main() -> None:
    command = sys.argv[2]
    folder = pathlib.Path(sys.argv[3]) if len(sys.argv) > 3 else ROOT / "docs/screenshots"
    if chromium.missing():
        sys.exit(f"screenshots: {chromium.missing()} {PACKAGES}")
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        scratch = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        daemon = Daemon(scratch, "--drain-announce=0s", "--device=cpu:2=0", "--device=cpu:3=1")
        stack.callback(daemon.kill)
        daemon.start()
        camera = Camera(stack.enter_context(chromium.Browser()), folder)
        client = stack.enter_context(penstock.Client(daemon.address))
        pages = f"http://{daemon.admin_address}"

        even = create(client, "even", [1, 1, 1, 1], "never")
        with Load(even) as load:
            load.training.set()
            while even.statistics().step < 4:
                time.sleep(0.1)
            for name, path, dark in EVEN_PAGES:
                camera.shoot(pages + path, name, dark)
        even.save_checkpoint()

        uneven = create(client, "uneven", [1, 1, 2, 1], "never")
        uneven.save_checkpoint()
        prometheus = stack.enter_context(Prometheus(scratch, daemon.metrics_address))
        while not prometheus.query('penstock_step_number{pipeline="uneven"}', time.time()):
            time.sleep(0.2)
        begin = time.time()
        load = stack.enter_context(Load(uneven))
        follow(load, begin)
        # And on, for the pages.
        top = terminal([command, "--server", daemon.address, "top", "--looks", "2", "--interval", "3"])
        ann = stack.enter_context(penstock.Client(daemon.address, caller="ann"))
        kept = [ann.pipeline("uneven").submit_infer(np.zeros((4, FEATURES), np.float32)) for _ in range(3)]
        for name, path, dark in UNEVEN_PAGES:
            camera.shoot(pages + path, name, dark)
        del kept
        load.training.clear()
        load.inferring.clear()

        for dark in (False, True):
            camera.shoot_text(TERMINAL + as_html(top), f"top{'_dark' if dark else ''}.png", dark)
        with urllib.request.urlopen(f"{pages}/style.css") as answer:
            style = answer.read().decode()
        for name, text in Dashboard(prometheus, begin, style).pages():
            camera.shoot_text(text, name)
            if name == "dashboard_stage_time.png":
                camera.shoot_text(text, "dashboard_stage_time_dark.png", dark=True)


if __name__ == "__main__":
    main()
