"""What a pipeline is asked for: layers, cut, schedule, optimizer, loss, and what the planner may choose."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import penstock
import pytest
from fake_daemon import FakeDaemon
from penstock.v1 import pipeline_pb2


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
        batch_rows=32,
        batch_delay=0.5,
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
    assert (spec.dynamic_batching.max_rows, spec.dynamic_batching.max_delay_seconds) == (32, 0.5)
    assert not spec.dynamic_batching.HasField("micro_batch_rows")


def test_batching_is_on_where_something_asks_for_it() -> None:
    assert not penstock.pipeline_spec().HasField("dynamic_batching")
    assert penstock.pipeline_spec(dynamic_batching=True).HasField("dynamic_batching")
    assert not penstock.pipeline_spec(dynamic_batching=False).HasField("dynamic_batching")
    for bound in ("batch_rows", "batch_micro_batch_rows", "batch_delay"):
        assert penstock.pipeline_spec(**{bound: 2}).HasField("dynamic_batching")
        with pytest.raises(ValueError, match=f"^{bound}: belongs to dynamic_batching, which is False, got 2"):
            penstock.pipeline_spec(dynamic_batching=False, **{bound: 2})


def test_bounds_of_batches_are_numbers() -> None:
    batching = penstock.pipeline_spec(
        batch_rows=np.int64(8), batch_micro_batch_rows=np.int32(2), batch_delay=np.float32(0.5)
    ).dynamic_batching
    assert (batching.max_rows, batching.micro_batch_rows, batching.max_delay_seconds) == (8, 2, 0.5)
    assert penstock.pipeline_spec(batch_delay=1).dynamic_batching.max_delay_seconds == 1
    assert penstock.pipeline_spec(batch_rows=-1).dynamic_batching.max_rows == -1  # the daemon's to refuse
    wrongs: tuple[Any, ...] = (1.5, 4.0, np.float64(4), True, np.True_, "4", [4], float("nan"))
    for bound in ("batch_rows", "batch_micro_batch_rows"):
        for wrong in wrongs:
            with pytest.raises(TypeError, match="must be a whole number") as told:
                penstock.pipeline_spec(**{bound: wrong})
            assert str(told.value) == f"{bound}: must be a whole number, got {wrong!r}"
        with pytest.raises(ValueError, match=f"^{bound}: must be an integer of 64 bits, got {2**63}"):
            penstock.pipeline_spec(**{bound: 2**63})
    no_numbers: tuple[Any, ...] = (True, np.False_, "4", [4], b"1")
    for no_number in no_numbers:
        with pytest.raises(TypeError, match="must be a number of seconds") as told:
            penstock.pipeline_spec(batch_delay=no_number)
        assert str(told.value) == f"batch_delay: must be a number of seconds, got {no_number!r}"
    with pytest.raises(ValueError, match="^batch_delay: must fit float64, got one of 3322 bits"):
        penstock.pipeline_spec(batch_delay=10**1000)
    no_bools: tuple[Any, ...] = (1, "no", "", 0.0, [])
    for no_bool in no_bools:
        with pytest.raises(TypeError, match="must be True, False or None") as told:
            penstock.pipeline_spec(dynamic_batching=no_bool)
        assert str(told.value) == f"dynamic_batching: must be True, False or None, got {no_bool!r}"


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


def test_replan_sends_what_shall_be_different_and_nothing_else(client: penstock.Client, daemon: Any) -> None:
    pipeline = client.create_pipeline("p", model="mlp")
    pipeline.message.etag = "1-1"
    answer = pipeline.replan(stages=2, schedule="zb-h1", batch_rows=8, bubble_filling=False)
    request = daemon.requests["UpdatePipeline"][0]
    assert request.name == pipeline.name and uuid.UUID(request.request_id) and not request.etag
    given = {field.name for field, value in request.spec.ListFields() if value.ByteSize()}
    assert given == {"cut", "schedule", "bubble_filling", "dynamic_batching"}, "nothing of the model, optimizer or loss"
    assert request.spec.cut.stages == 2 and request.spec.schedule.kind == "zb-h1"
    assert request.spec.dynamic_batching.max_rows == 8 and not request.no_dynamic_batching
    assert answer == pipeline.message and pipeline.message.etag == "1-2"
    pipeline.replan(dynamic_batching=False, if_unchanged=True)
    request = daemon.requests["UpdatePipeline"][1]
    assert request.no_dynamic_batching and request.etag == "1-2"


def test_an_unknown_checkpoint_mode_is_refused_here(client: penstock.Client) -> None:
    with pytest.raises(ValueError, match="sometimes"):
        client.create_pipeline("demo", checkpoint="sometimes")
    with pytest.raises(ValueError, match="cut_cost is one of time, size, not 'weight'"):
        client.create_pipeline("demo", cut_cost="weight")
    with pytest.raises(ValueError, match="cut_method"):
        client.create_pipeline("demo", cut_method="best")


@pytest.mark.parametrize("of_a_loss", [{"loss_output": "logits"}, {"loss_options": {"ignore_index": -1}}])
def test_what_belongs_to_a_loss_needs_its_name(client: penstock.Client, of_a_loss: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="belong to a loss: name it"):
        client.create_pipeline("demo", model="gpt", **of_a_loss)
