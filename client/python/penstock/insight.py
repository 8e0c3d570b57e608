"""Requests about what a pipeline did, and traces. Makes no calls."""

from __future__ import annotations

import gzip
import os
import pathlib
from collections.abc import Iterable

from penstock.results import seconds
from penstock.v1 import insight_pb2


class Trace(bytes):
    """A file for trace viewers.

    Attributes:
        summary: steps, lanes, records and seconds in it; ``incomplete`` if older records were overwritten.
    """

    summary: insight_pb2.TraceSummary = insight_pb2.TraceSummary()

    @classmethod
    def of(cls, answers: Iterable[insight_pb2.ExportTraceResponse]) -> Trace:
        """Out of the pieces of a stream."""
        pieces: list[bytes] = []
        summary = insight_pb2.TraceSummary()
        for answer in answers:
            if answer.HasField("summary"):
                summary = answer.summary
            pieces.append(answer.data)
        trace = cls(b"".join(pieces))
        trace.summary = summary
        return trace


def write_trace(path: str | os.PathLike[str], trace: bytes) -> None:
    to = pathlib.Path(path)
    to.write_bytes(gzip.compress(trace) if to.suffix == ".gz" else trace)


def trace_request(
    pipeline: str, format: str, steps: int, first_step: int, last_step: int
) -> insight_pb2.ExportTraceRequest:
    """Raises ValueError: the format is unknown."""
    formats = {
        "chrome": insight_pb2.ExportTraceRequest.FORMAT_CHROME,
        "perfetto": insight_pb2.ExportTraceRequest.FORMAT_PERFETTO,
    }
    if format not in formats:
        raise ValueError(f"format is one of {', '.join(formats)}, not {format!r}")
    return insight_pb2.ExportTraceRequest(
        pipeline=pipeline, format=formats[format], steps=steps, first_step=first_step, last_step=last_step
    )


def schedule_request(pipeline: str, measured: bool, step: int, micro_batches: int) -> insight_pb2.GetScheduleRequest:
    kind = insight_pb2.GetScheduleRequest.SOURCE_MEASURED if measured else insight_pb2.GetScheduleRequest.SOURCE_PLANNED
    return insight_pb2.GetScheduleRequest(
        pipeline=pipeline, source=kind, step=step, micro_batches=micro_batches, page_size=1000
    )


def watch_request(pipeline: str, interval: float, max_updates: int) -> insight_pb2.WatchStatisticsRequest:
    return insight_pb2.WatchStatisticsRequest(pipeline=pipeline, interval=seconds(interval, "interval"), max_updates=max_updates)
