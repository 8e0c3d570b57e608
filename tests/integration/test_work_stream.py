"""StreamWork: training, inference and tensors for them on one stream, as by calls of their own, and after kill -9."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import numpy as np
import penstock
import pytest
from penstock import aio, tensors
from penstock.checksum import crc32c
from penstock.v1 import handle_pb2, tensor_pb2, work_pb2

from conftest import StartDaemon
from daemon_process import Daemon
from raw_calls import Raw, given, waiting
from small_models import create_mlp, differing, mlp_batch, request_id, state_of

NAME = "streamed"


class Stream:
    """One stream, whose requests are sent without waiting for answers."""

    def __init__(self, address: str) -> None:
        self._raw = Raw(address)
        self._requests: queue.SimpleQueue[work_pb2.StreamWorkRequest | None] = queue.SimpleQueue()
        self._answers = self._raw.duplex("WorkService/StreamWork", self._sent(), work_pb2.StreamWorkResponse)
        self._tag = 0
        self.opened = next(self._answers).opened

    def _sent(self) -> Iterator[work_pb2.StreamWorkRequest]:
        while (request := self._requests.get()) is not None:
            yield request

    def ask(self, **message: Any) -> int:
        """Sends it under the next tag."""
        self._tag += 1
        self._requests.put(work_pb2.StreamWorkRequest(tag=self._tag, **message))
        return self._tag

    def put(self, pipeline: str, array: np.ndarray) -> int:
        start = handle_pb2.PutStart(pipeline=pipeline, tensors=[tensors.header_of("x", array)])
        tag = self.ask(put=start)
        data = array.tobytes()
        chunk = handle_pb2.TensorChunk(data=data, crc32c=crc32c(data))
        self._requests.put(work_pb2.StreamWorkRequest(tag=tag, chunk=chunk))
        return tag

    def next(self) -> work_pb2.StreamWorkResponse:
        return next(self._answers)

    def answers(self, count: int) -> dict[int, work_pb2.StreamWorkResponse]:
        """The next ones, by tag."""
        return {answer.tag: answer for answer in (self.next() for _ in range(count))}

    def end(self) -> None:
        """Closes the sending side, and expects no answer more."""
        self._requests.put(None)
        assert next(self._answers, None) is None
        self._raw.close()


def step_of(pipeline: str, step: int, again: str = "") -> work_pb2.TrainStepRequest:
    """A training step with its tensors inside."""
    inputs, targets = mlp_batch(step)
    target = given("target", targets)
    request = again or request_id()
    return work_pb2.TrainStepRequest(pipeline=pipeline, inputs=[given("input", inputs)], target=target, request_id=request, reply=waiting())


def handle_of(put: int) -> tensor_pb2.HandleTensor:
    return tensor_pb2.HandleTensor(put=put)


def test_training_on_a_stream_is_that_of_calls(client: penstock.Client, daemon: Daemon) -> None:
    """Bit for bit, with tensors that are put on the stream and named before their answers have come."""
    by_calls, streamed = create_mlp(client, dropout=0.1), create_mlp(client, dropout=0.1)
    losses = [by_calls.train_step(*mlp_batch(step)).loss for step in range(5)]
    stream = Stream(daemon.address)
    assert stream.opened.requests > 10 and stream.opened.epoch > 0
    steps = []
    for step in range(5):
        inputs, targets = mlp_batch(step)
        request = work_pb2.TrainStepRequest(
            pipeline=streamed.name,
            inputs=[tensor_pb2.Input(name="input", handle=handle_of(stream.put(streamed.name, inputs)))],
            target=tensor_pb2.Input(name="target", handle=handle_of(stream.put(streamed.name, targets))),
            request_id=request_id(),
            reply=waiting(),
        )
        steps.append(stream.ask(train_step=request))
    answers = stream.answers(15)
    outcomes = [answers[tag].train_step.outcome.handle.outcome for tag in steps]
    assert [outcome.loss for outcome in outcomes] == losses
    assert [outcome.step for outcome in outcomes] == [1, 2, 3, 4, 5]
    assert not differing(state_of(by_calls), state_of(streamed))
    reply = waiting()
    reply.inline_bytes = 4096
    inferred = stream.ask(infer=work_pb2.InferRequest(pipeline=streamed.name, inputs=[given("input", mlp_batch(9)[0])], reply=reply))
    answer = stream.answers(1)[inferred].infer.outputs
    wanted = streamed.infer(mlp_batch(9)[0])
    assert [tensors.decode(one).tobytes() for one in answer.tensors] == [array.tobytes() for array in wanted.values()]
    stream.end()


def test_steps_of_a_killed_daemon_are_made_once(start_daemon: StartDaemon) -> None:
    """Six steps are sent at once, the daemon is killed behind the first answer, and all six are sent again."""
    daemon = start_daemon()
    with penstock.Client(daemon.address) as client:
        undisturbed = create_mlp(client, "undisturbed")
        losses = [undisturbed.train_step(*mlp_batch(step)).loss for step in range(6)]
        wanted = state_of(undisturbed)
        name = create_mlp(client, NAME).name
    ids = [request_id() for _ in range(6)]
    stream = Stream(daemon.address)
    for step, one in enumerate(ids):
        stream.ask(train_step=step_of(name, step, one))
    first = stream.next().train_step.outcome.handle.outcome
    assert first.loss == losses[0]
    daemon.kill()
    with pytest.raises(penstock.PenstockError) as raised:
        stream.answers(6)
    assert raised.value.code == grpc.StatusCode.UNAVAILABLE
    daemon.start()
    stream = Stream(daemon.address)
    tags = [stream.ask(train_step=step_of(name, step, one)) for step, one in enumerate(ids)]
    answers = stream.answers(6)
    assert [answers[tag].train_step.outcome.handle.outcome.loss for tag in tags] == losses
    stream.end()
    with penstock.Client(daemon.address) as client:
        assert not differing(state_of(client.pipeline(NAME)), wanted)
    daemon.stop()


def test_a_drain_ends_a_stream_that_is_idle(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    stream = Stream(daemon.address)
    daemon.terminate()
    with pytest.raises(penstock.PenstockError) as raised:
        stream.next()
    assert raised.value.code == grpc.StatusCode.UNAVAILABLE
    assert daemon.wait() == 0


def test_clients_share_a_stream(daemon: Daemon) -> None:
    """Of many threads; what fails fails alone; a call that is given up leaves its place; large inputs go by uploads."""

    def calls(method: str) -> float:
        return daemon.metrics().sum("grpc_server_started_total", grpc_method=method)

    before = calls("StreamWork"), calls("Infer")
    with penstock.Client(daemon.address, work_stream=True) as client:
        pipeline, other = create_mlp(client), create_mlp(client)
        batch = mlp_batch(0)
        with futures.ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda _: pipeline.infer(batch[0])["output"].tobytes(), range(64)))
        assert len(set(found)) == 1
        losses = [pipeline.train_step(*mlp_batch(step)).loss for step in range(3)]
        with penstock.Client(daemon.address) as usual:
            assert [usual.pipeline(other.name).train_step(*mlp_batch(step)).loss for step in range(3)] == losses
        with pytest.raises(penstock.PenstockError) as raised:
            pipeline.infer(np.zeros((2, 3), np.float32))
        assert raised.value.reason == "TENSOR_SIGNATURE"
        large = np.zeros((50_000, batch[0].shape[1]), np.float32)
        assert pipeline.infer(large)["output"].shape == large.shape
        assert (calls("StreamWork"), calls("Infer")) == (before[0] + 1, before[1])


def test_the_asynchronous_client_shares_a_stream(daemon: Daemon) -> None:
    async def use() -> None:
        async with aio.Client(daemon.address, work_stream=True) as client:
            with penstock.Client(daemon.address) as usual:
                name = create_mlp(usual).name
            pipeline = await client.pipeline(name)
            batch = mlp_batch(0)[0]
            found = await asyncio.gather(*(pipeline.infer(batch) for _ in range(64)))
            assert len({one["output"].tobytes() for one in found}) == 1
            with pytest.raises(penstock.PenstockError) as raised:
                await pipeline.infer(np.zeros((2, 3), np.float32))
            assert raised.value.reason == "TENSOR_SIGNATURE"
            call = asyncio.create_task(pipeline.infer(batch))
            await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert (await pipeline.train_step(*mlp_batch(0))).step == 1

    asyncio.run(use())


@pytest.mark.parametrize("streamed", [False, True])
def test_calls_of_a_client_outlive_the_daemon(start_daemon: StartDaemon, streamed: bool) -> None:
    """A stream that broke is opened anew, with the same request id."""
    daemon = start_daemon()
    with penstock.Client(daemon.address, work_stream=streamed, retry_for=60) as client:
        pipeline = create_mlp(client, NAME)
        assert pipeline.train_step(*mlp_batch(0)).step == 1
        daemon.kill()
        with futures.ThreadPoolExecutor(1) as thread:
            step = thread.submit(lambda: pipeline.train_step(*mlp_batch(1)).step)
            daemon.start()
            assert step.result() == 2
        assert pipeline.train_step(*mlp_batch(2)).step == 3
    daemon.stop()
