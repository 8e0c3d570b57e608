"""The client of asyncio against the fake daemon."""

from __future__ import annotations

import asyncio
import inspect
import pathlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import numpy as np
import penstock
import pytest
from fake_daemon import FakeDaemon, status

from penstock.v1 import handle_pb2, pipeline_pb2, state_pb2

ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
LARGE = np.arange(1 << 20, dtype=np.float32).reshape(-1, 4)  # 4 MiB: uploaded

Body = Callable[[penstock.aio.Client, penstock.aio.Pipeline], Awaitable[Any]]


def run(daemon: FakeDaemon, body: Body) -> Any:
    async def main() -> Any:
        async with penstock.aio.Client(
            daemon.address, caller="tester", timeout=5.0, retry_for=5.0, traceparent=TRACEPARENT
        ) as client:
            return await body(client, await client.create_pipeline("demo", model="mlp", options={"layers": 4}))

    return asyncio.run(main())


@pytest.mark.parametrize(
    "name", ["Client", "Checkpoint", "Pipeline", "ValueHandle", "OutcomeHandle", "EvaluationHandle", "GraphHandle"]
)
def test_it_has_what_the_other_has(name: str) -> None:
    """Nothing is missing: every public method, with its arguments."""
    other = {"future"}  # with asyncio, the handle itself is awaited
    ours, theirs = getattr(penstock.aio, name), getattr(penstock, name)
    wanted = {key for key, value in inspect.getmembers(theirs) if not key.startswith("_") and key not in other}
    assert wanted <= {key for key in dir(ours)}, wanted - set(dir(ours))
    for key in wanted:
        method = getattr(theirs, key)
        if not callable(method) or key in ("take", "check", "inline"):
            continue
        parameters = inspect.signature(getattr(ours, key)).parameters
        if not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
            assert set(inspect.signature(method).parameters) == set(parameters), key


def test_a_creation_tells_how_far_it_is(daemon: FakeDaemon) -> None:
    async def body(client: penstock.aio.Client, _: penstock.aio.Pipeline) -> None:
        news = [pipeline_pb2.CreateProgress(phase="measuring", done=share) for share in (0.1, 0.3)]
        daemon.progress = list(news)
        seen: list[pipeline_pb2.CreateProgress] = []
        pipeline = await client.create_pipeline("second", planning_seconds=7.5, progress=seen.append)
        assert pipeline.name == "pipelines/second" and seen == news
        assert daemon.requests["CreatePipeline"][1].spec.planning_seconds == 7.5

        daemon.progress = news * 1000

        def fail(progress: pipeline_pb2.CreateProgress) -> None:
            raise KeyError(progress.phase)

        before = asyncio.all_tasks()
        with pytest.raises(KeyError, match="measuring"):
            await client.create_pipeline("third", progress=fail)
        assert asyncio.all_tasks() <= before, "nothing goes on"
        daemon.progress.clear()

    run(daemon, body)


def test_work(daemon: FakeDaemon) -> None:
    async def body(client: penstock.aio.Client, pipeline: penstock.aio.Pipeline) -> None:
        assert np.array_equal((await pipeline.infer(ROWS))["output"], 2 * ROWS)
        both = await asyncio.gather(pipeline.infer(ROWS), pipeline.infer(ROWS + 1))
        assert np.array_equal(both[1]["output"], 2 * ROWS + 2)
        outcome = await pipeline.train_step(ROWS, ROWS, learning_rate=0.5, loss="mean_squared_error")
        assert outcome.step == 1 and outcome.loss == 0.5
        assert (await pipeline.evaluate(ROWS, ROWS, metrics=["accuracy"])).step == 1
        assert (await penstock.aio.evaluate(pipeline, [(ROWS, ROWS)] * 3)).rows == 3 * len(ROWS)
        assert np.array_equal((await pipeline.gradients())["weight"], -daemon.state["weight"])
        outputs, graph = await pipeline.forward(ROWS)
        gradients = await outputs.fetch()
        given = await pipeline.backward(graph, gradients, input_gradients=True)
        assert given.input_gradients is not None
        assert np.array_equal((await given.input_gradients)["input"], -ROWS)
        await pipeline.forward_backward(ROWS, ROWS, total_rows=4)
        assert (await pipeline.optimizer_step()).step == 2
        assert (await client.server_info()).version == "0.1.0"

    run(daemon, body)
    assert daemon.metadata["Infer"]["penstock-caller"] == "tester"
    assert daemon.metadata["Infer"]["traceparent"] == TRACEPARENT
    assert daemon.requests["ForwardBackward"][0].total_rows == 4


def test_handles(daemon: FakeDaemon) -> None:
    async def body(client: penstock.aio.Client, pipeline: penstock.aio.Pipeline) -> None:
        daemon.settle_after = 2
        first = await pipeline.submit_infer(ROWS)
        second = await pipeline.submit_infer(first)  # an input that may be pending
        answers = await penstock.aio.gather(first, second)
        assert np.array_equal(answers[1]["output"], 4 * ROWS)
        assert await first.done() and await first.cancel() == "NOT_CANCELLABLE"
        async with second:
            assert await second.exception() is None
        with pytest.raises(penstock.PenstockError, match="HANDLE_RELEASED"):
            await second.refresh()
        await first.renew(5)
        shared = await client.handle(await first.share("bob"))
        await pipeline.release([first])
        assert np.array_equal((await shared.fetch())["output"], 2 * ROWS)
        assert await client.set_log_level("debug") == ("info", "debug")
        assert await client.set_log_level() == ("debug", "debug")
        with pytest.raises(ValueError, match="level: must be one of"):
            await client.set_log_level("loud")
        daemon.settle_after = 10**6
        pending = await pipeline.submit_infer(ROWS)
        with pytest.raises(TimeoutError):
            await pending.wait(0.05)
        daemon.settle_after = 0
        daemon.result_error = status(grpc.StatusCode.INTERNAL, "STAGE_FAILED", "broken")
        with pytest.raises(penstock.PenstockError, match="STAGE_FAILED"):
            await pipeline.infer(ROWS)

    run(daemon, body)


CALLS: dict[str, Callable[[penstock.aio.Pipeline, str], Awaitable[Any]]] = {
    "infer": lambda pipeline, name: getattr(pipeline, name)(ROWS),
    "evaluate": lambda pipeline, name: getattr(pipeline, name)(ROWS, ROWS),
    "train_step": lambda pipeline, name: getattr(pipeline, name)(ROWS, ROWS),
    "forward_backward": lambda pipeline, name: getattr(pipeline, name)(ROWS, ROWS),
    "optimizer_step": lambda pipeline, name: getattr(pipeline, name)(),
}


@pytest.mark.parametrize("method", [*CALLS, "backward"])
def test_a_submitted_call_gives_what_the_call_gives(daemon: FakeDaemon, method: str) -> None:
    async def call(pipeline: penstock.aio.Pipeline, name: str) -> Any:
        if method != "backward":
            return await CALLS[method](pipeline, name)
        outputs, graph = await pipeline.submit_forward(ROWS, input_gradients=True)
        assert not outputs.settled  # forward itself waits
        return await getattr(pipeline, name)(graph, await outputs.fetch(), input_gradients=True)

    async def body(client: penstock.aio.Client, pipeline: penstock.aio.Pipeline) -> None:
        handle = await call(pipeline, f"submit_{method}")
        assert isinstance(handle, penstock.aio.Handle) and not handle.settled
        result, waited = await handle, await call(pipeline, method)
        assert type(result) is type(waited)
        if method == "infer":
            assert np.array_equal(result["output"], waited["output"])
        else:
            assert waited.step - result.step == (method in ("train_step", "optimizer_step"))

    run(daemon, body)


def test_large_arrays_go_up_and_come_down_over_breaks(daemon: FakeDaemon) -> None:
    async def body(client: penstock.aio.Client, pipeline: penstock.aio.Pipeline) -> None:
        daemon.break_put_at, daemon.break_fetch_at = 1 << 20, 1 << 21
        assert np.array_equal((await pipeline.infer(LARGE))["output"], 2 * LARGE)
        assert daemon.break_put_at is None and daemon.break_fetch_at is None
        assert await asyncio.to_thread(daemon.wait_until_released)
        daemon.damage_chunks = True
        with pytest.raises(penstock.PenstockError, match="CHUNK_CHECKSUM"):
            await pipeline.infer(LARGE)

    run(daemon, body)


def test_retries_keep_the_request(daemon: FakeDaemon) -> None:
    async def body(client: penstock.aio.Client, pipeline: penstock.aio.Pipeline) -> None:
        daemon.fail("TrainStep", grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAVAILABLE)
        await pipeline.train_step(ROWS, ROWS)
        daemon.fail(
            "TrainStep", status(grpc.StatusCode.INVALID_ARGUMENT, "TENSOR_SIGNATURE", "no", field="x", value="y")
        )
        with pytest.raises(penstock.PenstockError) as error:
            await pipeline.train_step(ROWS, ROWS)
        assert error.value.values["field"] == "x"

    run(daemon, body)
    ids = [request.request_id for request in daemon.requests["TrainStep"]]
    assert ids[0] == ids[1] == ids[2] != ids[3]


def test_models_and_state(daemon: FakeDaemon, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "mine.pt2"
    path.write_bytes(bytes(1_000_000))

    async def body(client: penstock.aio.Client, pipeline: penstock.aio.Pipeline) -> None:
        daemon.break_upload_at = 400_000
        model = await client.models.upload(path)
        assert model.name == "models/mine.pt2" and daemon.uploaded["mine.pt2"] == path.read_bytes()
        daemon.refuse("UploadModel", status(grpc.StatusCode.ALREADY_EXISTS, "MODEL_EXISTS", "another"))
        with pytest.raises(penstock.PenstockError, match="MODEL_EXISTS"):
            await client.models.upload(path)
        assert len(await client.models.list()) == 2 and (await client.models.get("a.pt2")).name == "models/a.pt2"
        await client.models.delete("a.pt2")
        daemon.tied = {"head.weight": "weight"}
        own = await client.create_pipeline("own", model=model)
        state = await own.state_arrays()
        assert list(state) == ["weight", "empty", "head.weight"] and state.step == 7
        assert await own.read_names() == ["weight", "empty"]
        await own.load_state_dict({name: array + 1 for name, array in state.items()})
        assert daemon.state["weight"][0, 0] == 1
        await own.save_safetensors(tmp_path / "w", include_optimizer_state=True)
        daemon.state["weight"] = daemon.state["weight"] * 0
        await own.load_safetensors(tmp_path / "w")
        assert daemon.state["weight"][0, 0] == 1

    run(daemon, body)


def test_a_refusal_that_grpc_loses_is_asked_for_again(
    daemon: FakeDaemon, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.pt2"
    path.write_bytes(bytes(1000))
    written = grpc.aio._call._StreamRequestMixin._write  # type: ignore[attr-defined]
    lost: list[bool] = []

    async def lose_first(call: Any, message: Any) -> None:
        # What gRPC does where the server has ended the stream, but its status has not come yet.
        if not lost:
            lost.append(True)
            call._cython_call.set_internal_error("write failed")
            await call._raise_for_status()
        await written(call, message)

    async def body(client: penstock.aio.Client, pipeline: penstock.aio.Pipeline) -> None:
        monkeypatch.setattr(grpc.aio._call._StreamRequestMixin, "_write", lose_first)  # type: ignore[attr-defined]
        daemon.refuse("UploadModel", status(grpc.StatusCode.ALREADY_EXISTS, "MODEL_EXISTS", "another"))
        with pytest.raises(penstock.PenstockError, match="MODEL_EXISTS"):
            await client.models.upload(path)
        assert lost

    run(daemon, body)


def test_training_from_any_source(daemon: FakeDaemon) -> None:
    async def source() -> AsyncIterator[Any]:
        for _ in range(3):
            await asyncio.sleep(0)
            yield ROWS, ROWS

    async def body(client: penstock.aio.Client, pipeline: penstock.aio.Pipeline) -> None:
        batches = penstock.Batches(ROWS, ROWS, rows=1, epochs=2)
        assert [outcome.step async for outcome in pipeline.train(batches)] == [1, 2, 3, 4]
        assert [outcome.step async for outcome in pipeline.train(source(), ahead=0, steps=2)] == [5, 6]
        with pytest.raises(TypeError, match="after: no argument of this call, got 'x'"):
            await anext(pipeline.train(batches, after="x"))  # type: ignore[call-arg]
        assert await asyncio.to_thread(daemon.wait_until_released)

    run(daemon, body)


def test_training_saves_and_resumes(daemon: FakeDaemon) -> None:
    numbered = [(np.full((2, 4), number, np.float32), ROWS) for number in range(9)]

    async def body(client: penstock.aio.Client, pipeline: penstock.aio.Pipeline) -> None:
        daemon.listed = []
        made = [one.step async for one in pipeline.train(numbered, steps=5, save_every=2, keep=3, resume=True)]
        assert made == [1, 2, 3, 4, 5] and daemon.checkpoints == {"step-0", "step-2", "step-4"}
        assert [request.keep for request in daemon.requests["SaveCheckpoint"]] == [3, 3, 3]
        daemon.listed = [
            state_pb2.Checkpoint(name=f"{pipeline.name}/checkpoints/{name}", step=step, state="CHECKPOINT_STATE_COMPLETE")
            for name, step in (("a", 4), ("b", 2))
        ]
        daemon.trained.clear()
        assert [one.step async for one in pipeline.train(numbered, steps=8, resume=True)] == [5, 6, 7, 8]
        assert daemon.trained == [4, 5, 6, 7]
        daemon.fail("SaveCheckpoint", status(grpc.StatusCode.RESOURCE_EXHAUSTED, "STORAGE_FULL", "no room"))
        with pytest.warns(RuntimeWarning, match="step 9 could not be saved"):
            assert [one.step async for one in pipeline.train(numbered[:1], save_every=3)] == [9]
        (first, _), copied = await client.checkpoints(), await client.checkpoints("demo")
        assert first.step == 4 and len(copied) == 2
        assert (await first.copy_to(pipeline, "c")).name == f"{pipeline.name}/checkpoints/c"

    run(daemon, body)


def test_insight_and_checkpoints(daemon: FakeDaemon, tmp_path: pathlib.Path) -> None:
    async def body(client: penstock.aio.Client, pipeline: penstock.aio.Pipeline) -> None:
        assert (await pipeline.statistics()).step == 0
        assert len([one async for one in pipeline.watch_statistics(max_updates=3)]) == 3
        assert len((await pipeline.schedule()).actions) == 4
        trace = await pipeline.trace(tmp_path / "t.json")
        assert (tmp_path / "t.json").read_bytes() == trace == b'{"traceEvents":[]}' and trace.summary.lanes == 2
        await pipeline.train_step(ROWS, ROWS)
        assert (await pipeline.save_checkpoint()).name.endswith("step-1")
        assert (await pipeline.restore_checkpoint("step-1")).step == 1
        await pipeline.delete_checkpoint("step-1")
        assert daemon.requests["DeleteCheckpoint"][0].pipeline == pipeline.name
        with pytest.raises(ValueError, match="must be a checkpoint of"):
            await pipeline.restore_checkpoint("pipelines/other/checkpoints/step-1")
        assert len(await pipeline.list_checkpoints()) == 1
        spec = penstock.pipeline_spec(model="mlp")
        assert (await client.plan(spec)).complete and (await client.plan_pipeline("x", spec)) is not None
        assert [one.name for one in await client.list_pipelines()] == ["pipelines/a", "pipelines/b"]
        assert (await client.pipeline("demo")).state == "READY"
        assert await asyncio.to_thread(daemon.wait_until_released)
        async with await pipeline.put({"input": ROWS}) as held:
            assert len(await pipeline.handles()) == 1 and held.state == "READY"
        await client.delete_pipeline("demo")

    run(daemon, body)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


def test_who_stops_taking_outcomes_before_the_first_step_is_accepted_waits_for_none(daemon: FakeDaemon) -> None:
    """The steps behind it follow a call that is given up: they would ask for ever."""

    async def body(client: penstock.aio.Client, pipeline: penstock.aio.Pipeline) -> None:
        async def consume() -> None:
            async for _ in pipeline.train([(ROWS, ROWS)] * 9, ahead=4):
                pass

        daemon.accept_after = 10**6
        consumer = asyncio.create_task(consume())
        await until(lambda: len(daemon.requests["TrainStep"]) > 3)
        consumer.cancel()
        ended, _ = await asyncio.wait([consumer], timeout=5)
        with daemon._order:
            daemon.accept_after = 0
            daemon._order.notify_all()
        assert ended and consumer.cancelled()

    run(daemon, body)


def test_a_cancelled_call_can_be_made_again_with_its_upload(daemon: FakeDaemon) -> None:
    async def body(client: penstock.aio.Client, pipeline: penstock.aio.Pipeline) -> None:
        name = "00000000-0000-4000-8000-000000000001"
        daemon.silent.add("TrainStep")
        call = asyncio.create_task(pipeline.train_step(LARGE, LARGE, request_id=name))
        await until(lambda: len(daemon.requests["TrainStep"]) == 1)
        call.cancel()
        await asyncio.wait([call])
        daemon.silent.clear()
        released = await pipeline.infer(ROWS)  # its handle is given back after what the cancelled call gives back
        assert np.array_equal(released["output"], 2 * ROWS)
        await until(lambda: bool(daemon.requests["ReleaseHandles"]))
        outcome = await pipeline.train_step(LARGE, LARGE, request_id=name)
        assert outcome.step == 1 and len(daemon.requests["PutStart"]) == 2

    run(daemon, body)


def test_closing_the_client_ends_calls_by_an_error_and_not_by_a_cancellation(daemon: FakeDaemon) -> None:
    async def main() -> None:
        client = penstock.aio.Client(daemon.address, timeout=5.0)
        pipeline = await client.create_pipeline("demo", model="mlp")
        daemon.silent |= {"Infer", "WatchStatistics"}

        async def watch() -> None:
            async for _ in pipeline.watch_statistics():
                pass

        calls = [asyncio.create_task(pipeline.infer(ROWS)), asyncio.create_task(watch())]
        await until(lambda: len(daemon.requests["Infer"]) == len(daemon.requests["WatchStatistics"]) == 1)
        await client.close()
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(error, penstock.PenstockError) and error.code == grpc.StatusCode.CANCELLED
        before = asyncio.all_tasks()
        client._connection.release_later(["pipelines/demo/handles/1"])  # too late: nobody hears of it
        assert asyncio.all_tasks() <= before

    asyncio.run(main())


def test_a_forward_that_takes_too_long_tells_how_to_ask_again_and_a_failed_one_keeps_no_graph(
    daemon: FakeDaemon,
) -> None:
    async def body(client: penstock.aio.Client, pipeline: penstock.aio.Pipeline) -> None:
        daemon.settle_after = 10**6
        with pytest.raises(penstock.DeadlineError) as raised:
            await pipeline.forward(ROWS, timeout=0.2)
        assert raised.value.values["request_id"] == daemon.requests["Forward"][0].request_id
        assert len(daemon.handles) == 2  # for who asks again
        daemon.settle_after = 0
        await pipeline.release([penstock.aio.Handle(client._connection, handle_pb2.Result(handle=one))
                                for one in list(daemon.handles.values())])
        daemon.result_error = status(grpc.StatusCode.INTERNAL, "STAGE_FAILED", "broken")
        with pytest.raises(penstock.PenstockError, match="STAGE_FAILED"):
            await pipeline.forward(ROWS)
        assert await asyncio.to_thread(daemon.wait_until_released)

    run(daemon, body)
