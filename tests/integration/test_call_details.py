"""What calls say besides their data takes effect over the wire, and what a client's end or a second one leaves."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import penstock
import pytest
from penstock.checksum import crc32c
from penstock.chunks import Chunk
from penstock.v1 import handle_pb2, pipeline_pb2, state_pb2

from conftest import WITHOUT_JOURNAL, StartDaemon
from daemon_process import Daemon
from raw_calls import Raw, duration, tensor, train, waiting
from small_models import WIDTH, create_gpt, create_mlp, differing, gpt_batch, mlp_batch, request_id, state_of


def refusal(call: Any) -> penstock.PenstockError:
    with pytest.raises(penstock.PenstockError) as raised:
        call()
    return raised.value


# --- numbers of one step ----------------------------------------------------------------------------------------------


def test_a_learning_rate_of_one_step(client: penstock.Client) -> None:
    usual, other, told = (
        create_mlp(client, optimizer="sgd", optimizer_options={"learning_rate": rate}) for rate in (0.1, 0.025, 0.1)
    )
    for pipeline, rate in ((usual, None), (other, None), (told, 0.025)):
        pipeline.train_step(*mlp_batch(0), learning_rate=rate)
    assert differing(state_of(told), state_of(other)) == []
    assert differing(state_of(told), state_of(usual)) != []
    for pipeline in (other, told):
        pipeline.forward_backward(*mlp_batch(1))
        pipeline.optimizer_step(learning_rate=0.05 if pipeline is told else None)
    assert differing(state_of(told), state_of(other)) != []


def test_a_clip_norm_of_one_step(client: penstock.Client) -> None:
    clipped, free, told = (create_mlp(client, clip_norm=norm) for norm in (0.01, 0.0, 0.0))
    norms = [
        pipeline.train_step(*mlp_batch(0), clip_norm=norm).gradient_norm
        for pipeline, norm in ((clipped, None), (free, None), (told, 0.01))
    ]
    assert norms[0] == norms[1] == norms[2], "the norm is that before clipping"
    assert differing(state_of(told), state_of(clipped)) == []
    assert differing(state_of(told), state_of(free)) != []
    unclipped = clipped.train_step(*mlp_batch(1), clip_norm=0.0)
    assert unclipped.step == 2


def test_total_elements_weigh_a_contribution(client: penstock.Client) -> None:
    """Labels are ignored, so that rows can't: one step of two halves equals the step of the whole."""
    inputs, labels = (array.copy() for array in gpt_batch(0))
    labels[:4, ::2] = -1  # the halves count differently many
    pipelines = [create_gpt(client, micro_batches=2, loss_options={"ignore_index": -1}) for _ in range(2)]
    whole, parts = pipelines
    one = whole.train_step(inputs, labels)
    counted = int((labels != -1).sum())
    for half in (slice(0, 4), slice(4, 8)):
        parts.forward_backward(inputs[half], labels[half], total_elements=counted, micro_batches=1)
    two = parts.optimizer_step()
    assert differing(state_of(whole), state_of(parts)) == []
    assert one.gradient_norm == two.gradient_norm


def test_a_graph_that_is_retained_serves_again(client: penstock.Client) -> None:
    inputs, _ = mlp_batch(0, 4)
    gradient = {"output": np.ones((4, WIDTH), np.float32)}
    once, twice = create_mlp(client), create_mlp(client)
    graph = twice.forward(inputs).graph
    twice.backward(graph, gradient, retain_graph=True)
    twice.backward(graph, gradient)
    assert refusal(lambda: twice.backward(graph, gradient)).reason == "GRAPH_CONSUMED"
    doubled = {"output": 2 * gradient["output"]}
    once.backward(once.forward(inputs).graph, doubled)
    assert once.optimizer_step().gradient_norm == pytest.approx(twice.optimizer_step().gradient_norm, rel=1e-6)


# --- request ids ------------------------------------------------------------------------------------------------------


def test_a_call_survives_its_client(daemon: Daemon, client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    request = train(pipeline.name, reply=waiting(0))
    vanishing = Raw(daemon.address)
    vanishing.call("TrainStep", request)
    vanishing.close()
    with penstock.Client(daemon.address) as second:
        again = second.pipeline(pipeline.name)
        retried = Raw(daemon.address)
        request.reply.CopyFrom(waiting())
        assert retried.call("TrainStep", request).outcome.handle.outcome.step == 1
        retried.close()
        assert again.refresh().step == 1


def test_equal_ids_at_once_are_one_step(daemon: Daemon, client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    request = train(pipeline.name)
    start = threading.Barrier(8)

    def call(raw: Raw) -> int:
        start.wait()
        return int(raw.call("TrainStep", request).outcome.handle.outcome.step)

    raws = [Raw(daemon.address) for _ in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        steps = list(pool.map(call, raws))
    for raw in raws:
        raw.close()
    assert steps == [1] * 8 and pipeline.refresh().step == 1


def test_a_creation_is_not_repeated_once_its_pipeline_is_deleted(client: penstock.Client, raw: Raw) -> None:
    """The retry of a lost reply tells what has become of the first one's pipeline; it does not make it anew."""
    request = pipeline_pb2.CreatePipelineRequest(
        pipeline_id="created-once", spec=create_mlp(client).message.spec, request_id=request_id()
    )

    def create() -> pipeline_pb2.Pipeline:
        return raw.unary("PipelineService/CreatePipeline", request, pipeline_pb2.Pipeline)

    assert create().name == create().name == "pipelines/created-once"
    client.pipeline("created-once").delete()
    assert refusal(create).reason == "PIPELINE_NOT_FOUND"
    assert refusal(lambda: client.pipeline("created-once").refresh()).reason == "PIPELINE_NOT_FOUND"


# --- state ------------------------------------------------------------------------------------------------------------


def test_written_parameters_are_saved_by_a_drain(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(*WITHOUT_JOURNAL)
    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client, "kept")
        ones = {name: np.ones_like(array) for name, array in pipeline.read_parameters().items()}
        pipeline.write_parameters(ones, step=41)
    daemon.stop()
    daemon.start()
    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client, "kept")
        saved = pipeline.list_checkpoints()
        assert [checkpoint.step for checkpoint in saved] == [41]
        pipeline.restore_checkpoint(saved[0].name)
        assert all((array == 1).all() for array in pipeline.read_parameters().values())


def test_pages_of_checkpoints(daemon: Daemon, client: penstock.Client, raw: Raw) -> None:
    pipeline = create_mlp(client)
    names = [pipeline.save_checkpoint(f"c{number}").name for number in range(5)]
    found: list[str] = []
    request = state_pb2.ListCheckpointsRequest(parent=pipeline.name, page_size=2)
    sizes = []
    while True:
        page = raw.unary("StateService/ListCheckpoints", request, state_pb2.ListCheckpointsResponse)
        found.extend(checkpoint.name for checkpoint in page.checkpoints)
        sizes.append(len(page.checkpoints))
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert sorted(found) == names and sizes == [2, 2, 1]


# --- handles ----------------------------------------------------------------------------------------------------------


def test_a_put_goes_on_in_a_second_stream(daemon: Daemon, client: penstock.Client, raw: Raw) -> None:
    """The first stream stands still; the second has the same request id, and takes over."""
    pipeline = create_mlp(client)
    array = np.arange(5 << 18, dtype=np.float32).reshape(-1, WIDTH)
    data = array.tobytes()  # 5 MiB; after four of them the daemon says how far it is
    start = handle_pb2.PutTensorsRequest(
        start=handle_pb2.PutStart(
            pipeline=pipeline.name, tensors=[tensor(array, name="x").header], request_id=request_id(), lease=duration(60)
        )
    )
    goes_on = threading.Event()

    def first() -> Iterator[handle_pb2.PutTensorsRequest]:
        yield start
        for number in range(4):
            yield chunk(number, data)
        goes_on.wait(60)
        yield chunk(4, data)

    answers = raw.open_put(first())
    assert next(answers).credit.next_offset == 0
    assert next(answers).credit.next_offset == 4 << 20
    second = Raw(daemon.address)
    last = list(second.open_put(iter([start, chunk(4, data)])))
    second.close()
    assert last[0].credit.next_offset == 4 << 20
    goes_on.set()
    assert refusal(lambda: list(answers)).reason == "STREAM_PROTOCOL"
    fetched = raw.fetch(handle_pb2.FetchHandleRequest(name=last[-1].handle.name))
    assert b"".join(bytes(piece.data) for piece in fetched if isinstance(piece, Chunk)) == data


def chunk(number: int, data: bytes) -> handle_pb2.PutTensorsRequest:
    """The mebibyte of that number."""
    offset = number << 20
    piece = data[offset : offset + (1 << 20)]
    return handle_pb2.PutTensorsRequest(
        chunk=handle_pb2.TensorChunk(tensor=0, offset=offset, data=piece, crc32c=crc32c(piece))
    )


# --- counters ---------------------------------------------------------------------------------------------------------


def test_gauges_of_what_runs_fall_after_a_failure(daemon: Daemon, client: penstock.Client) -> None:
    pipeline = create_gpt(client)
    inputs, labels = gpt_batch(0)
    with pytest.raises(penstock.PenstockError):
        pipeline.train_step(inputs + 100_000, labels)  # no such token
    pipeline.train_step(inputs, labels)
    name = pipeline.name.split("/")[1]
    metrics = daemon.metrics()
    assert metrics.sum("penstock_inflight_micro_batches", pipeline=name) == 0
    assert metrics.sum("penstock_runs_active", pipeline=name) == 0
    assert metrics.sum("penstock_queue_depth", pipeline=name) == 0
    assert metrics.sum("penstock_queue_oldest_age_seconds", pipeline=name) == 0
    assert metrics.sum("penstock_batches_total", pipeline=name, mode="train") == 2


def test_recomputed_bytes_are_counted_where_something_is_recomputed(daemon: Daemon, client: penstock.Client) -> None:
    counts = {}
    for mode in ("never", "always"):
        pipeline = create_mlp(client, checkpoint=mode)
        pipeline.train_step(*mlp_batch(0))
        name = pipeline.name.split("/")[1]
        counts[mode] = daemon.metrics().sum("penstock_recomputed_activation_bytes_total", pipeline=name)
    assert counts["never"] == 0 and counts["always"] > 0


def test_refusals_are_counted_by_reason(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--drain-announce=0s", "--max-calls-per-caller=1")
    with penstock.Client(daemon.address, retry_for=0) as client:
        pipeline = create_mlp(client)
        handles = []
        refused = 0
        end = time.monotonic() + 60
        while refused == 0:
            assert time.monotonic() < end
            try:
                handles.append(pipeline.submit_train_step(*mlp_batch(0, 2048)))
            except penstock.PenstockError as error:
                assert error.reason == "CALLER_QUOTA"
                refused += 1
        for handle in handles:
            handle.result()
        assert daemon.metrics().sum("penstock_admission_rejected_total", reason="quota") == refused
