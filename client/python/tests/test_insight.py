"""Statistics, schedules and traces."""

from __future__ import annotations

import gzip
import pathlib

import numpy as np
import penstock
import pytest
from fake_daemon import FakeDaemon
from penstock.v1 import insight_pb2

ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_statistics(pipeline: penstock.Pipeline) -> None:
    pipeline.train_step(ROWS, ROWS)
    assert pipeline.statistics().step == 1
    assert len(list(pipeline.watch_statistics(max_updates=3))) == 3


def test_a_schedule_comes_in_pages(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    schedule = pipeline.schedule(measured=True, step=5)
    assert [action.action for action in schedule.actions] == ["0F0", "0B0", "1F0", "1B0"]
    assert schedule.kind == "1f1b" and schedule.step == 5 and not schedule.next_page_token
    requests = daemon.requests["GetSchedule"]
    assert [request.page_token for request in requests] == ["", "3"]
    assert all(request.source == insight_pb2.GetScheduleRequest.SOURCE_MEASURED for request in requests)


def test_a_trace_is_one_file(pipeline: penstock.Pipeline, daemon: FakeDaemon, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "trace.json"
    trace = pipeline.trace(path, steps=3)
    assert trace == path.read_bytes() == b'{"traceEvents":[]}'
    pipeline.trace(tmp_path / "trace.json.gz", steps=3)
    assert gzip.decompress((tmp_path / "trace.json.gz").read_bytes()) == trace
    assert trace.summary.steps == 3 and trace.summary.lanes == 2
    assert pipeline.trace(format="perfetto", first_step=4, last_step=6).summary.steps == 2
    assert daemon.requests["ExportTrace"][2] == insight_pb2.ExportTraceRequest(
        pipeline=pipeline.name, format="FORMAT_PERFETTO", first_step=4, last_step=6
    )
    with pytest.raises(ValueError, match="chrome, perfetto"):
        pipeline.trace(format="svg")
