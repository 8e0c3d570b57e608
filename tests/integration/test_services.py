"""What every gRPC tool expects: health, reflection, server information; and that a retry changes nothing."""

from __future__ import annotations

import threading

import grpc
import penstock
import pytest
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from penstock.v1 import handle_pb2, pipeline_pb2, state_pb2, work_pb2

from daemon_process import Daemon, eventually
from raw_calls import Raw, infer, refused, train
from small_models import create_mlp, differing, fresh_name, mlp_batch, request_id, state_of

SERVING = health_pb2.HealthCheckResponse.SERVING
SERVICES = {
    "penstock.v1.PipelineService",
    "penstock.v1.WorkService",
    "penstock.v1.HandleService",
    "penstock.v1.StateService",
    "penstock.v1.InsightService",
    "penstock.v1.JournalService",
    "penstock.v1.AdminService",
    "inference.GRPCInferenceService",
    "grpc.health.v1.Health",
}


@pytest.fixture
def channel(daemon: Daemon) -> grpc.Channel:
    with grpc.insecure_channel(daemon.address) as opened:
        yield opened


def test_health_of_every_name(channel: grpc.Channel) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    for name in ["", "startup", "liveness", "readiness", *(SERVICES - {"grpc.health.v1.Health"})]:
        assert health.Check(health_pb2.HealthCheckRequest(service=name), timeout=10).status == SERVING, name
    with pytest.raises(grpc.RpcError) as raised:
        health.Check(health_pb2.HealthCheckRequest(service="nobody"), timeout=10)
    assert raised.value.code() == grpc.StatusCode.NOT_FOUND


def test_watch_of_an_unknown_name(channel: grpc.Channel) -> None:
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="nobody"), timeout=10)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()


def test_the_log_level_says_which_lines_are_written(daemon: Daemon) -> None:
    made = [fresh_name("told") for _ in range(3)]

    def told(name: str) -> bool:
        return f'pipeline created pipeline="{name}"' in daemon.log

    with penstock.Client(daemon.address) as client:
        assert client.set_log_level() == ("info", "info")
        create_mlp(client, made[0])
        try:
            assert client.set_log_level("warning") == ("info", "warning")
            assert client.set_log_level("warning") == ("warning", "warning")
            create_mlp(client, made[1])
        finally:
            assert client.set_log_level("info") == ("warning", "info")
        create_mlp(client, made[2])
        eventually(lambda: told(made[2]))  # lines keep their order
        assert [told(name) for name in made] == [True, False, True]
        for name in made:
            client.delete_pipeline(name)


def test_reflection_lists_and_describes_every_service(channel: grpc.Channel) -> None:
    database = ProtoReflectionDescriptorDatabase(channel)
    assert set(database.get_services()) >= SERVICES
    pool = descriptor_pool.DescriptorPool(database)
    work = pool.FindServiceByName("penstock.v1.WorkService")
    assert [method.name for method in work.methods] == [
        "Infer",
        "Evaluate",
        "Forward",
        "Backward",
        "ForwardBackward",
        "OptimizerStep",
        "TrainStep",
        "StreamWork",
    ]
    assert pool.FindServiceByName("inference.GRPCInferenceService").methods_by_name["ModelInfer"]
    assert pool.FindMessageTypeByName("penstock.v1.Outcome").fields_by_name["gradient_norm"]


def test_server_information(daemon: Daemon, client: penstock.Client) -> None:
    info = client.server_info()
    assert info.version and info.epoch >= 1 and info.state == "ready"
    assert [device.name for device in info.devices] == ["cpu:0", "cpu:1"]
    assert {"mlp", "gpt"} <= set(info.models) and {"gpipe", "1f1b"} <= set(info.schedules)
    assert {"sgd", "adamw"} <= set(info.optimizers) and {"cross_entropy", "mean_squared_error"} <= set(info.losses)
    assert info.api_address == daemon.address and info.metrics_address == daemon.metrics_address


def test_a_retry_gets_the_first_answer(daemon: Daemon, client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    raw = Raw(daemon.address)
    request = train(pipeline.name)
    first = raw.call("TrainStep", request)
    state = state_of(pipeline)
    for _ in range(3):
        again = raw.call("TrainStep", request)
        assert again.outcome.handle.name == first.outcome.handle.name
        assert again.outcome.handle.outcome == first.outcome.handle.outcome
    assert pipeline.refresh().step == 1
    assert not differing(state_of(pipeline), state)
    other = train(pipeline.name, request_id=request.request_id, learning_rate=0.5)
    refused(lambda: raw.call("TrainStep", other), reason="REQUEST_ID_REUSED", value=request.request_id)
    # How to answer is no part of what was asked.
    patient = work_pb2.TrainStepRequest()
    patient.CopyFrom(request)
    patient.ClearField("reply")
    assert raw.call("TrainStep", patient).outcome.handle.name == first.outcome.handle.name
    # Another caller's ids are its own.
    stranger = Raw(daemon.address, "stranger")
    assert stranger.call("TrainStep", request).outcome.handle.outcome.step == 2
    stranger.close()
    raw.close()


def test_retries_at_the_same_time_join_the_first_attempt(daemon: Daemon, client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    request = train(pipeline.name)
    answers: list[str] = []
    start = threading.Barrier(8)

    def call() -> None:
        raw = Raw(daemon.address)
        start.wait()
        answers.append(raw.call("TrainStep", request).outcome.handle.name)
        raw.close()

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8 and len(set(answers)) == 1
    assert pipeline.refresh().step == 1


def test_a_refusal_is_not_remembered(daemon: Daemon, client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    raw = Raw(daemon.address)
    request = train(pipeline.name, expected_state="stale")
    refused(lambda: raw.call("TrainStep", request), grpc.StatusCode.FAILED_PRECONDITION, "STATE_MISMATCH")
    request.expected_state = ""
    assert raw.call("TrainStep", request).outcome.handle.outcome.step == 1
    raw.close()


def test_retries_of_pipelines_and_checkpoints(daemon: Daemon, client: penstock.Client) -> None:
    raw = Raw(daemon.address)
    spec = create_mlp(client).message.spec
    create = pipeline_pb2.CreatePipelineRequest(pipeline_id="again", spec=spec, request_id=request_id())
    raw.call("CreatePipeline", create)
    assert raw.call("CreatePipeline", create).name == "pipelines/again"
    pipeline = client.pipeline("again")
    pipeline.train_step(*mlp_batch(0))
    save = state_pb2.SaveCheckpointRequest(pipeline=pipeline.name, checkpoint_id="one", request_id=request_id())
    first = raw.unary("StateService/SaveCheckpoint", save, state_pb2.Checkpoint)
    assert raw.unary("StateService/SaveCheckpoint", save, state_pb2.Checkpoint) == first
    delete = pipeline_pb2.DeletePipelineRequest(name=pipeline.name, request_id=request_id())
    raw.call("DeletePipeline", delete)
    raw.call("DeletePipeline", delete)
    with pytest.raises(penstock.PenstockError):
        client.pipeline("again")
    raw.close()


def test_a_retry_of_infer_gives_the_same_handle(daemon: Daemon, client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    raw = Raw(daemon.address)
    request = infer(pipeline.name, request_id=request_id())
    assert raw.call("Infer", request).outputs.handle.name == raw.call("Infer", request).outputs.handle.name
    raw.close()


def test_the_state_token_fences(client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    inputs, target = mlp_batch(0)
    first = pipeline.train_step(inputs, target)
    second = pipeline.train_step(inputs, target, expected_state=first.state_token)
    with pytest.raises(penstock.PenstockError) as raised:
        pipeline.train_step(inputs, target, expected_state=first.state_token)
    assert raised.value.reason == "STATE_MISMATCH"
    assert pipeline.refresh().state_token == second.state_token and pipeline.message.step == 2


def test_handles_live_as_their_owner_says(client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    inputs, _ = mlp_batch(0)
    handles = [pipeline.submit_infer(inputs).wait(30) for _ in range(5)]
    assert {handle.name for handle in pipeline.handles()} == {handle.name for handle in handles}
    expiry = handles[0].message.expire_time.ToNanoseconds()
    handles[0].renew(300)
    assert handles[0].message.expire_time.ToNanoseconds() > expiry + 200 * 10**9
    handles[0].renew(5)
    assert handles[0].message.expire_time.ToNanoseconds() > expiry + 200 * 10**9, "a renewal shortened the lease"
    assert handles[0].cancel() == "NOT_CANCELLABLE"
    assert pipeline.statistics().handles == 5
    pipeline.release(handles)
    assert pipeline.handles() == [] and pipeline.statistics().handles == 0
    assert pipeline.statistics().handle_bytes == 0


def test_statistics_come_at_their_interval(client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    updates = list(pipeline.watch_statistics(interval=0.1, max_updates=5))
    assert len(updates) == 5
    times = [update.time.ToNanoseconds() for update in updates]
    # One that was held up does not move the next one: only all together take their time.
    assert times == sorted(times) and times[-1] - times[0] >= 0.2e9
    with pytest.raises(penstock.PenstockError) as raised:
        next(pipeline.watch_statistics(interval=0.01))
    assert raised.value.reason == "FIELD_INVALID" and raised.value.values["field"] == "interval"


def test_delete_waits_for_accepted_work(client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    pending = [pipeline.submit_train_step(*mlp_batch(step)) for step in range(5)]
    assert [handle.message.kind for handle in pending] == [handle_pb2.HANDLE_KIND_OUTCOME] * 5
    pipeline.delete()
    with pytest.raises(penstock.PenstockError) as raised:
        pipeline.infer(mlp_batch(0)[0])
    assert raised.value.reason == "PIPELINE_NOT_FOUND"
