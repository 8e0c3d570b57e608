#!/usr/bin/env python3
"""Draws docs/screenshots/dashboard_ranks.png: the dashboard's row of ranks, about two of them of which one is killed and
comes back.

Usage: group_screenshot.py PENSTOCKD [FOLDER]     (in the tests' Python environment)

Needs what screenshots.py needs.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
import tempfile
import threading
import time
import urllib.request

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / path) for path in ("client/python", "tests/integration")]
os.environ["PENSTOCKD"] = sys.argv[1]
os.environ["PATH"] += f":{ROOT / 'build/deps/bin'}"

import charts  # noqa: E402
import chromium  # noqa: E402
import expressions  # noqa: E402
import penstock  # noqa: E402
from camera import PACKAGES, Camera  # noqa: E402
from prometheus_process import Prometheus  # noqa: E402
from rank_group import Group  # noqa: E402

SECONDS = 60.0
KILLED, STARTED = 20.0, 35.0
WINDOW = "5s"
FEATURES = 4096
ROWS = 64


def create(client: penstock.Client) -> penstock.Pipeline:
    options = {"features": FEATURES, "forward_ms": 10.0, "input_ms": 10.0, "weight_ms": 10.0}
    return client.create_pipeline(
        "both",
        model=[penstock.Layer("delay", f"layer{i}", options) for i in range(2)],
        balance=[1, 1],
        ranks=[0, 1],
        micro_batches=8,
        checkpoint="never",
        optimizer="adamw",
        optimizer_options={"learning_rate": 0.001},
        loss="mean_squared_error",
        seed=1,
    )


def train(pipeline: penstock.Pipeline, end: threading.Event) -> None:
    """As a client that tries again while a rank is lost."""
    rows, target = np.zeros((2, ROWS, FEATURES), np.float32)
    while not end.is_set():
        try:
            pipeline.train_step(rows, target)
        except penstock.PenstockError:
            end.wait(0.2)


def happen(group: Group, begin: float) -> None:
    """What happens to the second rank."""
    time.sleep(begin + KILLED - time.time())
    group.ranks[1].kill()
    time.sleep(begin + STARTED - time.time())
    group.ranks[1].launch()
    time.sleep(begin + SECONDS - time.time())


def series(prometheus: Prometheus, begin: float, title: str, name: str) -> dict[str, charts.Series]:
    """The points of a panel by their names: `name` with its labels in it."""
    (expression,) = [one for one in expressions.panel_expressions() if one.where == title]
    found = prometheus.query_range(expressions.substituted(expression, "both", WINDOW), begin, begin + SECONDS, 1.0)
    return {
        name.format(**answer["metric"]): [(float(at) - begin, float(v)) for at, v in answer["values"]]
        for answer in sorted(found, key=lambda answer: sorted(answer["metric"].items()))
    }


def row(prometheus: Prometheus, begin: float) -> str:
    """The panels of the row, below each other."""
    parts = []
    for title, unit, name, scale, digits in (
        ("Ranks missing", "", "missing", 1, "{:g}"),
        ("Re-formings", f", in {WINDOW}", "re-formed", 1, "{:.1f}"),
        ("Bytes by link", ", MiB/s", "rank {from} to {to}:", 2**20, "{:.1f}"),
    ):
        points = {
            one: [(at, value / scale) for at, value in values]
            for one, values in series(prometheus, begin, title, name).items()
        }
        most = max(value for values in points.values() for _, value in values)
        frame = charts.Frame(SECONDS, max(1.0, np.ceil(most)), 1120, 130, digits.format, right=150)
        parts.append(f"<h3>{title}{unit}</h3>{charts.lines(frame, points, title)}")
    return "".join(parts)


def main() -> None:
    folder = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "docs/screenshots"
    if chromium.missing():
        sys.exit(f"group_screenshot: {chromium.missing()} {PACKAGES}")
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        scratch = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        group = stack.enter_context(Group(scratch, 2, devices=[("cpu:0",)] * 2).running())
        client = stack.enter_context(group.client())
        pipeline = create(client)
        pipeline.save_checkpoint()
        prometheus = stack.enter_context(Prometheus(scratch, *(rank.metrics_address for rank in group.ranks)))
        while len(prometheus.query("penstock_stage_info", time.time())) < 2:
            time.sleep(0.2)
        end = threading.Event()
        trainer = threading.Thread(target=train, args=(pipeline, end))
        trainer.start()
        time.sleep(5)  # so that the first rates are there
        begin = time.time()
        happen(group, begin)
        end.set()
        trainer.join()
        with urllib.request.urlopen(f"http://{group.leader.admin_address}/style.css") as answer:
            style = answer.read().decode()
        note = f"Two ranks train; rank 1 is killed in second {KILLED:.0f} and starts again in second {STARTED:.0f}."
        text = charts.page(style, "Is the group of ranks whole?", note, row(prometheus, begin))
        Camera(stack.enter_context(chromium.Browser()), folder).shoot_text(text, "dashboard_ranks.png")


if __name__ == "__main__":
    main()
