"""Traces and measured schedules of a real daemon."""

from __future__ import annotations

import collections
import json
import pathlib
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import penstock
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from penstock.v1 import insight_pb2

from conftest import StartDaemon
from daemon_process import Daemon
from small_models import create_gpt, create_mlp, gpt_batch, mlp_batch

PERFETTO = pathlib.Path(__file__).resolve().parents[1] / "unit" / "observe" / "perfetto_trace.proto"


def train(pipeline: penstock.Pipeline, steps: int) -> None:
    for step in range(steps):
        pipeline.train_step(*gpt_batch(step, 8))


def reason(raised: pytest.ExceptionInfo[penstock.PenstockError]) -> str:
    return raised.value.reason


class Chrome:
    """A trace as JSON: slices by process and thread, in nanoseconds, and flows by id."""

    def __init__(self, data: bytes) -> None:
        document = json.loads(data)
        self.other: dict[str, Any] = document["otherData"]
        processes: dict[int, str] = {}
        threads: dict[tuple[int, int], str] = {}
        self.slices: dict[tuple[str, str], list[tuple[int, int, str]]] = collections.defaultdict(list)
        self.flows: dict[int, list[tuple[str, int]]] = collections.defaultdict(list)
        self.counters: set[str] = set()
        for event in document["traceEvents"]:
            phase, pid = event["ph"], event["pid"]
            if phase == "M" and event["name"] == "process_name":
                processes[pid] = event["args"]["name"]
            elif phase == "M" and event["name"] == "thread_name":
                threads[pid, event["tid"]] = event["args"]["name"]
            elif phase == "X":
                begin = round(event["ts"] * 1000)
                track = processes[pid], threads[pid, event["tid"]]
                self.slices[track].append((begin, begin + round(event["dur"] * 1000), event["name"]))
            elif phase in "stf":
                self.flows[event["id"]].append((phase, round(event["ts"] * 1000)))
            elif phase == "C":
                self.counters.add(event["name"])

    def tracks(self, thread: str) -> list[list[tuple[int, int, str]]]:
        """The slices of every lane's track of that name, lane 0 first."""
        return [slices for (_, name), slices in sorted(self.slices.items()) if name == thread]


def check_states(trace: Chrome) -> None:
    """No gap, no overlap; and their sums are what the counters grew by, within 1 us per transition."""
    lanes = trace.tracks("state")
    assert len(lanes) == 2
    for lane, slices in enumerate(lanes):
        at = trace.other["begin_nanos"]
        sums: dict[str, int] = collections.Counter()
        for begin, end, name in slices:
            assert begin == at, name
            at = end
            sums[name] += end - begin
        assert at == trace.other["end_nanos"]
        before = trace.other["counters_begin"][lane]["state_nanos"]
        after = trace.other["counters_end"][lane]["state_nanos"]
        for state in after:
            assert abs(after[state] - before[state] - sums[state]) <= 1000 * len(slices), state


def test_a_dump_holds_every_step(client: penstock.Client, tmp_path: pathlib.Path) -> None:
    pipeline = create_gpt(client)
    train(pipeline, 3)
    pipeline.infer(gpt_batch(0, 4)[0])
    data = pipeline.trace(tmp_path / "trace.json")
    assert data == (tmp_path / "trace.json").read_bytes()
    assert data.summary.steps == 3 and data.summary.lanes == 2 and not data.summary.incomplete
    trace = Chrome(data)
    check_states(trace)
    assert [name for _, _, name in trace.slices["pipeline " + pipeline.name.split("/")[1], "steps"]] == [
        "step 1",
        "step 2",
        "step 3",
    ]
    for lane, slices in enumerate(trace.tracks("compute")):
        names = [name for _, _, name in slices]
        for micro_batch in range(4):
            assert names.count(f"{lane}F{micro_batch}") == 3 and names.count(f"{lane}B{micro_batch}") == 3
        assert names.count(f"infer {lane}F0") == 1 and names.count(f"{lane}OPT apply") == 3
    for slices in trace.slices.values():
        assert all(before[1] <= after[0] for before, after in zip(slices, slices[1:])), "slices of a track nest"
    # An activation and a gradient per micro-batch and step, and those of the inference; each with both ends.
    assert len(trace.flows) >= 3 * 4 * 2 + 1
    for points in trace.flows.values():
        assert [phase for phase, _ in points].count("s") == 1 and [phase for phase, _ in points].count("f") == 1
        begin = next(at for phase, at in points if phase == "s")
        assert all(begin <= at for _, at in points)
    assert {"train queue", "infer queue", "micro-batches in flight"} <= trace.counters


def test_a_recording_of_the_next_steps(client: penstock.Client) -> None:
    pipeline = create_gpt(client)
    train(pipeline, 2)
    recorded: list[penstock.Trace] = []
    recorder = threading.Thread(target=lambda: recorded.append(pipeline.trace(steps=3, timeout=60)))
    recorder.start()
    step = 2
    while recorder.is_alive():
        pipeline.train_step(*gpt_batch(step, 8))
        step += 1
    recorder.join()
    assert recorded[0].summary.steps == 3 and not recorded[0].summary.incomplete
    trace = Chrome(recorded[0])
    check_states(trace)
    (steps,) = trace.tracks("steps")
    names = [int(name.split()[1]) for _, _, name in steps]
    assert len(names) == 3 and names[0] > 2 and names == list(range(names[0], names[0] + 3))


def test_some_steps_of_the_past(client: penstock.Client) -> None:
    pipeline = create_gpt(client)
    train(pipeline, 5)
    trace = Chrome(pipeline.trace(first_step=2, last_step=3))
    check_states(trace)
    (steps,) = trace.tracks("steps")
    assert [name for _, _, name in steps] == ["step 2", "step 3"]
    assert [name for _, _, name in Chrome(pipeline.trace(first_step=4)).tracks("steps")[0]] == ["step 4"]


@pytest.mark.skipif(shutil.which("protoc") is None, reason="protoc is missing")
def test_perfetto_reads_back(client: penstock.Client, tmp_path: pathlib.Path) -> None:
    pipeline = create_gpt(client)
    train(pipeline, 2)
    data = pipeline.trace(first_step=1, last_step=2, format="perfetto")
    described = tmp_path / "perfetto.pb"
    subprocess.run(
        ["protoc", f"--proto_path={PERFETTO.parent}", f"--descriptor_set_out={described}", PERFETTO.name], check=True
    )
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(described.read_bytes()).file:
        pool.Add(file)
    trace = message_factory.GetMessageClass(pool.FindMessageTypeByName("penstock.perfetto.Trace")).FromString(data)
    tracks = {p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")}
    names: dict[int, str] = {}
    open_slices: dict[int, list[tuple[int, str]]] = collections.defaultdict(list)
    slices: dict[str, list[tuple[int, int, str]]] = collections.defaultdict(list)
    flows: dict[int, int] = collections.Counter()
    for packet in trace.packet:
        names.update((entry.iid, entry.name) for entry in packet.interned_data.event_names)
        event = packet.track_event
        path = f"{tracks[tracks[event.track_uuid].parent_uuid].name}/{tracks[event.track_uuid].name}" if (
            packet.HasField("track_event") and tracks[event.track_uuid].parent_uuid
        ) else ""
        if event.type == 1:
            open_slices[event.track_uuid].append((packet.timestamp, names[event.name_iid]))
            flows.update(event.flow_ids)
            flows.update(event.terminating_flow_ids)
        elif event.type == 2:
            begin, name = open_slices[event.track_uuid].pop()
            slices[path].append((begin, packet.timestamp, name))
    assert not any(open_slices.values()), "every slice has an end"
    chrome = Chrome(pipeline.trace(first_step=1, last_step=2))
    same = {f"{process}/{thread}": made for (process, thread), made in chrome.slices.items()}
    assert slices == same, "both formats tell the same"
    assert len(flows) == len(chrome.flows) and all(count >= 2 for count in flows.values())
    assert len(data) < len(pipeline.trace(first_step=1, last_step=2)) / 2


def test_a_step_beside_its_plan(client: penstock.Client) -> None:
    pipeline = create_gpt(client, schedule="1f1b", micro_batches=4)
    planned = pipeline.schedule()
    assert planned.kind == "1f1b" and planned.micro_batches == 4 and list(planned.devices) == ["cpu:0", "cpu:1"]
    assert planned.planned.makespan_seconds == pytest.approx(pipeline.plan.makespan_seconds, rel=1e-6)
    assert planned.planned.bubble == pytest.approx(pipeline.plan.predicted_bubble, abs=1e-6)
    assert not planned.HasField("measured") and not planned.actions[0].HasField("measured_start_nanos")
    assert pipeline.schedule(micro_batches=7).micro_batches == 7

    # Long steps: what lies before their first action and after their last is no tenth of them.
    outcomes = [pipeline.train_step(*gpt_batch(step, 64)) for step in range(3)]
    last = pipeline.schedule(measured=True)
    assert last.step == 3
    assert {action.action for action in last.actions} == {action.action for action in planned.actions}
    # The outcome's bubble is of the same run, seen by the state clocks.
    assert last.measured.bubble == pytest.approx(outcomes[-1].measured_bubble, abs=0.1)
    for lane in (0, 1):
        own = [action for action in last.actions if action.lane == lane]
        for before, after in zip(own, own[1:]):
            assert before.measured_end_nanos <= after.measured_start_nanos
    assert max(action.measured_end_nanos for action in last.actions) == pytest.approx(
        last.measured.makespan_seconds * 1e9, abs=2
    )
    shares = [abs(deviation.share) for deviation in last.deviations]
    assert 0 < len(shares) <= 20 and shares == sorted(shares, reverse=True)
    assert pipeline.schedule(measured=True, step=1).step == 1


def test_pages_of_a_schedule_are_of_one_step(client: penstock.Client) -> None:
    pipeline = create_gpt(client)
    train(pipeline, 1)
    whole = pipeline.schedule(measured=True)
    request = insight_pb2.GetScheduleRequest(pipeline=pipeline.name, source="SOURCE_MEASURED", page_size=5)
    actions = []
    while True:
        page = client._connection.unary("InsightService/GetSchedule", request, insight_pb2.GetScheduleResponse)
        assert page.step == 1 and len(page.actions) <= 5
        actions.extend(page.actions)
        train(pipeline, 1)  # the last step is another one now
        request.page_token = page.next_page_token
        if not request.page_token:
            break
    assert actions == list(whole.actions)
    request.page_token = "made-up"
    with pytest.raises(penstock.PenstockError) as raised:
        client._connection.unary("InsightService/GetSchedule", request, insight_pb2.GetScheduleResponse)
    assert reason(raised) == "PAGE_TOKEN_INVALID"


def test_what_is_not_there_is_named(client: penstock.Client) -> None:
    pipeline = create_gpt(client)
    with pytest.raises(penstock.PenstockError, match="no step has run yet") as raised:
        pipeline.schedule(measured=True)
    assert reason(raised) == "STEP_NOT_RETAINED" and raised.value.code == grpc.StatusCode.OUT_OF_RANGE
    with pytest.raises(penstock.PenstockError, match="no optimizer step") as raised:
        pipeline.trace(first_step=1)
    assert reason(raised) == "STEP_NOT_RETAINED"
    assert pipeline.trace().summary.steps == 0
    train(pipeline, 2)
    with pytest.raises(penstock.PenstockError, match="the last was 2") as raised:
        pipeline.schedule(measured=True, step=3)
    assert reason(raised) == "STEP_NOT_RETAINED"
    with pytest.raises(penstock.PenstockError, match="the last was 2") as raised:
        pipeline.trace(first_step=2, last_step=5)
    assert reason(raised) == "STEP_NOT_RETAINED"
    for wrong in ({"steps": -1}, {"steps": 1, "first_step": 1}, {"last_step": 2}, {"first_step": 2, "last_step": 1}):
        with pytest.raises(penstock.PenstockError) as raised:
            pipeline.trace(**wrong)
        assert reason(raised) == "FIELD_INVALID", wrong
    for wrong in ({"step": 1}, {"micro_batches": 5000}, {"measured": True, "micro_batches": 2}):
        with pytest.raises(penstock.PenstockError) as raised:
            pipeline.schedule(**wrong)
        assert reason(raised) == "FIELD_INVALID", wrong
    pipeline.delete()
    for gone in (pipeline.schedule, pipeline.trace):
        with pytest.raises(penstock.PenstockError) as raised:
            gone()
        assert reason(raised) == "PIPELINE_NOT_FOUND"


def test_a_recording_ends_with_its_caller(client: penstock.Client) -> None:
    with pytest.raises(penstock.DeadlineError, match="CALL_DEADLINE"):
        create_gpt(client).trace(steps=1, timeout=0.2)


def test_a_recording_ends_with_its_pipeline(client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    inputs, _ = mlp_batch(0, rows=1 << 16)
    with pipeline.put({"input": inputs}) as rows, ThreadPoolExecutor(1) as threads:
        work = [pipeline.submit_infer(rows) for _ in range(32)]
        request = insight_pb2.ExportTraceRequest(pipeline=pipeline.name, steps=1)
        recording = client._connection.stream("InsightService/ExportTrace", request, insight_pb2.ExportTraceResponse)
        assert next(recording) == insight_pb2.ExportTraceResponse(), "it has begun"
        deletion = threads.submit(pipeline.delete)
        with pytest.raises(penstock.PenstockError) as raised:
            next(recording)
        assert reason(raised) == "PIPELINE_NOT_READY" and not deletion.done(), "it waits for the work"
        for handle in work:
            handle.cancel()
        deletion.result()


def test_a_small_ring_says_what_it_lost(start_daemon: StartDaemon) -> None:
    daemon: Daemon = start_daemon("--drain-announce=0s", "--trace-ring-events=64")
    with penstock.Client(daemon.address) as client:
        pipeline = create_gpt(client)
        train(pipeline, 20)
        data = pipeline.trace()
        assert data.summary.incomplete and data.summary.lost_records > 0
        trace = Chrome(data)
        assert trace.other["incomplete"] is True
        check_states(trace)
        with pytest.raises(penstock.PenstockError, match="trace-ring-events") as raised:
            pipeline.schedule(measured=True, step=1)
        assert reason(raised) == "STEP_NOT_RETAINED"
        assert pipeline.schedule(measured=True, step=20).step == 20
    daemon.stop()
