"""Work, handles, state and errors against the fake daemon."""

from __future__ import annotations

import gzip
import io
import pathlib
import uuid
from typing import Any

import grpc
import numpy as np
import penstock
import pytest
from fake_daemon import FakeDaemon, status

from penstock import creation, results
from penstock.v1 import handle_pb2, insight_pb2, pipeline_pb2, state_pb2, work_pb2

ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_a_specification_carries_every_argument(client: penstock.Client, daemon: FakeDaemon) -> None:
    client.create_pipeline(
        "demo",
        model="gpt",
        options={"blocks": 2, "dropout": 0.1, "tied": True, "kind": "x", "width": np.int64(32)},
        balance=[1, 2],
        ranks=[0, 1],
        devices=["cpu:0"],
        schedule="gpipe",
        micro_batches=3,
        checkpoint="never",
        optimizer="sgd",
        optimizer_options={"momentum": 0.9},
        clip_norm=1.5,
        learning_rate_schedule="warmup_cosine",
        warmup_steps=10,
        total_steps=100,
        final_ratio=0.1,
        loss="cross_entropy",
        loss_options={"ignore_index": -1},
        seed=2**63,
        bubble_filling=False,
        inference_share=0.05,
    )
    request = daemon.requests["CreatePipeline"][0]
    spec = request.spec
    assert str(uuid.UUID(request.request_id)) == request.request_id
    assert spec.model.name == "gpt" and spec.model.options["blocks"].int_value == 2
    assert spec.model.options["dropout"].double_value == 0.1
    assert spec.model.options["tied"].bool_value and spec.model.options["kind"].string_value == "x"
    assert spec.model.options["width"].int_value == 32
    assert list(spec.cut.balance) == [1, 2] and list(spec.cut.ranks) == [0, 1] and list(spec.devices) == ["cpu:0"]
    assert spec.schedule.kind == "gpipe" and spec.schedule.micro_batches == 3
    assert spec.schedule.checkpoint == pipeline_pb2.CHECKPOINT_MODE_NEVER
    assert spec.optimizer.name == "sgd" and spec.optimizer.options["momentum"].double_value == 0.9
    assert spec.optimizer.clip_norm == 1.5
    schedule = spec.optimizer.learning_rate_schedule
    assert (schedule.name, schedule.warmup_steps, schedule.total_steps, schedule.final_ratio) == (
        "warmup_cosine",
        10,
        100,
        0.1,
    )
    assert spec.loss.name == "cross_entropy" and spec.loss.options["ignore_index"].int_value == -1
    assert spec.seed == 2**63
    assert spec.bubble_filling.mode == pipeline_pb2.BUBBLE_FILLING_OFF
    assert spec.bubble_filling.inference_share == 0.05
    assert not spec.bubble_filling.HasField("max_wait_seconds")


def test_a_cut_that_is_given_says_how_many_stages_there_are() -> None:
    assert penstock.pipeline_spec(stages=3).cut.stages == 3
    assert penstock.pipeline_spec(stages=3, balance=[1, 2]).cut.stages == 0
    assert penstock.pipeline_spec(stages=3, starts=["head"]).cut.stages == 0


def test_what_is_not_given_is_left_to_the_planner(client: penstock.Client, daemon: FakeDaemon) -> None:
    client.create_pipeline("demo", model="gpt")
    schedule = daemon.requests["CreatePipeline"][0].spec.schedule
    assert schedule == pipeline_pb2.ScheduleSpec()
    client.create_pipeline(
        "all",
        schedule="lag",
        micro_batches=8,
        checkpoint="skip_adjacent",
        chunks=1,
        lag=5,
        live_limit=7,
        mini_batch_rows=64,
    )
    schedule = daemon.requests["CreatePipeline"][1].spec.schedule
    assert (schedule.kind, schedule.chunks, schedule.lag, schedule.live_limit) == ("lag", 1, 5, 7)
    assert schedule.checkpoint == pipeline_pb2.CHECKPOINT_MODE_SKIP_ADJACENT and schedule.mini_batch_rows == 64
    client.create_pipeline("own", actions="0F0,0B0\n")
    assert daemon.requests["CreatePipeline"][2].spec.schedule == pipeline_pb2.ScheduleSpec(actions="0F0,0B0\n")


def _news(*shares: tuple[str, float]) -> list[pipeline_pb2.CreateProgress]:
    return [pipeline_pb2.CreateProgress(phase=phase, done=done, elapsed_seconds=40 * done) for phase, done in shares]


def test_a_creation_tells_how_far_it_is(client: penstock.Client, daemon: FakeDaemon) -> None:
    news = _news(("measuring", 0.1), ("confirming", 0.5))
    daemon.progress = list(news)
    seen: list[pipeline_pb2.CreateProgress] = []
    pipeline = client.create_pipeline("demo", model="mlp", planning_seconds=7.5, progress=seen.append)
    assert pipeline.name == "pipelines/demo" and seen == news
    assert daemon.requests["CreatePipeline"][0].spec.planning_seconds == 7.5


def test_an_error_of_who_looks_ends_the_call(client: penstock.Client, daemon: FakeDaemon) -> None:
    daemon.progress = _news(("measuring", 0.1)) + _news(("measuring", 0.2)) * 1000

    def fail(progress: pipeline_pb2.CreateProgress) -> None:
        raise KeyError(progress.phase)

    with pytest.raises(KeyError, match="measuring"):
        client.create_pipeline("demo", model="mlp", progress=fail)
    daemon.progress.clear()


def test_a_refused_creation_is_an_error_whoever_looks(client: penstock.Client, daemon: FakeDaemon) -> None:
    daemon.fail("CreatePipeline", status(grpc.StatusCode.INVALID_ARGUMENT, "SPEC_INVALID", "no"))
    with pytest.raises(penstock.PenstockError, match="SPEC_INVALID"):
        client.create_pipeline("demo", model="mlp", progress=lambda _: None)


def test_a_callers_time_follows_the_planners(client: penstock.Client, daemon: FakeDaemon) -> None:
    client.create_pipeline("demo", model="mlp")
    client.create_pipeline("demo", model="mlp", planning_seconds=500.0)
    client.create_pipeline("demo", model="mlp", planning_seconds=500.0, timeout=50.0)
    usual, longer, given = daemon.time_left["CreatePipeline"]
    assert 60 < usual < 130 < 500 < longer and given < 60


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_is_drawn_as_a_bar(terminal: bool) -> None:
    stream = _Terminal() if terminal else io.StringIO()
    with creation.shown("demo", True, stream) as show:
        assert show is not None
        for one in _news(("measuring", 0.1), ("measuring", 0.2), ("confirming", 0.5)):
            show(one)
    lines = [
        "creating demo: measuring  [==>                 ]  10%, 4 s",
        "creating demo: measuring  [====>               ]  20%, 8 s",
        "creating demo: confirming [==========>         ]  50%, 20 s",
    ]
    if terminal:
        assert stream.getvalue() == "".join(f"\r{line}\x1b[K" for line in lines) + "\r\x1b[K"
    else:
        assert stream.getvalue() == f"{lines[0]}\n{lines[2]}\n", "a line for each phase"
    with creation.shown("demo", False) as nobody:
        assert nobody is None


def test_plan_sends_its_limits(client: penstock.Client, daemon: FakeDaemon) -> None:
    spec = penstock.pipeline_spec(model="gpt")
    found = client.plan(spec, kinds=["1f1b", "zb-h1"], max_chunks=2, micro_batches=[4, 8], mini_batch_rows=16)
    request = daemon.requests["PlanPipeline"][0]
    assert request.spec == spec
    assert list(request.limits.kinds) == ["1f1b", "zb-h1"] and list(request.limits.micro_batches) == [4, 8]
    assert request.limits.max_chunks == 2 and request.limits.mini_batch_rows == 16
    assert found.complete and found.candidates[0].schedule.kind == "zb-h1"
    spec.schedule.CopyFrom(found.candidates[0].schedule)
    spec.cut.balance[:] = found.candidates[0].balance
    assert spec.schedule.micro_batches == 8 and list(spec.cut.balance) == [2, 1]


def test_explicit_layers_replace_the_name(client: penstock.Client, daemon: FakeDaemon) -> None:
    client.create_pipeline("demo", model=[penstock.Layer("linear", "first", {"width": 4})])
    model = daemon.requests["CreatePipeline"][0].spec.model
    assert model.name == "" and model.layers[0].kind == "linear" and model.layers[0].name == "first"


def test_cut_ties_and_precision_are_carried(client: penstock.Client, daemon: FakeDaemon) -> None:
    inner = penstock.Layer("sequential", "inner", layers=[penstock.Layer("relu"), penstock.Layer("linear", "deep")])
    client.create_pipeline(
        "demo",
        model=[
            penstock.Layer("linear", "first", {"width": 4}, device="cpu:0"),
            penstock.Layer(
                "sequential", "outer", layers=[inner], isolate=[penstock.Isolate("ns", ["a"])], device="cpu:1"
            ),
        ],
        cut_cost="size",
        cut_method="block_partition",
        parameter_scale=4.5,
        ties=[("first.weight", "outer.inner.deep.weight")],
        deferred_batch_norm=True,
        tuple_as_one_argument=True,
        dtype="bf16",
        autocast="fp16",
    )
    client.create_pipeline("demo")
    spec, plain = (request.spec for request in daemon.requests["CreatePipeline"])
    first, outer = spec.model.layers
    assert (first.device, outer.device) == ("cpu:0", "cpu:1")
    assert outer.isolate[0].skip_namespace == "ns" and list(outer.isolate[0].only) == ["a"]
    assert [layer.kind for layer in outer.layers[0].layers] == ["relu", "linear"]
    assert spec.cut.cost == pipeline_pb2.CUT_COST_SIZE and spec.cut.method == pipeline_pb2.CUT_METHOD_BLOCK_PARTITION
    assert spec.cut.parameter_scale == 4.5 and not plain.cut.HasField("parameter_scale")
    assert list(spec.model.ties[0].parameters) == ["first.weight", "outer.inner.deep.weight"]
    assert spec.model.deferred_batch_norm and spec.model.tuple_as_one_argument
    assert (spec.model.dtype, spec.model.autocast) == ("bf16", "fp16")
    assert not plain.model.deferred_batch_norm and not plain.model.ties and not plain.model.dtype


def test_whole_tensors_and_plain_values(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    handle = pipeline.put({"a": ROWS})
    large = np.random.default_rng(0).random((300_000, 4), np.float32)
    values = {
        "input": ROWS,
        "whole": penstock.Whole(ROWS),
        "kept": penstock.Whole((handle, "a")),
        "large": penstock.Whole(large),
        "flag": penstock.Plain(True),
        "count": penstock.Plain(3),
        "rate": penstock.Plain(0.5),
        "word": "yes",
        "nothing": None,
        "number": 3,
    }
    pipeline.infer(values)
    sent = {entry.name: entry for entry in daemon.requests["Infer"][0].inputs}
    assert list(sent) == list(values)
    assert [name for name, entry in sent.items() if entry.whole] == ["whole", "kept", "large"]
    assert sent["kept"].handle.handle == handle.name and sent["large"].HasField("handle")
    plain = {name: entry.plain.WhichOneof("value") for name, entry in sent.items() if entry.HasField("plain")}
    assert plain == {
        "flag": "bool_value",
        "count": "int_value",
        "rate": "double_value",
        "word": "string_value",
        "nothing": None,
    }
    assert sent["flag"].plain.bool_value and sent["count"].plain.int_value == 3
    assert sent["rate"].plain.double_value == 0.5 and sent["word"].plain.string_value == "yes"
    with pytest.raises(TypeError, match="a plain value is"):
        pipeline.infer({"input": penstock.Plain([1])})  # type: ignore[arg-type]


def test_create_waits_until_ready(client: penstock.Client, daemon: FakeDaemon) -> None:
    assert client.create_pipeline("demo").state == "READY"
    assert daemon.requests["GetPipeline"]


def test_the_caller_is_named(client: penstock.Client, daemon: FakeDaemon) -> None:
    client.server_info()
    assert daemon.metadata["GetServerInfo"]["penstock-caller"] == "tester"


TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_trace_is_passed_on(daemon: FakeDaemon) -> None:
    asked = iter([TRACEPARENT, None])
    with penstock.Client(daemon.address, traceparent=lambda: next(asked)) as client:
        client.server_info()
        assert daemon.metadata["GetServerInfo"]["traceparent"] == TRACEPARENT
        client.server_info()
        assert "traceparent" not in daemon.metadata["GetServerInfo"]


@pytest.mark.parametrize(
    ("variable", "sent"),
    [(TRACEPARENT, TRACEPARENT), ("", None), ("b\u00e4d", None)],
    ids=["good", "empty", "not to be sent"],
)
def test_a_trace_is_inherited(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, variable: str, sent: str | None
) -> None:
    monkeypatch.setenv("TRACEPARENT", variable)
    with penstock.Client(daemon.address) as client:
        client.server_info()
    assert daemon.metadata["GetServerInfo"].get("traceparent") == sent


def test_lists_follow_their_pages(client: penstock.Client) -> None:
    assert [pipeline.name for pipeline in client.list_pipelines()] == ["pipelines/a", "pipelines/b"]


def test_infer_answers_arrays_and_leaves_no_handle(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    assert np.array_equal(pipeline.infer(ROWS)["output"], 2 * ROWS)
    assert daemon.wait_until_released() and not daemon.requests["FetchHandle"]


def test_infer_by_name_equals_infer_of_the_only_input(pipeline: penstock.Pipeline) -> None:
    assert np.array_equal(pipeline.infer({"input": ROWS})["output"], pipeline.infer(ROWS)["output"])


def test_a_large_result_is_fetched_in_chunks(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    rows = np.random.default_rng(0).random((100_000, 4), np.float32)
    assert np.array_equal(pipeline.infer(rows)["output"], 2 * rows)
    assert daemon.requests["FetchHandle"]


def test_a_broken_fetch_goes_on_where_it_was(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    rows = np.random.default_rng(0).random((100_000, 4), np.float32)
    daemon.break_fetch_at = 128 << 10
    assert np.array_equal(pipeline.infer(rows)["output"], 2 * rows)
    assert [request.offset for request in daemon.requests["FetchHandle"]] == [0, 128 << 10]


def test_damaged_chunks_are_told(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.damage_chunks = True
    with pytest.raises(penstock.PenstockError) as raised:
        pipeline.infer(np.zeros((100_000, 4), np.float32))
    assert raised.value.code == grpc.StatusCode.DATA_LOSS and raised.value.reason == "CHUNK_CHECKSUM"


def test_large_inputs_are_uploaded_within_the_credit(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    rows = np.random.default_rng(0).random((300_000, 4), np.float32)  # 4.8 MB: many times the credit
    assert np.array_equal(pipeline.infer(rows)["output"], 2 * rows)
    assert daemon.requests["Infer"][0].inputs[0].HasField("handle")
    assert daemon.wait_until_released(), "the upload was not released"


def test_a_broken_upload_resumes_under_the_same_request_id(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    rows = np.random.default_rng(0).random((100_000, 4), np.float32)
    daemon.break_put_at = 512 << 10
    with pipeline.put({"a": rows, "empty": np.zeros((0, 4), np.float32)}) as handle:
        fetched = handle.fetch()
    assert np.array_equal(fetched["a"], rows) and fetched["empty"].shape == (0, 4)
    starts = daemon.requests["PutStart"]
    assert len(starts) == 2 and starts[0].request_id == starts[1].request_id


def test_handles_are_inputs(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    handle = pipeline.put({"a": ROWS, "b": ROWS + 1})
    assert np.array_equal(pipeline.infer((handle, "b"))["output"], 2 * (ROWS + 1))
    first = pipeline.submit_infer(ROWS)
    assert np.array_equal(pipeline.infer(first)["output"], 4 * ROWS)


def test_train_step_answers_its_outcome(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    outcome = pipeline.train_step(
        ROWS, ROWS, loss="mean_squared_error", learning_rate=0.5, micro_batches=2, expected_state="token"
    )
    assert (outcome.step, outcome.loss, outcome.applied, outcome.gradient_norm) == (1, 0.5, True, None)
    request = daemon.requests["TrainStep"][0]
    assert request.target.name == "target" and request.loss.name == "mean_squared_error"
    assert request.learning_rate == 0.5 and request.micro_batches == 2 and request.expected_state == "token"
    assert not request.HasField("clip_norm")
    assert daemon.wait_until_released(), "the outcome was not released"


def test_evaluate_answers_what_was_found(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.step = 5
    found = pipeline.evaluate(
        ROWS, ROWS, metrics=["accuracy"], loss="cross_entropy", loss_options={"ignore_index": 0}, micro_batches=3, priority=2
    )
    assert (found.step, found.state_token, found.counted, found.rows) == (5, "token-5", ROWS.size, len(ROWS))
    assert found.loss == pytest.approx(ROWS.mean()) and found.metrics == {"accuracy": pytest.approx(ROWS.mean())}
    assert found.perplexity == pytest.approx(np.exp(ROWS.mean()))
    (request,) = daemon.requests["Evaluate"]
    assert list(request.metrics) == ["accuracy"] and request.priority == 2 and request.micro_batches == 3
    assert request.loss.name == "cross_entropy" and request.target.name == "target"
    assert daemon.wait_until_released(), "the outcome was not released"


def test_an_evaluation_takes_labels_for_the_target(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    pipeline.evaluate({"input": ROWS, "labels": ROWS}, loss="mean_squared_error")
    (request,) = daemon.requests["Evaluate"]
    assert len(request.inputs) == 1 and request.HasField("target")


def test_an_evaluation_of_many_batches_weighs_what_counts(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    batches = [(np.full((rows, 4), value, np.float32), np.full((rows, 4), -value, np.float32))
               for rows, value in ((2, 1.0), (6, 5.0), (1, 0.0))]  # fmt: skip
    found = penstock.evaluate(pipeline, batches, metrics=["accuracy"], ahead=1)
    assert found.loss == pytest.approx((2 * 1.0 + 6 * 5.0) / 9)
    assert found.metrics == {"accuracy": pytest.approx(-(2 * 1.0 + 6 * 5.0) / 9)}
    assert (found.rows, found.counted, found.micro_batches, found.seconds) == (9, 36, 6, 1.5)
    assert daemon.wait_until_released()
    with pytest.raises(ValueError, match="no mini-batch"):
        penstock.evaluate(pipeline, [])
    with pytest.raises(TypeError, match="request_id"):
        penstock.evaluate(pipeline, batches, request_id="1")


def test_an_evaluation_that_fails_leaves_nothing(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    batches = [(ROWS, ROWS), (ROWS, ROWS), (ROWS, np.full_like(ROWS, np.nan)), (ROWS, ROWS)]
    with pytest.raises(penstock.PenstockError, match="TENSOR_SIGNATURE"):
        penstock.evaluate(pipeline, batches, ahead=4)
    assert len(daemon.requests["Evaluate"]) == 3
    assert daemon.wait_until_released()


def test_outputs_of_a_step_come_with_the_outcome(pipeline: penstock.Pipeline) -> None:
    outcome = pipeline.train_step(ROWS, ROWS, outputs=["output"])
    assert outcome.outputs is not None
    assert np.array_equal(outcome.outputs.fetch()["output"], ROWS)


def test_a_step_of_several_contributions(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    pipeline.forward_backward(ROWS, ROWS, total_rows=4)
    pipeline.forward_backward(ROWS, ROWS, total_elements=16)
    assert pipeline.optimizer_step(clip_norm=0.0).step == 1
    assert pipeline.optimizer_step(discard=True)
    first, second = daemon.requests["ForwardBackward"]
    assert first.total_rows == 4 and not first.HasField("total_elements")
    assert second.total_elements == 16 and not second.HasField("total_rows")
    step, discard = daemon.requests["OptimizerStep"]
    assert step.HasField("clip_norm") and step.action == work_pb2.OptimizerStepRequest.ACTION_APPLY
    assert discard.action == work_pb2.OptimizerStepRequest.ACTION_DISCARD


def test_a_loss_of_the_client(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    forward = pipeline.forward(ROWS)
    outputs = forward.outputs.fetch()["output"]
    pipeline.backward(forward.graph, outputs - ROWS, retain_graph=True)
    request = daemon.requests["Backward"][0]
    assert request.graph == forward.graph.name and request.gradients[0].name == "output" and request.retain_graph


def test_gradients_of_inputs_come_with_the_outcome(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    forward = pipeline.forward(ROWS, input_gradients=True)
    outcome = pipeline.backward(forward.graph, ROWS, input_gradients=True)
    assert outcome.input_gradients is not None
    assert np.array_equal(outcome.input_gradients.fetch()["input"], -ROWS)
    assert pipeline.backward(forward.graph, ROWS).input_gradients is None
    assert [request.input_gradients for request in daemon.requests["Backward"]] == [True, False]
    assert daemon.requests["Forward"][0].input_gradients


def test_a_pending_handle_is_waited_for(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.settle_after = 3
    handle = pipeline.submit_train_step(ROWS, ROWS)
    assert handle.state == "PENDING" and not handle.done()
    assert handle.result(timeout=10).step == 1
    assert handle.done() and handle.state == "READY"


def test_waiting_ends_at_its_timeout(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.settle_after = 10**6
    handle = pipeline.submit_infer(ROWS)
    with pytest.raises(TimeoutError):
        handle.result(timeout=0.02)


def test_failed_work_raises_its_own_error(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.result_error = status(
        grpc.StatusCode.RESOURCE_EXHAUSTED, "DEVICE_MEMORY", "no memory", stage="1", micro_batch="2", action="F2"
    )
    with pytest.raises(penstock.PenstockError) as raised:
        pipeline.infer(ROWS)
    assert raised.value.reason == "DEVICE_MEMORY"
    assert raised.value.values == {"stage": "1", "micro_batch": "2", "action": "F2"}


def test_a_refusal_names_reason_field_and_value(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.fail(
        "Infer",
        status(
            grpc.StatusCode.INVALID_ARGUMENT, "TENSOR_SIGNATURE", "wrong width", field="inputs[0].shape", value="[2, 5]"
        ),
    )
    with pytest.raises(penstock.PenstockError, match="INVALID_ARGUMENT / TENSOR_SIGNATURE: wrong width") as raised:
        pipeline.infer(ROWS)
    assert raised.value.values == {"field": "inputs[0].shape", "value": "[2, 5]"}
    assert raised.value.violations == [("inputs[0].shape", "wrong width")]
    assert len(daemon.requests["Infer"]) == 1, "a refusal was repeated"


def test_unavailable_is_repeated_under_the_same_request_id(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.fail(
        "TrainStep",
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        status(grpc.StatusCode.UNAVAILABLE, "DRAINING", "going down", retry_delay=0.01),
    )
    assert pipeline.train_step(ROWS, ROWS).step == 1
    ids = [request.request_id for request in daemon.requests["TrainStep"]]
    assert len(ids) == 4 and len(set(ids)) == 1
    pipeline.train_step(ROWS, ROWS)
    assert daemon.requests["TrainStep"][-1].request_id not in ids


def test_cancelled_work_is_not_repeated(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.fail("Infer", status(grpc.StatusCode.CANCELLED, "WORK_CANCELLED", "somebody cancelled it"))
    with pytest.raises(penstock.PenstockError, match="WORK_CANCELLED"):
        pipeline.infer(ROWS)
    assert len(daemon.requests["Infer"]) == 1


def test_unavailable_is_told_when_patience_ends(daemon: FakeDaemon) -> None:
    with penstock.Client(daemon.address, retry_for=0.0) as impatient:
        daemon.fail("GetServerInfo", status(grpc.StatusCode.UNAVAILABLE, "STARTING", "not yet"))
        with pytest.raises(penstock.PenstockError) as raised:
            impatient.server_info()
        assert raised.value.reason == "STARTING"
        assert impatient.server_info().version == "0.1.0"


def test_the_life_of_a_handle(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    with pipeline.submit_infer(ROWS) as handle:
        assert len(pipeline.handles()) == 1
        handle.renew(30)
        assert daemon.requests["RenewHandles"][0].lease.seconds == 30
        assert handle.cancel() == "NOT_CANCELLABLE"
    assert daemon.wait_until_released()
    handle.release()
    for gone in (handle.wait, handle.renew, handle.refresh):
        handle.message.state = 1
        with pytest.raises(penstock.PenstockError) as raised:
            gone()
        assert raised.value.reason == "HANDLE_RELEASED"


@pytest.mark.parametrize("of_a_loss", [{"loss_output": "logits"}, {"loss_options": {"ignore_index": -1}}])
def test_what_belongs_to_a_loss_needs_its_name(client: penstock.Client, of_a_loss: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="belong to a loss: name it"):
        client.create_pipeline("demo", model="gpt", **of_a_loss)


def test_what_is_ready_failed_or_cancelled_has_settled() -> None:
    def settled(state: int) -> bool:
        return results.Remote(handle_pb2.Result(handle=handle_pb2.Handle(state=state))).settled

    names = [name for name, state in handle_pb2.HandleState.items() if settled(state)]
    assert names == ["HANDLE_STATE_READY", "HANDLE_STATE_FAILED", "HANDLE_STATE_CANCELLED"]


def test_a_wait_names_a_thousand_handles_at_most() -> None:
    pending = [results.Remote(handle_pb2.Result(handle=handle_pb2.Handle(name=str(i)))) for i in range(1001)]
    assert list(results.wait_request(pending, 1.0).names) == [str(i) for i in range(1000)]


def test_checkpoints(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    assert pipeline.save_checkpoint("mine").name == "pipelines/demo/checkpoints/mine"
    pipeline.restore_checkpoint("mine", force=True)
    pipeline.restore_checkpoint("pipelines/demo/checkpoints/mine")
    names = [request.name for request in daemon.requests["RestoreCheckpoint"]]
    assert names == ["pipelines/demo/checkpoints/mine"] * 2
    assert daemon.requests["RestoreCheckpoint"][0].force
    assert [checkpoint.step for checkpoint in pipeline.list_checkpoints()] == [1]
    pipeline.delete_checkpoint("mine")
    assert daemon.requests["DeleteCheckpoint"][0].name == "pipelines/demo/checkpoints/mine"


def test_saves_that_replace_and_rotate(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    pipeline.save_checkpoint("mine")
    pipeline.save_checkpoint("mine", replace=True, keep=3)
    assert [(one.replace, one.keep) for one in daemon.requests["SaveCheckpoint"]] == [(False, 0), (True, 3)]


def test_checkpoints_of_all_pipelines(
    client: penstock.Client, pipeline: penstock.Pipeline, daemon: FakeDaemon
) -> None:
    daemon.listed = [
        state_pb2.Checkpoint(name=f"pipelines/{name}/checkpoints/c", step=1, state="CHECKPOINT_STATE_COMPLETE")
        for name in ("a", "b")
    ]
    first, second = client.checkpoints()
    assert (first.pipeline, second.pipeline, first.step, first.state) == ("a", "b", 1, "COMPLETE")
    assert repr(first) == "Checkpoint('pipelines/a/checkpoints/c', COMPLETE, step 1)"
    client.checkpoints("a")
    client.checkpoints("pipelines/a")
    parents = [request.parent for request in daemon.requests["ListCheckpoints"]]
    assert parents == ["pipelines/-"] * 2 + ["pipelines/a"] * 4
    assert first.copy_to(pipeline).name == "pipelines/demo/checkpoints/c"
    assert first.copy_to(pipeline, "mine", timeout=9).name == "pipelines/demo/checkpoints/mine"
    assert daemon.requests["CopyCheckpoint"][0].source == first.name
    second.delete()
    assert daemon.requests["DeleteCheckpoint"][0].name == second.name


def test_a_pipeline_from_a_checkpoint_says_only_what_is_given(client: penstock.Client, daemon: FakeDaemon) -> None:
    name = "pipelines/a/checkpoints/c"
    client.create_pipeline("demo", from_checkpoint=name)
    client.create_pipeline("demo", from_checkpoint=name, optimizer_options={"learning_rate": 0.5}, stages=2)
    client.create_pipeline("demo", exist_ok=True)
    plain, changed, other = daemon.requests["CreatePipeline"]
    assert plain.from_checkpoint == name and not plain.exist_ok
    assert all(value.ByteSize() == 0 for _, value in plain.spec.ListFields())
    assert {field.name for field, value in changed.spec.ListFields() if value.ByteSize()} == {"cut", "optimizer"}
    assert other.exist_ok and other.spec.model.name == "gpt" and not other.from_checkpoint


def test_a_checkpoint_of_another_pipeline_is_refused_here(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    foreign = "pipelines/other/checkpoints/mine"
    for call in (pipeline.restore_checkpoint, pipeline.delete_checkpoint):
        with pytest.raises(ValueError, match=f"must be a checkpoint of pipelines/demo, got {foreign}"):
            call(foreign)
    assert not daemon.requests["RestoreCheckpoint"] and not daemon.requests["DeleteCheckpoint"]


def test_parameters(pipeline: penstock.Pipeline) -> None:
    parameters = pipeline.read_parameters()
    assert parameters.step == 7 and list(parameters) == ["weight", "empty"]
    assert np.array_equal(parameters["weight"], np.arange(6, dtype=np.float32).reshape(2, 3))
    assert parameters["empty"].shape == (0, 3)


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


def test_an_optimizer_is_described_and_updated(client: penstock.Client, daemon: FakeDaemon) -> None:
    frozen = penstock.ParameterGroup(["block0.*"], frozen=True)
    pipeline = client.create_pipeline(
        "tuned",
        optimizer="rmsprop",
        optimizer_options={"alpha": 0.9, "learning_rate": 0.1},
        clip_norm=1.5,
        learning_rate_schedule="step",
        step_size=30,
        gamma=0.5,
        warmup_steps=3,
        groups=[frozen, penstock.ParameterGroup("*.bias", {"weight_decay": 0.0})],
        loss="cross_entropy",
        loss_options={"label_smoothing": 0.1},
        class_weights=np.array([1, 2.5]),
    )
    spec = daemon.requests["CreatePipeline"][0].spec
    schedule = spec.optimizer.learning_rate_schedule
    assert (schedule.name, schedule.step_size, schedule.gamma, schedule.warmup_steps) == ("step", 30, 0.5, 3)
    assert not schedule.HasField("power")
    assert [(list(group.patterns), group.frozen) for group in spec.optimizer.groups] == [
        (["block0.*"], True),
        (["*.bias"], False),
    ]
    assert spec.optimizer.groups[1].options["weight_decay"].double_value == 0
    assert list(spec.loss.class_weights) == [1, 2.5]

    answer = pipeline.update_optimizer(
        optimizer_options={"learning_rate": 0.01}, learning_rate_schedule="linear", total_steps=9, expected_state="token"
    )
    request = daemon.requests["UpdateOptimizer"][0]
    assert request.name == pipeline.name and request.expected_state == "token" and uuid.UUID(request.request_id)
    sent = request.optimizer
    assert sent.name == "rmsprop" and sent.clip_norm == 1.5 and len(sent.groups) == 2, "what is not named stays"
    assert sent.options["alpha"].double_value == 0.9 and sent.options["learning_rate"].double_value == 0.01
    assert sent.learning_rate_schedule == pipeline_pb2.LearningRateSpec(name="linear", total_steps=9)
    assert answer.spec.optimizer == sent and pipeline.message.spec.optimizer == sent
    pipeline.update_optimizer(groups=[], clip_norm=0)
    assert not daemon.requests["UpdateOptimizer"][1].optimizer.groups
    with pytest.raises(ValueError, match="total_steps.*name it"):
        pipeline.update_optimizer(total_steps=9)
    with pytest.raises(TypeError, match="momentum"):
        pipeline.update_optimizer(momentum=0.9)  # type: ignore[call-arg]


def test_weights_go_with_the_target(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    weights = np.array([0.5, 2], np.float32)
    pipeline.train_step(ROWS, ROWS, weights=weights, loss="cross_entropy", class_weights=[1, 2])
    pipeline.forward_backward(ROWS, ROWS, weights=weights, total_elements=2.5)
    for method in ("TrainStep", "ForwardBackward"):
        request = daemon.requests[method][0]
        assert [one.name for one in request.inputs] == ["input"] and request.target.name == "target"
        assert np.frombuffer(request.weights.tensor.data, np.float32).tolist() == [0.5, 2]
    assert daemon.requests["ForwardBackward"][0].total_elements == 2.5
    assert list(daemon.requests["TrainStep"][0].loss.class_weights) == [1, 2]
    with pytest.raises(ValueError, match="name it"):
        pipeline.train_step(ROWS, ROWS, class_weights=[1, 2])


def test_a_target_among_the_inputs_is_refused(pipeline: penstock.Pipeline) -> None:
    with pytest.raises(ValueError, match="twice"):
        pipeline.train_step({"input": ROWS, "target": ROWS}, ROWS)


def test_an_unknown_checkpoint_mode_is_refused_here(client: penstock.Client) -> None:
    with pytest.raises(ValueError, match="sometimes"):
        client.create_pipeline("demo", checkpoint="sometimes")
    with pytest.raises(ValueError, match="cut_cost is one of time, size, not 'weight'"):
        client.create_pipeline("demo", cut_cost="weight")
    with pytest.raises(ValueError, match="cut_method"):
        client.create_pipeline("demo", cut_method="best")


@pytest.mark.parametrize("method", ["infer", "submit_infer", "train_step", "submit_train_step"])
def test_an_argument_that_a_call_has_not_is_refused_before_anything_is_sent(
    pipeline: penstock.Pipeline, daemon: FakeDaemon, method: str
) -> None:
    with pytest.raises(TypeError, match="wait: no argument of this call, got False"):
        getattr(pipeline, method)(np.zeros((1 << 18, 4), np.float32), wait=False)  # 4 MiB: uploaded
    assert not {"PutStart", "Infer", "TrainStep"} & set(daemon.requests)
