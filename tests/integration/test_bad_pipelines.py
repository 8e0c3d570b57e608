"""Specifications, identifiers and checkpoints that can't be.

Each is a named error with field and value; the daemon lives, and the next good request is answered.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import grpc
import penstock
import pytest
from penstock.v1 import pipeline_pb2, state_pb2

from raw_calls import INVALID, Raw, infer, refused, train
from small_models import create_mlp, mlp_batch, request_id

pytestmark = pytest.mark.usefixtures("next_request_is_served")
Code = grpc.StatusCode


def _spec(**changes: Any) -> pipeline_pb2.PipelineSpec:
    fields: dict[str, Any] = {
        "model": "mlp",
        "options": {"layers": 4, "width": 16},
        "stages": 2,
        "loss": "mean_squared_error",
    }
    return penstock.pipeline_spec(**{**fields, **changes})


def _changed(change: Callable[[pipeline_pb2.PipelineSpec], Any]) -> pipeline_pb2.PipelineSpec:
    spec = _spec()
    change(spec)
    return spec


def _group(pattern: str, **options: float) -> penstock.ParameterGroup:
    return penstock.ParameterGroup([pattern], options)


BAD_SPECS: dict[str, tuple[pipeline_pb2.PipelineSpec, str, str]] = {
    # name: specification, field, value
    "unknown model": (_spec(model="alexnet"), "model", "alexnet"),
    "no model": (_changed(lambda s: s.ClearField("model")), "model", ""),
    "unknown layer": (_spec(model=[penstock.Layer("teleport")], options={}), "kind", "teleport"),
    "unknown option": (_spec(options={"layers": 4, "width": 16, "colour": 1}), "colour", "1"),
    "option of a wrong type": (_spec(options={"layers": "four"}), "layers", "four"),
    "no layers": (_spec(options={"layers": 0, "width": 16}), "layers", "0"),
    "negative width": (_spec(options={"layers": 4, "width": -16}), "width", "-16"),
    "huge width": (_spec(options={"layers": 4, "width": 2**62}), "width", str(2**62)),
    "dropout above one": (_spec(options={"dropout": 1.5}), "dropout", "1.5"),
    "dropout that is no number": (_spec(options={"dropout": math.nan}), "dropout", "nan"),
    "heads that do not divide the width": (
        _spec(model="gpt", options={"width": 32, "heads": 5}, loss="cross_entropy"),
        "heads",
        "5",
    ),
    "negative stages": (_changed(lambda s: setattr(s.cut, "stages", -1)), "stages", "-1"),
    "more stages than layers": (_changed(lambda s: setattr(s.cut, "stages", 99)), "stages", "99"),
    "a balance of another sum": (_spec(balance=[1, 1]), "balance", "1"),
    "a balance with a zero": (_spec(balance=[0, 4]), "balance", "0"),
    "a negative balance": (_spec(balance=[-1, 5]), "balance", "-1"),
    "unknown device": (_spec(devices=["cpu:77"]), "devices", "cpu:77"),
    "a device that is a path": (_spec(devices=["../../dev"]), "devices", ""),
    "unknown schedule": (_spec(schedule="zigzag"), "schedule", "zigzag"),
    "inference as a schedule of training": (_spec(schedule="forward-only"), "schedule", "forward-only"),
    "no micro-batches": (_spec(micro_batches=0), "micro_batches", "0"),
    "negative micro-batches": (_spec(micro_batches=-4), "micro_batches", "-4"),
    "unknown checkpoint mode": (_changed(lambda s: setattr(s.schedule, "checkpoint", 99)), "checkpoint", "99"),
    "unknown optimizer": (_spec(optimizer="lamb"), "optimizer", "lamb"),
    "unknown option of the optimizer": (_spec(optimizer_options={"speed": 1.0}), "speed", "1"),
    "a rate that is no number": (_spec(optimizer_options={"learning_rate": math.nan}), "learning_rate", "nan"),
    "a negative rate": (_spec(optimizer_options={"learning_rate": -0.1}), "learning_rate", "-0.1"),
    "a negative clip norm": (_spec(clip_norm=-1.0), "clip_norm", "-1"),
    "unknown schedule of rates": (_spec(learning_rate_schedule="sawtooth"), "learning_rate_schedule", "sawtooth"),
    "negative warm-up": (
        _spec(learning_rate_schedule="warmup_cosine", warmup_steps=-1, total_steps=5),
        "warmup_steps",
        "-1",
    ),
    "a schedule without its length": (_spec(learning_rate_schedule="linear"), "total_steps", "0"),
    "steps of no size": (_spec(learning_rate_schedule="step"), "step_size", "0"),
    "a factor of another schedule": (_spec(learning_rate_schedule="linear", total_steps=5, gamma=0.5), "gamma", "0.5"),
    "a group of no parameter": (_spec(groups=[_group("*.wieght")]), "patterns[0]", "*.wieght"),
    "a group without patterns": (_spec(groups=[penstock.ParameterGroup([])]), "groups[0].patterns", "nothing"),
    "unknown option of a group": (_spec(groups=[_group("*.bias", speed=1.0)]), "groups[0].options[speed]", "1"),
    "a negative decay of a group": (_spec(groups=[_group("*.bias", weight_decay=-1.0)]), "weight_decay", "-1"),
    "class weights of another loss": (_spec(class_weights=[1.0, 2.0]), "class_weights", "2 numbers"),
    "too few class weights": (_spec(loss="cross_entropy", class_weights=[1.0, 2.0]), "class_weights", "2"),
    "a negative class weight": (_spec(loss="cross_entropy", class_weights=[-0.5] * 16), "class_weights", "-0.5"),
    "smoothing above one": (_spec(loss="cross_entropy", loss_options={"label_smoothing": 1.5}), "smoothing", "1.5"),
    "unknown loss": (_spec(loss="hinge"), "loss", "hinge"),
}
OTHER_REASONS = {"unknown model": (Code.NOT_FOUND, "MODEL_NOT_FOUND"), "unknown loss": (INVALID, "LOSS_UNKNOWN")}


@pytest.mark.parametrize("case", BAD_SPECS)
@pytest.mark.parametrize("validate_only", [True, False], ids=["validate", "create"])
def test_a_bad_specification(raw: Raw, case: str, validate_only: bool) -> None:
    spec, field, value = BAD_SPECS[case]
    code, reason = OTHER_REASONS.get(case, (INVALID, "SPEC_INVALID"))
    request = pipeline_pb2.CreatePipelineRequest(
        pipeline_id="bad", spec=spec, validate_only=validate_only, request_id=request_id()
    )
    refused(lambda: raw.call("CreatePipeline", request), code, reason, field, value)
    refused(
        lambda: raw.call("GetPipeline", pipeline_pb2.GetPipelineRequest(name="pipelines/bad")),
        Code.NOT_FOUND,
        "PIPELINE_NOT_FOUND",
    )


@pytest.mark.parametrize("identifier", ["", "A", "1a", "a-", "-a", "_a", "a_", "a/b", "..", "a\n", "x" * 64, "x" * 60_000])
def test_a_bad_identifier(raw: Raw, identifier: str) -> None:
    request = pipeline_pb2.CreatePipelineRequest(pipeline_id=identifier, spec=_spec(), request_id=request_id())
    refused(lambda: raw.call("CreatePipeline", request), INVALID, "NAME_INVALID", "pipeline_id")


def test_pipelines_that_exist_or_not(raw: Raw, pipeline: penstock.Pipeline) -> None:
    again = pipeline_pb2.CreatePipelineRequest(pipeline_id="victim", spec=_spec(), request_id=request_id())
    refused(lambda: raw.call("CreatePipeline", again), Code.ALREADY_EXISTS, "PIPELINE_EXISTS")
    without = pipeline_pb2.CreatePipelineRequest(pipeline_id="new", spec=_spec())
    refused(lambda: raw.call("CreatePipeline", without), INVALID, "REQUEST_ID_MISSING")
    nobody = "pipelines/nobody"
    for call in [
        lambda: raw.call("GetPipeline", pipeline_pb2.GetPipelineRequest(name=nobody)),
        lambda: raw.call("DeletePipeline", pipeline_pb2.DeletePipelineRequest(name=nobody, request_id=request_id())),
        lambda: raw.call("Infer", infer(nobody)),
        lambda: raw.call("TrainStep", train(nobody)),
        lambda: raw.unary(
            "StateService/SaveCheckpoint",
            state_pb2.SaveCheckpointRequest(pipeline=nobody, request_id=request_id()),
            state_pb2.Checkpoint,
        ),
    ]:
        refused(call, Code.NOT_FOUND, "PIPELINE_NOT_FOUND")


def test_a_model_that_does_not_fit(start_daemon: Any) -> None:
    """Parameters, gradients and AdamW's state of four layers of width 2048 are 268 MB; a device may hold 64 MiB."""
    small = start_daemon("--device-memory=cpu:0=64MiB", "--device-memory=cpu:1=64MiB", "--drain-announce=0s")
    calls = Raw(small.address)
    spec = _spec(options={"layers": 4, "width": 2048})
    for validate_only in (True, False):
        request = pipeline_pb2.CreatePipelineRequest(
            pipeline_id="large", spec=spec, validate_only=validate_only, request_id=request_id()
        )
        refused(
            lambda request=request: calls.call("CreatePipeline", request), Code.FAILED_PRECONDITION, "PLAN_DOES_NOT_FIT"
        )
    with penstock.Client(small.address) as client:
        fits = create_mlp(client)
        assert fits.train_step(*mlp_batch(0)).applied
    calls.close()
    small.stop()


# --- checkpoints and parameters ---


def test_bad_checkpoints(raw: Raw, pipeline: penstock.Pipeline) -> None:
    def save(identifier: str) -> Any:
        request = state_pb2.SaveCheckpointRequest(
            pipeline=pipeline.name, checkpoint_id=identifier, request_id=request_id()
        )
        return raw.unary("StateService/SaveCheckpoint", request, state_pb2.Checkpoint)

    def restore(name: str) -> Any:
        request = state_pb2.RestoreCheckpointRequest(name=name, request_id=request_id())
        return raw.unary("StateService/RestoreCheckpoint", request, state_pb2.RestoreCheckpointResponse)

    def delete(name: str) -> Any:
        request = state_pb2.DeleteCheckpointRequest(name=name, request_id=request_id())
        return raw.unary("StateService/DeleteCheckpoint", request, state_pb2.DeleteCheckpointResponse)

    for identifier in ("..", "../../x", "/x", "a\0", "A", "a_", "x" * 64):
        refused(lambda identifier=identifier: save(identifier), INVALID, "NAME_INVALID")
        name = f"{pipeline.name}/checkpoints/{identifier}"
        refused(lambda name=name: restore(name), INVALID, "NAME_INVALID")
        refused(lambda name=name: delete(name), INVALID, "NAME_INVALID")
    missing = f"{pipeline.name}/checkpoints/missing"
    refused(lambda: delete(missing), Code.NOT_FOUND, "CHECKPOINT_NOT_FOUND")
    refused(lambda: restore(missing), Code.NOT_FOUND, "CHECKPOINT_NOT_FOUND")
    save("mine")
    refused(lambda: save("mine"), Code.ALREADY_EXISTS, "CHECKPOINT_EXISTS")
    with pytest.raises(penstock.PenstockError) as raised:
        pipeline.read_parameters(["nothing"])
    assert (raised.value.code, raised.value.reason) == (Code.NOT_FOUND, "PARAMETER_NOT_FOUND")


def test_a_checkpoint_of_another_pipeline(raw: Raw, client: penstock.Client, pipeline: penstock.Pipeline) -> None:
    """A request that names both is refused by name; neither pipeline is touched."""
    other = create_mlp(client, "other")
    saved = other.save_checkpoint("theirs")
    other.train_step(*mlp_batch(0))
    steps = (other.refresh().step, pipeline.refresh().step)
    restore = state_pb2.RestoreCheckpointRequest(name=saved.name, pipeline=pipeline.name, request_id=request_id())
    delete = state_pb2.DeleteCheckpointRequest(name=saved.name, pipeline=pipeline.name, request_id=request_id())
    refused(
        lambda: raw.unary("StateService/RestoreCheckpoint", restore, state_pb2.RestoreCheckpointResponse),
        INVALID,
        "FIELD_INVALID",
        "name",
    )
    refused(
        lambda: raw.unary("StateService/DeleteCheckpoint", delete, state_pb2.DeleteCheckpointResponse),
        INVALID,
        "FIELD_INVALID",
        "name",
    )
    assert (other.refresh().step, pipeline.refresh().step) == steps
    assert [checkpoint.name for checkpoint in other.list_checkpoints()] == [saved.name]
    other.delete_checkpoint("theirs")
    assert other.list_checkpoints() == []
    other.delete()


def test_checkpoints_over_the_quota(start_daemon: Any) -> None:
    """Refused by name, and told what holds how much; a deletion makes room; the daemon's last save is taken."""
    daemon = start_daemon("--checkpoint-bytes=64KiB", "--drain-announce=0s")
    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client)
        pipeline.train_step(*mlp_batch(0))
        pipeline.save_checkpoint("first")
        with pytest.raises(penstock.PenstockError) as raised:
            for number in range(64):
                pipeline.save_checkpoint(f"more-{number}")
        assert (raised.value.code, raised.value.reason) == (Code.RESOURCE_EXHAUSTED, "STORAGE_FULL")
        assert raised.value.values["limit"] == "checkpoint-bytes"
        pipeline.delete_checkpoint("first")
        pipeline.save_checkpoint("fits-now")
        pipeline.train_step(*mlp_batch(1))
    daemon.stop()
    (folder,) = daemon.state_dir.glob("**/checkpoints")
    assert (folder / "step-2" / "manifest.json").exists()
