"""Spans of calls of a real daemon: in a file, at a collector, and what happens where there is no collector."""

from __future__ import annotations

import contextlib
import http.server
import json
import pathlib
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import penstock
import pytest
from penstock.v1 import work_pb2

from conftest import QUICK_DRAIN, StartDaemon
from daemon_process import Daemon
from small_models import create_gpt, gpt_batch

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{SPAN}-01"
NOT_SAMPLED = f"00-{TRACE}-{SPAN}-00"

Span = dict[str, Any]


def spans_of(request: dict[str, Any]) -> list[Span]:
    """The spans of one export request, their attributes as plain values; the request must have the protocol's form."""
    (resource,) = request["resourceSpans"]
    (scope,) = resource["scopeSpans"]
    named = {one["key"]: one["value"]["stringValue"] for one in resource["resource"]["attributes"]}
    assert named["service.name"] == "penstock" and named["service.version"]
    for span in scope["spans"]:
        assert bytes.fromhex(span["traceId"]) and len(span["traceId"]) == 32
        assert bytes.fromhex(span["spanId"]) and len(span["spanId"]) == 16
        assert int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
        span["values"] = {one["key"]: next(iter(one["value"].values())) for one in span["attributes"]}
    spans: list[Span] = scope["spans"]
    return spans


def spans_in(path: pathlib.Path) -> list[Span]:
    return [span for line in path.read_text().splitlines() for span in spans_of(json.loads(line))]


def named(spans: list[Span], name: str) -> list[Span]:
    return [span for span in spans if span["name"] == name]


def counted(daemon: Daemon, target: str, outcome: str) -> float:
    return daemon.metrics().sum("penstock_trace_spans_total", target=target, outcome=outcome)


class Collector:
    """Takes export requests, or only connections."""

    def __init__(self) -> None:
        self.requests: queue.Queue[dict[str, Any]] = queue.Queue()
        self.paths: list[tuple[str, str | None]] = []
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.paths.append((self.path, self.headers["Content-Type"]))
                collector.requests.put(json.loads(body))
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def spans(self, until: Callable[[list[Span]], bool]) -> list[Span]:
        """All spans, once there are enough."""
        spans: list[Span] = []
        while not until(spans):
            spans += spans_of(self.requests.get(timeout=30))
        return spans

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    one = Collector()
    yield one
    one.close()


@contextlib.contextmanager
def traced(daemon: Daemon, traceparent: str | None = SAMPLED) -> Iterator[penstock.Pipeline]:
    with penstock.Client(daemon.address) as quiet:
        create_gpt(quiet, "gpt")
    with penstock.Client(daemon.address, traceparent=traceparent or "") as client:
        yield client.pipeline("gpt")


def test_spans_in_a_file_hang_together(start_daemon: StartDaemon, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "spans.jsonl"
    daemon = start_daemon(*QUICK_DRAIN, f"--otlp-file={path}")
    with traced(daemon) as pipeline:
        outcome = pipeline.train_step(*gpt_batch(0, 8))
        assert outcome.step == 1
    daemon.stop()  # what is queued is written

    spans = spans_in(path)
    assert {span["traceId"] for span in spans} == {TRACE}, "calls without a trace have none"
    (call,) = named(spans, "Recv.penstock.v1.WorkService.TrainStep")
    assert call["parentSpanId"] == SPAN and call["kind"] == 2 and call["status"] == {}
    assert call["values"]["rpc.system"] == "grpc" and call["values"]["rpc.grpc.status_code"] == "0"
    assert call["values"]["penstock.pipeline"] == "gpt" and len(call["values"]["penstock.request_id"]) == 36
    (waited,) = [span for span in named(spans, "queue") if span["parentSpanId"] == call["spanId"]]
    (run,) = [span for span in named(spans, "run") if span["parentSpanId"] == call["spanId"]]
    assert waited["endTimeUnixNano"] == run["startTimeUnixNano"]
    assert int(call["startTimeUnixNano"]) <= int(waited["startTimeUnixNano"])
    for child in (waited, run):
        assert child["kind"] == 1
        assert child["values"]["penstock.step"] == "1" and child["values"]["penstock.mode"] == "train"


def test_work_that_outlives_its_call_stays_below_it(start_daemon: StartDaemon, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "spans.jsonl"
    daemon = start_daemon(*QUICK_DRAIN, f"--otlp-file={path}")
    with traced(daemon) as pipeline:
        assert pipeline.submit_train_step(*gpt_batch(0, 8)).result().step == 1
    daemon.stop()
    spans = spans_in(path)
    (call,) = named(spans, "Recv.penstock.v1.WorkService.TrainStep")
    (run,) = [span for span in named(spans, "run") if span["values"]["penstock.method"] == "TrainStep"]
    assert run["parentSpanId"] == call["spanId"]


@pytest.mark.parametrize(
    ("metadata", "sampled", "ours"),
    [
        ((("traceparent", SAMPLED),), True, True),
        ((("traceparent", NOT_SAMPLED),), False, True),
        ((("traceparent", "00-" + "0" * 32 + f"-{SPAN}-01"),), True, False),
        ((), True, False),
    ],
    ids=["traceparent", "not sampled", "zeros", "none"],
)
def test_the_callers_context_decides(
    start_daemon: StartDaemon,
    tmp_path: pathlib.Path,
    metadata: tuple[tuple[str, str | bytes], ...],
    sampled: bool,
    ours: bool,
) -> None:
    """Calls without a trace, or with one that can't be read, start one; here all of those are sampled."""
    path = tmp_path / "spans.jsonl"
    daemon = start_daemon(*QUICK_DRAIN, f"--otlp-file={path}", "--trace-sample-ratio=1")
    with grpc.insecure_channel(daemon.address) as channel:
        infer = channel.unary_unary(
            "/penstock.v1.WorkService/Infer",
            request_serializer=work_pb2.InferRequest.SerializeToString,
            response_deserializer=work_pb2.InferResponse.FromString,
        )
        with pytest.raises(grpc.RpcError) as raised:
            infer(work_pb2.InferRequest(pipeline="pipelines/absent"), metadata=metadata, timeout=30)
    error = penstock.PenstockError.from_call(raised.value)
    assert (error.values["trace_id"] == TRACE) == ours
    daemon.stop()
    calls = named(spans_in(path), "Recv.penstock.v1.WorkService.Infer")
    assert len(calls) == (1 if sampled else 0)
    if sampled:
        assert calls[0]["traceId"] == error.values["trace_id"] and calls[0]["spanId"] == error.values["span_id"]
        assert ("parentSpanId" in calls[0]) == ours
        assert calls[0]["values"]["rpc.grpc.status_code"] == "5" and calls[0]["status"] == {}


def test_errors_and_lines_name_the_callers_trace_where_nothing_is_exported(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(*QUICK_DRAIN)
    with traced(daemon) as pipeline:
        pipeline.train_step(*gpt_batch(0, 8))
        pipeline.save_checkpoint("mine")
        with pytest.raises(penstock.PenstockError) as raised:
            pipeline.save_checkpoint("mine")
        assert raised.value.reason == "CHECKPOINT_EXISTS"
        assert raised.value.values["trace_id"] == TRACE and len(raised.value.values["span_id"]) == 16
    daemon.stop()
    (line,) = [line for line in daemon.log.splitlines() if "checkpoint saved" in line]
    assert 'pipeline="gpt"' in line and f'trace_id="{TRACE}"' in line and "request_id=" in line


def test_without_a_trace_errors_name_none(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(*QUICK_DRAIN)
    with penstock.Client(daemon.address, traceparent="") as client, pytest.raises(penstock.PenstockError) as raised:
        client.pipeline("absent").infer(gpt_batch(0, 1)[0])
    assert "trace_id" not in raised.value.values


def test_a_collector_gets_spans_while_the_daemon_runs(start_daemon: StartDaemon, collector: Collector) -> None:
    daemon = start_daemon(*QUICK_DRAIN, f"--otlp-endpoint={collector.url}")
    with traced(daemon) as pipeline:
        pipeline.train_step(*gpt_batch(0, 8))
        spans = collector.spans(lambda spans: bool(named(spans, "Recv.penstock.v1.WorkService.TrainStep")))
    assert collector.paths[0] == ("/v1/traces", "application/json")
    assert {span["traceId"] for span in spans} == {TRACE}
    while counted(daemon, "collector", "sent") < len(spans):  # it is counted when the answer has arrived
        assert daemon.alive()
    daemon.stop()


@pytest.fixture
def hanging() -> Iterator[str]:
    """The address of somebody who takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1/traces"


@pytest.fixture
def absent() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}/v1/traces"


@pytest.mark.parametrize("place", ["hanging", "absent"])
def test_a_collector_that_takes_nothing_stops_nothing(
    start_daemon: StartDaemon, tmp_path: pathlib.Path, request: pytest.FixtureRequest, place: str
) -> None:
    """Calls end well, the file beside it gets every span, and the daemon drains."""
    path = tmp_path / "spans.jsonl"
    daemon = start_daemon(*QUICK_DRAIN, f"--otlp-endpoint={request.getfixturevalue(place)}", f"--otlp-file={path}")
    calls = 1000
    with traced(daemon) as pipeline:
        pipeline.train_step(*gpt_batch(0, 8))
        with penstock.Client(daemon.address, traceparent=SAMPLED) as client:
            for _ in range(calls):
                client.pipeline("gpt")
    daemon.stop()
    spans = spans_in(path)
    assert len(named(spans, "Recv.penstock.v1.WorkService.TrainStep")) == 1
    assert len(named(spans, "Recv.penstock.v1.PipelineService.GetPipeline")) >= calls
    if place == "absent":
        assert "spans are lost" in daemon.log


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--otlp-endpoint=https://collector:4318", "--otlp-endpoint: must be plain http://"),
        ("--otlp-endpoint=collector", "--otlp-endpoint: must be http://"),
        ("--otlp-file=/absent/spans.jsonl", "--otlp-file: must be a file that can be written"),
        ("--trace-sample-ratio=2", "--trace-sample-ratio: must be a number in [0, 1], got 2"),
        ("--trace-sample-ratio=nan", "--trace-sample-ratio: must be a number in [0, 1], got nan"),
    ],
)
def test_a_bad_setting_is_named(tmp_path: pathlib.Path, flag: str, said: str) -> None:
    daemon = Daemon(tmp_path, *QUICK_DRAIN, flag)
    with pytest.raises(AssertionError, match="ended while it started"):
        daemon.start()
    assert said in daemon.log
