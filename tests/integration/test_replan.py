"""UpdatePipeline: another cut, schedule, devices or batching while a pipeline serves, with the same weights and no lost call."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import penstock
import pytest
from penstock.v1 import insight_pb2, pipeline_pb2

from conftest import QUICK_DRAIN, StartDaemon
from daemon_process import Daemon
from raw_calls import INVALID, Raw, refused
from small_models import create_gpt, create_mlp, differing, fresh_name, gpt_batch, mlp_batch, request_id, state_of

PENSTOCK = os.environ.get("PENSTOCK", "penstock")
FAILED = grpc.StatusCode.FAILED_PRECONDITION

# None of them changes the number of micro-batches, which alone would change bits.
PLANS: list[dict[str, Any]] = [
    {"balance": [3, 1], "schedule": "gpipe"},
    {"balance": [1, 1, 1, 1], "devices": ["cpu:1", "cpu:0", "cpu:1", "cpu:0"], "schedule": "1f1b"},
    {"balance": [4], "devices": ["cpu:1"]},
    {"schedule": "zb-h1", "balance": [2, 2], "devices": ["cpu:0", "cpu:1"]},
    {"batch_rows": 16},
    {"stages": 2, "checkpoint": "always"},
    {"dynamic_batching": False, "bubble_filling": False},
]


@pytest.fixture
def raw(daemon: Daemon) -> Iterator[Raw]:
    one = Raw(daemon.address)
    yield one
    one.close()


def devices_of(pipeline: penstock.Pipeline) -> list[str]:
    return [stage.device for stage in pipeline.refresh().plan.stages]


def test_steps_go_on_bit_for_bit_whatever_the_plan(client: penstock.Client) -> None:
    kept, changed = create_mlp(client, dropout=0.1), create_mlp(client, dropout=0.1)
    for step, plan in enumerate(PLANS):
        for pipeline in (kept, changed):
            pipeline.train_step(*mlp_batch(step))
        token = changed.refresh().state_token
        now = changed.replan(**plan)
        assert (now.step, now.state_token) == (step + 1, token)
        assert now.plan.micro_batches == 4
        assert not differing(state_of(kept), state_of(changed)), plan
    for pipeline in (kept, changed):
        pipeline.train_step(*mlp_batch(99))
    assert not differing(state_of(kept), state_of(changed))
    x = mlp_batch(1)[0]
    assert [array.tobytes() for array in kept.infer(x).values()] == [array.tobytes() for array in changed.infer(x).values()]


def test_tokens_of_evaluations_stay(client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    pipeline.train_step(*mlp_batch(0))
    before = pipeline.evaluate(*mlp_batch(1)).state_token
    pipeline.replan(stages=1)
    after = pipeline.evaluate(*mlp_batch(1)).state_token
    assert before == after == pipeline.refresh().state_token
    assert pipeline.train_step(*mlp_batch(2), expected_state=after).step == 2


def test_what_is_not_named_stays_as_it_was_planned(client: penstock.Client) -> None:
    pipeline = create_mlp(client, balance=[3, 1], schedule="gpipe", checkpoint="always")
    now = pipeline.replan(batch_rows=8)
    assert list(now.spec.cut.balance) == [3, 1] and now.plan.schedule == "gpipe"
    assert now.spec.dynamic_batching.max_rows == 8
    now = pipeline.replan(schedule="1f1b")
    assert [len(stage.layers) for stage in now.plan.stages] == [3, 1]
    assert now.plan.schedule == "1f1b" and now.spec.dynamic_batching.max_rows == 8
    assert not pipeline.replan(dynamic_batching=False).spec.HasField("dynamic_batching")
    assert pipeline.refresh().spec == pipeline.message.spec


def test_stages_move_only_by_it(client: penstock.Client) -> None:
    pipeline = create_mlp(client, balance=[2, 2], devices=["cpu:0", "cpu:1"])
    assert devices_of(pipeline) == ["cpu:0", "cpu:1"]
    pipeline.train_step(*mlp_batch(0))
    assert devices_of(pipeline) == ["cpu:0", "cpu:1"]
    pipeline.replan(balance=[2, 2], devices=["cpu:1", "cpu:0"])
    assert devices_of(pipeline) == ["cpu:1", "cpu:0"]


def test_no_call_fails_under_load(client: penstock.Client, daemon: Daemon) -> None:
    """Two threads infer, one trains, and the plan changes beneath them; then the weights are those of the steps alone."""
    loaded = create_gpt(client)
    stop = threading.Event()
    failures: list[BaseException] = []
    counts = {"infer": 0, "train": 0}

    def repeat(kind: str, call: Callable[[int], object]) -> None:
        number = 0
        while not stop.is_set():
            try:
                call(number)
            except BaseException as error:  # noqa: BLE001
                failures.append(error)
                return
            number += 1
            if kind == "train":
                counts[kind] = number
            else:
                counts[kind] += 1

    x = gpt_batch(0, 2)[0]
    with penstock.Client(daemon.address) as other:
        same = other.pipeline(loaded.name)
        threads = [
            threading.Thread(target=repeat, args=("train", lambda number: loaded.train_step(*gpt_batch(number)))),
            *(threading.Thread(target=repeat, args=("infer", lambda _: same.infer(x))) for _ in range(2)),
        ]
        for thread in threads:
            thread.start()
        for plan in [{"stages": 1}, {"stages": 2, "schedule": "zb-h1"}, {"batch_rows": 8}, {"stages": 4, "devices": ["cpu:0", "cpu:1"] * 2, "schedule": "1f1b"}, {"dynamic_batching": False}]:
            before = dict(counts)
            now = client.pipeline(loaded.name).replan(**plan)
            assert now.plan.micro_batches == 4
            while not failures and any(counts[kind] == before[kind] for kind in counts):
                stop.wait(0.01)
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures, failures[0]
    alone = create_gpt(client)
    for number in range(counts["train"]):
        alone.train_step(*gpt_batch(number))
    assert not differing(state_of(alone), state_of(loaded))


@pytest.mark.parametrize("calls_after", [0, 2])
def test_after_kill_it_is_as_it_was_updated(start_daemon: StartDaemon, calls_after: int) -> None:
    daemon = start_daemon(*QUICK_DRAIN)
    name = fresh_name("killed")
    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client, name, dropout=0.1)
        other = create_mlp(client, dropout=0.1)
        for step in range(3 + calls_after):
            if step == 3:
                pipeline.replan(balance=[1, 3], schedule="gpipe", batch_rows=8)
            pipeline.train_step(*mlp_batch(step))
            other.train_step(*mlp_batch(step))
        if calls_after == 0:
            pipeline.replan(balance=[1, 3], schedule="gpipe", batch_rows=8)
        expected = state_of(other)
        daemon.kill()
        daemon.start()
        again = client.pipeline(name)
        assert [len(stage.layers) for stage in again.message.plan.stages] == [1, 3]
        assert again.message.plan.schedule == "gpipe" and again.message.spec.dynamic_batching.max_rows == 8
        assert not differing(expected, state_of(again))


@pytest.mark.parametrize("changes", [{"devices": ["cpu:0"]}, {"stages": 4, "devices": ["cpu:0", "cpu:1"]}, {"stages": 3, "devices": ["cpu:1"]}])
def test_devices_that_are_used_in_turn_stay_so(start_daemon: StartDaemon, changes: dict[str, Any]) -> None:
    """After a change that leaves the cut as it was planned, after kill -9, and of what is made from a checkpoint."""
    daemon = start_daemon(*QUICK_DRAIN)
    with penstock.Client(daemon.address) as client:
        name = fresh_name("turns")
        pipeline = create_mlp(client, name)
        pipeline.replan(**changes)
        stood = devices_of(pipeline)
        pipeline.replan(batch_rows=8)
        assert devices_of(pipeline) == stood
        pipeline.train_step(*mlp_batch(0))
        pipeline.save_checkpoint("kept")
        copied = client.create_pipeline(fresh_name("copy"), from_checkpoint=f"{pipeline.name}/checkpoints/kept")
        assert devices_of(copied) == stood
        expected = state_of(pipeline)
        daemon.kill()
        daemon.start()
        again = client.pipeline(name)
        assert devices_of(again) == stood
        assert not differing(expected, state_of(again))


def update(pipeline: str, **fields: Any) -> pipeline_pb2.UpdatePipelineRequest:
    spec = pipeline_pb2.PipelineSpec(**fields.pop("spec", {}))
    return pipeline_pb2.UpdatePipelineRequest(**{"name": pipeline, "spec": spec, "request_id": request_id(), **fields})


ONE_STAGE = {"cut": pipeline_pb2.Cut(stages=1)}


@pytest.mark.parametrize(
    ("fields", "code", "reason", "named"),
    [
        ({}, INVALID, "SPEC_INVALID", "spec"),
        ({"spec": {"seed": 3}}, INVALID, "SPEC_INVALID", "spec.seed"),
        ({"spec": {"optimizer": {"name": "sgd"}}}, INVALID, "SPEC_INVALID", "spec.optimizer"),
        ({"spec": {"loss": {"name": "cross_entropy"}}}, INVALID, "SPEC_INVALID", "spec.loss"),
        ({"spec": {"model": {"dtype": "bf16"}}}, INVALID, "SPEC_INVALID", "spec.model"),
        ({"spec": {"model": {"name": "gpt"}}}, INVALID, "SPEC_INVALID", "spec.model"),
        ({"spec": {"cut": {"balance": [5, 9]}}}, INVALID, "SPEC_INVALID", "spec.cut.balance"),
        ({"spec": {"devices": ["cpu:77"]}}, INVALID, "SPEC_INVALID", "spec.devices"),
        ({"spec": {"schedule": {"kind": "sideways"}}}, INVALID, "SPEC_INVALID", "spec.schedule.kind"),
        ({"spec": {"dynamic_batching": {"max_rows": 0}}}, INVALID, "SPEC_INVALID", "spec.dynamic_batching.max_rows"),
        ({"spec": {"dynamic_batching": {}}, "no_dynamic_batching": True}, INVALID, "SPEC_INVALID", "spec.dynamic_batching"),
        ({"spec": ONE_STAGE, "etag": "7-7"}, FAILED, "ETAG_MISMATCH", "etag"),
        ({"spec": ONE_STAGE, "request_id": ""}, INVALID, "REQUEST_ID_MISSING", "request_id"),
        ({"spec": ONE_STAGE, "name": "pipelines/nobody"}, grpc.StatusCode.NOT_FOUND, "PIPELINE_NOT_FOUND", ""),
        ({"spec": ONE_STAGE, "name": "gpt"}, INVALID, "NAME_INVALID", "name"),
    ],
)  # fmt: skip
def test_a_bad_update_changes_nothing(
    raw: Raw, client: penstock.Client, fields: dict[str, Any], code: grpc.StatusCode, reason: str, named: str | None
) -> None:
    pipeline = create_mlp(client)
    refused(lambda: raw.call("UpdatePipeline", update(pipeline.name, **fields)), code, reason, named)
    before = pipeline.message
    assert pipeline.refresh() == before
    assert pipeline.train_step(*mlp_batch(0)).step == 1


def test_an_open_accumulation_and_an_open_graph_refuse_it(client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    pipeline.forward_backward(*mlp_batch(0))
    with pytest.raises(penstock.PenstockError, match="ACCUMULATION_OPEN"):
        pipeline.replan(stages=1)
    pipeline.optimizer_step()
    forward = pipeline.forward(mlp_batch(0)[0])
    with pytest.raises(penstock.PenstockError, match="GRAPH_OPEN"):
        pipeline.replan(stages=1)
    forward.graph.release()
    assert len(pipeline.replan(stages=1).plan.stages) == 1


def test_a_retry_gets_the_first_answer(raw: Raw, client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    request = update(pipeline.name, spec=ONE_STAGE)
    first = raw.call("UpdatePipeline", request)
    second = raw.call("UpdatePipeline", request)
    assert first == second and len(first.plan.stages) == 1
    other = update(pipeline.name, spec={"cut": {"stages": 2}}, request_id=request.request_id)
    refused(
        lambda: raw.call("UpdatePipeline", other),
        INVALID, "REQUEST_ID_REUSED",
    )  # fmt: skip


def test_validate_only_plans_and_changes_nothing(raw: Raw, client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    request = update(pipeline.name, spec=ONE_STAGE, validate_only=True)
    planned = raw.call("UpdatePipeline", request)
    assert len(planned.plan.stages) == 1 and planned.name == pipeline.name
    before = pipeline.message
    assert pipeline.refresh() == before


def test_metrics_and_memory_are_those_of_the_one_that_stands(client: penstock.Client, daemon: Daemon) -> None:
    pipeline = create_mlp(client)
    name = pipeline.name.partition("/")[2]
    pipeline.replan(stages=1)
    pipeline.train_step(*mlp_batch(0))
    metrics = daemon.metrics()
    assert metrics.sum("penstock_step_number", pipeline=name) == 1
    assert metrics.sum("penstock_batches_started_total", pipeline=name, mode="train") == 1
    reserved = metrics.sum("penstock_memory_reserved_bytes", **{"class": "pipelines"})
    assert reserved > 0
    for stages in (2, 1, 2, 1):
        pipeline.replan(stages=stages)
    assert daemon.metrics().sum("penstock_memory_reserved_bytes", **{"class": "pipelines"}) == pytest.approx(reserved, rel=0.1)


def test_a_recording_of_steps_that_an_update_cuts_short_says_so(client: penstock.Client, daemon: Daemon) -> None:
    pipeline = create_mlp(client)
    with grpc.insecure_channel(daemon.address) as channel:
        export = channel.unary_stream(
            "/penstock.v1.InsightService/ExportTrace",
            insight_pb2.ExportTraceRequest.SerializeToString,
            insight_pb2.ExportTraceResponse.FromString,
        )
        recording = export(insight_pb2.ExportTraceRequest(pipeline=pipeline.name, steps=1000), timeout=60)
        next(recording)  # it has begun
        pipeline.replan(stages=1)
        with pytest.raises(grpc.RpcError, match="was updated while its steps were recorded"):
            list(recording)


def test_from_the_shell(client: penstock.Client, daemon: Daemon) -> None:
    pipeline = create_mlp(client)
    name = pipeline.name.partition("/")[2]

    def penstock_of(*words: str) -> subprocess.CompletedProcess[str]:
        command = [PENSTOCK, "--server", daemon.address, "pipeline", "replan", name, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    dry = penstock_of("--stages", "1", "--dry-run")
    assert dry.returncode == 0 and "nothing was changed" in dry.stderr, dry.stderr
    assert len(pipeline.refresh().plan.stages) == 2
    done = penstock_of("--stages", "1", "--batch-rows", "8")
    assert done.returncode == 0 and f"changed the plan of pipelines/{name}" in done.stderr, done.stderr
    assert len(pipeline.refresh().plan.stages) == 1 and pipeline.message.spec.dynamic_batching.max_rows == 8
    assert penstock_of("--dynamic-batching=false").returncode == 0
    assert not pipeline.refresh().spec.HasField("dynamic_batching")
    wrong = penstock_of("--optimizer", "sgd")
    assert wrong.returncode == 2 and "'--optimizer'" in wrong.stderr, wrong.stderr
    assert isinstance(pipeline.infer(np.ones((2, 16), np.float32)), dict)
