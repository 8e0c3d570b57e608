"""Plans: what the planner lists, what it takes where nothing is given, and what it refuses by name."""

from __future__ import annotations

import threading
from typing import Any

import grpc
import numpy as np
import penstock
import pytest
from penstock.v1 import pipeline_pb2

from conftest import QUICK_DRAIN, StartDaemon
from daemon_process import Daemon
from small_models import GPT, MLP, WIDTH, create_mlp, fresh_name


def _spec(**changes: object) -> pipeline_pb2.PipelineSpec:
    return penstock.pipeline_spec(model="gpt", options=GPT, loss="cross_entropy", **changes)


def _refused(reason: str, error: pytest.ExceptionInfo[penstock.PenstockError], field: str) -> None:
    assert error.value.reason == reason, error.value
    assert error.value.values["field"] == field, error.value


def test_candidates_are_listed_best_first_and_each_can_be_had(client: penstock.Client) -> None:
    spec = _spec()
    found = client.plan(spec)
    assert found.complete and 1 < len(found.candidates) <= 20 and found.considered >= len(found.candidates)
    # Those that were run come first, the fastest before the others; then those whose stages were measured.
    ran = [one.rehearsed_seconds for one in found.candidates if one.HasField("rehearsed_seconds")]
    assert len(ran) != 1 and ran == sorted(ran)
    assert all(one.HasField("rehearsed_seconds") for one in found.candidates[: len(ran)])
    unconfirmed = [not one.confirmed for one in found.candidates]
    assert unconfirmed == sorted(unconfirmed) and all(one.makespan_seconds > 0 for one in found.candidates)
    assert found.plan.schedule == found.candidates[0].schedule.kind
    for candidate in found.candidates:
        assert candidate.memory and all(need.bytes > 0 for need in candidate.memory)
        assert sum(candidate.balance) == sum(found.candidates[0].balance)
    one = found.candidates[-1]
    spec.schedule.CopyFrom(one.schedule)
    spec.cut.balance[:] = one.balance
    pipeline = client.create_pipeline_from(fresh_name("chosen"), spec)
    assert pipeline.plan.schedule == one.schedule.kind and pipeline.plan.micro_batches == one.schedule.micro_batches
    assert [len(stage.layers) for stage in pipeline.plan.stages] == list(one.balance)
    assert pipeline.plan.chunks == one.schedule.chunks


def test_with_no_plan_given_the_planner_chooses_and_it_trains(client: penstock.Client) -> None:
    pipeline = client.create_pipeline(
        fresh_name("open"), model="mlp", options={**MLP, "dropout": 0.0}, loss="mean_squared_error", seed=7, mini_batch_rows=16
    )
    plan = pipeline.plan
    assert plan.micro_batches in (1, 2, 4, 8, 16)
    assert any(" schedules considered, " in why for why in plan.why)
    rows = np.ones((16, WIDTH), np.float32)
    losses = [pipeline.train_step(rows, rows * 0.5).loss for _ in range(3)]
    # The choice changes nothing but, by its number of micro-batches, the order of sums.
    plain = create_mlp(client, stages=1, micro_batches=plan.micro_batches, schedule="gpipe", optimizer_options=None)
    assert losses == [plain.train_step(rows, rows * 0.5).loss for _ in range(3)]


def test_what_is_given_is_kept(client: penstock.Client) -> None:
    plan = create_mlp(client, schedule="gpipe", micro_batches=3, checkpoint="always").plan
    assert (plan.schedule, plan.micro_batches, plan.checkpoint) == ("gpipe", 3, pipeline_pb2.CHECKPOINT_MODE_ALWAYS)
    plan = client.create_pipeline(fresh_name("given"), model="mlp", options=MLP, balance=[2, 2]).plan
    assert (plan.schedule, plan.micro_batches, plan.checkpoint) == ("1f1b", 1, pipeline_pb2.CHECKPOINT_MODE_EXCEPT_LAST)
    found = client.plan(_spec(micro_batches=4), kinds=["gpipe", "1f1b"])
    assert {one.schedule.kind for one in found.candidates} <= {"gpipe", "1f1b"}
    assert {one.schedule.micro_batches for one in found.candidates} == {4}


def test_bad_plans_are_named_and_nothing_starts(client: penstock.Client) -> None:
    before = len(client.list_pipelines())
    for change, field in [
        ({"micro_batches": 0}, "spec.schedule.micro_batches"),
        ({"schedule": "interleaved-1f1b", "chunks": 99}, "spec.schedule.chunks"),
        ({"schedule": "zbv", "chunks": 3, "devices": ["cpu:0"]}, "spec.schedule.chunks"),
        ({"schedule": "lag", "micro_batches": 4, "devices": ["cpu:0"]}, "spec.schedule.lag"),
        ({"schedule": "forward-only"}, "spec.schedule.kind"),
        ({"mini_batch_rows": 0}, "spec.schedule.mini_batch_rows"),
    ]:
        with pytest.raises(penstock.PenstockError) as error:
            client.create_pipeline_from(fresh_name("bad"), _spec(**change))
        _refused("SPEC_INVALID", error, field)
    # A plan for other devices.
    with pytest.raises(penstock.PenstockError) as error:
        client.create_pipeline_from(fresh_name("bad"), _spec(devices=["cpu:0", "cuda:7"]))
    assert "cuda:7" in str(error.value)
    with pytest.raises(penstock.PenstockError) as error:
        client.plan(_spec(), kinds=["1f1b", "fastest"])
    _refused("SPEC_INVALID", error, "limits.kinds[1]")
    with pytest.raises(penstock.PenstockError) as error:
        client.plan(_spec(), micro_batches=[4, -1])
    _refused("SPEC_INVALID", error, "limits.micro_batches[1]")
    assert len(client.list_pipelines()) == before


# A fill-drain for two stages and four micro-batches that nobody generates: half of the backwards are split.
OWN_LISTS = "0F0,0F1,0F2,0F3,0B0,0I1,0W1,0B2,0I3,0W3\n1F0,1F1,1B0,1I1,1F2,1F3,1I2,1W1,1W2,1B3\n"


def test_a_schedule_of_ones_own_is_run(client: penstock.Client) -> None:
    """Lists from outside train as a generated kind does, are shown as they are, and may be sent again."""
    pipeline = create_mlp(client, schedule="", micro_batches=None, actions=OWN_LISTS)
    plan = pipeline.plan
    assert (plan.schedule, plan.micro_batches, plan.chunks, len(plan.stages)) == ("imported", 4, 1, 2)
    plain = create_mlp(client, schedule="gpipe")
    rows = np.arange(8 * WIDTH, dtype=np.float32).reshape(8, WIDTH) / 100
    for count in (8, 8, 3, 8):  # three rows: the fourth micro-batch is left out
        own, other = (one.train_step(rows[:count], rows[:count] * 0.5) for one in (pipeline, plain))
        assert own.loss == other.loss
    assert np.array_equal(pipeline.infer(rows)["output"], plain.infer(rows)["output"])

    shown = pipeline.schedule(measured=True)
    ran = {lane: [one.action for one in shown.actions if one.lane == lane] for lane in (0, 1)}
    compute = [[action for action in ran[lane] if "R" not in action and "OPT" not in action] for lane in (0, 1)]
    assert "\n".join(",".join(list_) for list_ in compute) + "\n" == OWN_LISTS and shown.kind == "imported"

    answered = client.pipeline(pipeline.name).message.spec
    assert answered.schedule.actions == OWN_LISTS
    again = client.create_pipeline_from(fresh_name("again"), answered)
    assert again.train_step(rows, rows * 0.5).loss == create_mlp(client, schedule="gpipe").train_step(rows, rows * 0.5).loss

    with pytest.raises(penstock.PenstockError) as error:
        pipeline.train_step(rows[:5], rows[:5], micro_batches=5)
    _refused("FIELD_INVALID", error, "micro_batches")
    assert pipeline.train_step(rows, rows * 0.5).loss == plain.train_step(rows, rows * 0.5).loss


def test_lists_are_planned_too(client: penstock.Client) -> None:
    spec = penstock.pipeline_spec(model="mlp", options=MLP, loss="mean_squared_error", actions=OWN_LISTS)
    found = client.plan(spec)
    assert {one.schedule.kind for one in found.candidates} == {"imported"}
    assert found.candidates[0].schedule.actions == OWN_LISTS and found.plan.schedule == "imported"
    assert found.candidates[0].schedule.checkpoint == pipeline_pb2.CHECKPOINT_MODE_NEVER


def test_bad_lists_are_named_and_nothing_starts(client: penstock.Client) -> None:
    before = len(client.list_pipelines())
    truncated = OWN_LISTS[:-5]
    for lists, place in [
        (truncated, "1B3 is missing"),
        (truncated + ",1B", "cell 9"),
        (OWN_LISTS.replace("1W1,1W2", "1W2,1W1"), "ascending"),
        (OWN_LISTS.replace("0F0,0F1", "0B0,0F1,0F0"), "0B0"),
        (OWN_LISTS + "2F0,2F1\n", "2B0 is missing"),
        ("\0\1\2", "cell 0"),
        ("," * 131073, "131072 bytes"),
    ]:
        with pytest.raises(penstock.PenstockError) as error:
            create_mlp(client, schedule="", micro_batches=None, actions=lists)
        _refused("SPEC_INVALID", error, "spec.schedule.actions")
        assert place in error.value.message, error.value
    # Whole, but for another pipeline.
    for change, field in [
        ({"stages": 3}, "spec.schedule.actions"),
        ({"stages": 0, "balance": [1, 1, 2]}, "spec.schedule.actions"),
        ({"micro_batches": 8}, "spec.schedule.micro_batches"),
        ({"chunks": 2}, "spec.schedule.chunks"),
        ({"schedule": "1f1b"}, "spec.schedule.kind"),
    ]:
        with pytest.raises(penstock.PenstockError) as error:
            create_mlp(client, **{"schedule": "", "micro_batches": None, "actions": OWN_LISTS, **change})
        _refused("SPEC_INVALID", error, field)
    assert len(client.list_pipelines()) == before


def test_a_limit_that_is_too_small_names_device_and_largest_class(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--device-memory=cpu:0=60KiB", *QUICK_DRAIN)
    with penstock.Client(daemon.address) as client:
        spec = _spec()
        with pytest.raises(penstock.PenstockError) as error:
            client.plan(spec)
        assert error.value.reason == "NO_PLAN" and error.value.code == grpc.StatusCode.FAILED_PRECONDITION
        assert error.value.values["device"] == "cpu:0" and "largest class is" in error.value.message
        with pytest.raises(penstock.PenstockError) as error:
            client.create_pipeline_from("small", spec)
        assert error.value.reason == "PLAN_DOES_NOT_FIT" and error.value.values["device"] == "cpu:0"
        assert client.list_pipelines() == []


def _slow(layers: int, milliseconds: float, **changes: object) -> pipeline_pb2.PipelineSpec:
    """Layers that take so long, each a little longer than the one before it, so that each is measured."""
    halves = {"input_ms": 1.0, "weight_ms": 1.0}
    model = [
        penstock.Layer("delay", f"d{i}", {"forward_ms": milliseconds + 0.01 * i, "features": 4, **halves})
        for i in range(layers)
    ]
    return penstock.pipeline_spec(model=model, loss="mean_squared_error", optimizer="sgd", **changes)


PHASES = ["waiting", "loading", "measuring", "searching", "confirming", "rehearsing", "building"]


def test_a_creation_shows_how_far_it_is(client: penstock.Client) -> None:
    name = fresh_name("shown")
    seen: list[pipeline_pb2.CreateProgress] = []
    listed: list[pipeline_pb2.Pipeline] = []

    def look(progress: pipeline_pb2.CreateProgress) -> None:
        seen.append(progress)
        listed.extend(one.message for one in client.list_pipelines() if one.name == f"pipelines/{name}")

    pipeline = client.create_pipeline_from(name, _slow(8, 30.0, planning_seconds=5), progress=look)
    assert pipeline.message.state == pipeline_pb2.PIPELINE_STATE_READY and not pipeline.message.HasField("progress")
    assert pipeline.message.spec.planning_seconds == 5
    shares = [one.done for one in seen]
    assert shares and shares == sorted(shares) and 0 <= shares[0] and shares[-1] <= 1
    phases = [PHASES.index(one.phase) for one in seen]
    assert phases == sorted(phases) and PHASES.index("measuring") in phases
    times = [one.elapsed_seconds for one in seen]
    assert times == sorted(times) and {one.budget_seconds for one in seen} == {5.0}
    creating = [one for one in listed if one.state == pipeline_pb2.PIPELINE_STATE_CREATING]
    assert creating and all(one.HasField("progress") for one in creating)


def test_a_callers_time_changes_no_plan(client: penstock.Client) -> None:
    """There is time for one candidate only, also for who waits long: a layer alone takes longer than all of planning may.

    The micro-batches are given: layers measured for one size only predict the same for all, and a rounding would choose.
    """
    spec = _slow(4, 20.0, planning_seconds=0.02, micro_batches=4)
    short, long = (client.plan(spec, timeout=seconds) for seconds in (60.0, 600.0))
    assert (short.considered, short.complete) == (long.considered, long.complete) == (1, False)
    for one, other in zip(short.candidates, long.candidates, strict=True):
        assert one.schedule == other.schedule and list(one.balance) == list(other.balance)
    plans = [client.plan_pipeline(fresh_name("planned"), spec, timeout=seconds) for seconds in (60.0, 600.0)]
    assert plans[0].schedule == plans[1].schedule == short.plan.schedule
    assert plans[0].micro_batches == plans[1].micro_batches == short.plan.micro_batches


def test_a_plan_blocks_nobody_and_ends_when_it_is_given_up(daemon: Daemon, client: penstock.Client) -> None:
    long = _slow(200, 100.0, planning_seconds=3600)  # it would take minutes
    other = penstock.Client(daemon.address, retry_for=0.0)
    errors: list[penstock.PenstockError] = []

    def plan() -> None:
        with pytest.raises(penstock.PenstockError) as error:
            other.plan_pipeline("long", long, timeout=600.0)
        errors.append(error.value)

    asking = threading.Thread(target=plan)
    asking.start()
    create_mlp(client, stages=1).delete()
    assert asking.is_alive(), errors
    other.close()
    asking.join()
    assert errors
    with pytest.raises(penstock.DeadlineError):
        client.plan(long, timeout=1.0)
    assert client.plan(_spec(micro_batches=4), kinds=["gpipe"], timeout=60.0).candidates


@pytest.mark.parametrize("seconds", [-1.0, 3601.0, float("nan")])
def test_planning_takes_a_time_within_reason(client: penstock.Client, seconds: float) -> None:
    with pytest.raises(penstock.PenstockError) as error:
        client.create_pipeline(fresh_name("bad"), model="mlp", options=MLP, planning_seconds=seconds)
    _refused("SPEC_INVALID", error, "spec.planning_seconds")


def test_without_time_for_planning_nothing_is_measured_and_everything_works(client: penstock.Client) -> None:
    pipeline = client.create_pipeline(
        fresh_name("unmeasured"), model="mlp", options=MLP, stages=2, loss="mean_squared_error", planning_seconds=0.0
    )
    balance = [len(stage.layers) for stage in pipeline.plan.stages]
    assert max(balance) - min(balance) <= 1  # every layer counts the same
    assert all(stage.forward_seconds == 0 for stage in pipeline.plan.stages)
    assert any("planning_seconds is 0" in reason for reason in pipeline.plan.why)
    measured = client.create_pipeline(
        fresh_name("measured"), model="mlp", options=MLP, balance=balance, loss="mean_squared_error"
    )
    inputs = np.ones((4, WIDTH), np.float32)
    for each in (pipeline, measured):
        each.train_step({each.signature.inputs[0].name: inputs}, inputs)
    one, other = (each.infer({each.signature.inputs[0].name: inputs}) for each in (pipeline, measured))
    assert one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def test_layers_of_a_reference_model_stand_on_the_devices_that_are_named(client: penstock.Client) -> None:
    named = create_mlp(client, stages=0, schedule="gpipe", layer_devices={"block0": "cpu:1", "block2": "cpu:0"})
    assert [stage.device for stage in named.plan.stages] == ["cpu:1", "cpu:0"]
    assert named.plan.stages[1].layers[0] == "block2"
    assert dict(named.message.spec.model.layer_devices) == {"block0": "cpu:1", "block2": "cpu:0"}
    plain = create_mlp(client, stages=1, schedule="gpipe")
    rows = np.linspace(-1, 1, 16 * WIDTH, dtype=np.float32).reshape(16, WIDTH)
    assert [named.train_step(rows, rows).loss for _ in range(3)] == [plain.train_step(rows, rows).loss for _ in range(3)]
    named.save_checkpoint("elsewhere")
    moved = create_mlp(client, model=None, options=None, stages=1, from_checkpoint=f"{named.name}/checkpoints/elsewhere")
    assert moved.train_step(rows, rows).loss == plain.train_step(rows, rows).loss


def test_what_is_given_beside_a_checkpoint_replaces_how_its_layers_were_placed(client: penstock.Client) -> None:
    """Devices of layers, a cut and a list of devices: each stands in the place of the two others."""
    placed = create_mlp(client, stages=0, schedule="gpipe", layer_devices={"block0": "cpu:1", "block2": "cpu:0"})
    placed.save_checkpoint("placed")
    cut = create_mlp(client, stages=2, schedule="gpipe")
    cut.save_checkpoint("cut")

    def again(source: penstock.Pipeline, checkpoint: str, **given: Any) -> penstock.Pipeline:
        return client.create_pipeline(
            fresh_name("again"), from_checkpoint=f"{source.name}/checkpoints/{checkpoint}", **given
        )

    other = again(placed, "placed", layer_devices={"block1": "cpu:1"})
    assert dict(other.message.spec.model.layer_devices) == {"block1": "cpu:1"}
    assert [stage.device for stage in other.plan.stages] == ["cpu:1"]
    by_name = again(cut, "cut", layer_devices={"block0": "cpu:1", "block2": "cpu:0"})
    assert [stage.device for stage in by_name.plan.stages] == ["cpu:1", "cpu:0"]
    moved = again(placed, "placed", devices=["cpu:0"])
    assert not moved.message.spec.model.layer_devices
    assert [stage.device for stage in moved.plan.stages] == ["cpu:0"]


def test_devices_of_layers_that_are_not_there_are_refused(client: penstock.Client) -> None:
    for devices, name in (({"linear9": "cpu:0"}, "linear9"), ({"block0": "cpu:9"}, "block0"), ({"block0": ""}, "block0")):
        with pytest.raises(penstock.PenstockError) as error:
            create_mlp(client, stages=0, layer_devices=devices)
        _refused("SPEC_INVALID", error, f"spec.model.layer_devices[{name}]")


def test_a_sample_is_what_plans_are_measured_with(client: penstock.Client) -> None:
    """A row that no embedding has fails where it is measured, and no made-up value would."""
    tokens = np.zeros((2, 16), np.int64)
    good = client.plan(_spec(stages=2), sample=tokens, sample_target=tokens)
    assert good.plan.layers[0].forward_seconds > 0
    assert create_mlp(client, sample={"input": np.ones((3, WIDTH), np.float32)}).message.step == 0
    for changes, reason, field in (
        ({"sample": tokens + 1000}, "FIELD_INVALID", "sample.inputs"),
        ({"sample": tokens.astype(np.float32)}, "TENSOR_SIGNATURE", "sample.inputs[0].type"),
        ({"sample": {"other": tokens}}, "TENSOR_SIGNATURE", "sample.inputs[0].name"),
        ({"sample": tokens[:0]}, "TENSOR_SIGNATURE", "sample.inputs[0].shape"),
        ({"sample": tokens, "sample_target": tokens[:0]}, "TENSOR_SIGNATURE", "sample.target[0].shape"),
        ({"sample": tokens, "sample_target": tokens[:, :3].astype(np.float32)}, "TENSOR_SIGNATURE", "sample.target[0].type"),
    ):
        with pytest.raises(penstock.PenstockError) as error:
            client.plan(_spec(stages=2), **changes)
        _refused(reason, error, field)


def test_a_sample_is_small_and_complete(client: penstock.Client) -> None:
    with pytest.raises(ValueError, match="sample: has more than"):
        client.plan(_spec(), sample=np.zeros((1 << 15, 16), np.int64))
    with pytest.raises(ValueError, match="sample_target: needs a sample"):
        client.plan(_spec(), sample_target=np.zeros((1, 16), np.int64))
