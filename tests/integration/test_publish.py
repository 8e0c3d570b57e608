"""PublishCheckpoint: inference sees a checkpoint while training goes on, until the next one, or the live weights again."""

from __future__ import annotations

import os
import pathlib
import subprocess
import threading
from collections.abc import Iterator

import grpc
import penstock
import pytest
import tritonclient.grpc as triton
from penstock.v1 import state_pb2
from tritonclient.utils import InferenceServerException

from conftest import QUICK_DRAIN, StartDaemon
from daemon_process import Daemon
from raw_calls import INVALID, Raw, refused
from small_models import create_gpt, create_mlp, differing, fresh_name, gpt_batch, mlp_batch, request_id, state_of

PENSTOCK = os.environ.get("PENSTOCK", "penstock")
FAILED = grpc.StatusCode.FAILED_PRECONDITION
PROBE = mlp_batch(99)[0]


@pytest.fixture
def raw(daemon: Daemon) -> Iterator[Raw]:
    one = Raw(daemon.address)
    yield one
    one.close()


def answer_of(pipeline: penstock.Pipeline) -> bytes:
    return pipeline.infer(PROBE)["output"].tobytes()


def saved_steps(pipeline: penstock.Pipeline, steps: int) -> list[bytes]:
    """Trains, saves each step as s1, s2 and so on, and returns what the live weights answer after each."""
    answers = []
    for step in range(1, steps + 1):
        pipeline.train_step(*mlp_batch(step))
        pipeline.save_checkpoint(f"s{step}")
        answers.append(answer_of(pipeline))
    assert len(set(answers)) == steps
    return answers


@pytest.mark.parametrize("changes", [{}, {"batch_rows": 16}, {"optimizer": "sgd", "optimizer_options": {"momentum": 0.9}}, {"stages": 1}])
def test_inference_is_that_of_the_checkpoint_bit_for_bit_while_training_goes_on(client: penstock.Client, changes: dict[str, object]) -> None:
    pipeline, kept = create_mlp(client, **changes), create_mlp(client, **changes)
    answers = saved_steps(pipeline, 2)
    now = pipeline.publish("s1").published
    assert now.checkpoint == f"{pipeline.name}/checkpoints/s1" and (now.step, now.version) == (1, "2")
    assert now.publish_time.seconds > 0 and not now.HasField("error")
    for step in (3, 4, 5):
        pipeline.train_step(*mlp_batch(step))
        assert answer_of(pipeline) == answers[0]
    assert pipeline.refresh().published.step == 1 and pipeline.message.step == 5
    assert pipeline.publish("s2").published.version == "3"
    assert answer_of(pipeline) == answers[1]
    assert not pipeline.publish(None).HasField("published")
    for step in range(1, 6):
        kept.train_step(*mlp_batch(step))
    assert not differing(state_of(kept), state_of(pipeline)), "training knew nothing of it"
    assert answer_of(pipeline) == answer_of(kept)


def test_evaluation_and_forward_see_the_live_weights(client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    saved_steps(pipeline, 1)
    pipeline.train_step(*mlp_batch(2))
    loss = pipeline.evaluate(*mlp_batch(5)).loss
    output = pipeline.forward(PROBE)
    expected = output.outputs.fetch()["output"].tobytes()
    output.graph.release()
    pipeline.publish("s1")
    assert pipeline.evaluate(*mlp_batch(5)).loss == loss
    output = pipeline.forward(PROBE)
    assert output.outputs.fetch()["output"].tobytes() == expected
    output.graph.release()


def test_no_call_fails_and_no_answer_is_a_mixture_under_load(client: penstock.Client, daemon: Daemon) -> None:
    """Two threads infer, one trains, and twenty publications come; each answer is that of one checkpoint."""
    pipeline = create_gpt(client, optimizer_options={"learning_rate": 0.01})
    probe = gpt_batch(100, 2)[0]
    right = []
    for step in range(4):
        pipeline.train_step(*gpt_batch(step))
        pipeline.save_checkpoint(f"s{step}")
        right.append(pipeline.infer(probe)["logits"].tobytes())
    pipeline.publish("s0")
    stop = threading.Event()
    failures: list[BaseException] = []
    seen: list[set[bytes]] = [set(), set()]
    steps = [4]

    def infer(index: int) -> None:
        with penstock.Client(daemon.address) as other:
            same = other.pipeline(pipeline.name)
            while not stop.is_set():
                try:
                    seen[index].add(same.infer(probe)["logits"].tobytes())
                except BaseException as error:  # noqa: BLE001
                    failures.append(error)
                    return

    def train() -> None:
        with penstock.Client(daemon.address) as other:
            same = other.pipeline(pipeline.name)
            while not stop.is_set():
                try:
                    steps[0] = same.train_step(*gpt_batch(steps[0])).step
                except BaseException as error:  # noqa: BLE001
                    failures.append(error)
                    return

    threads = [threading.Thread(target=infer, args=(0,)), threading.Thread(target=infer, args=(1,)), threading.Thread(target=train)]
    for thread in threads:
        thread.start()
    for number in range(20):
        before = steps[0]
        assert pipeline.publish(f"s{number % 4}").published.version == str(number + 3)
        while not failures and steps[0] == before:
            stop.wait(0.01)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
    assert (seen[0] | seen[1]) <= set(right) and len(seen[0] | seen[1]) > 1
    alone = create_gpt(client, optimizer_options={"learning_rate": 0.01})
    for step in range(steps[0]):
        alone.train_step(*gpt_batch(step))
    assert not differing(state_of(alone), state_of(pipeline))


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_it_outlives_the_daemon(start_daemon: StartDaemon, end: str) -> None:
    daemon = start_daemon(*QUICK_DRAIN)
    with penstock.Client(daemon.address) as client:
        name = fresh_name("published")
        pipeline = create_mlp(client, name)
        answers = saved_steps(pipeline, 3)
        pipeline.publish("s1")
        pipeline.train_step(*mlp_batch(7))
        getattr(daemon, end)()
        daemon.start()
        again = client.pipeline(name)
        assert (again.message.published.step, again.message.published.version, again.message.step) == (1, "2", 4)
        assert answer_of(again) == answers[0]
        with pytest.raises(penstock.PenstockError, match="CHECKPOINT_IN_USE"):
            again.delete_checkpoint("s1")
        assert again.publish("s2").published.version == "3"
        again.publish(None)
        getattr(daemon, end)()
        daemon.start()
        again = client.pipeline(name)
        assert not again.message.HasField("published") and again.message.step == 4
        assert answer_of(again) not in answers
        assert again.publish("s3").published.version == "4"
        assert answer_of(again) == answers[2]


def test_killed_at_any_moment_it_is_the_old_one_or_the_new_one(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(*QUICK_DRAIN)
    with penstock.Client(daemon.address) as client:
        name = fresh_name("killed")
        pipeline = create_mlp(client, name)
        answers = saved_steps(pipeline, 2)
        pipeline.publish("s1")
        delays = [0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12]
        for number, delay in enumerate(delays):
            wanted = number % 2  # s2 and s1 in turn
            caller = threading.Thread(target=publish_and_forget, args=(daemon.address, name, f"s{2 - wanted}"))
            caller.start()
            threading.Event().wait(delay)
            daemon.kill()
            caller.join()
            daemon.start()
            now = client.pipeline(name).message.published
            assert now.step in (1, 2) and not now.HasField("error")
            assert answer_of(client.pipeline(name)) == answers[now.step - 1]


def publish_and_forget(address: str, name: str, checkpoint: str) -> None:
    raw = Raw(address)
    try:
        raw.call("PublishCheckpoint", publication(f"pipelines/{name}", checkpoint))
    except penstock.PenstockError:
        pass
    finally:
        raw.close()


def test_one_that_is_damaged_at_a_restart_is_told_and_answers_nothing(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(*QUICK_DRAIN)
    with penstock.Client(daemon.address) as client:
        name = fresh_name("damaged")
        pipeline = create_mlp(client, name)
        saved_steps(pipeline, 1)
        pipeline.train_step(*mlp_batch(2))
        expected = answer_of(pipeline)
        pipeline.publish("s1")
        daemon.stop()
        folder = pathlib.Path(daemon.state_dir) / "pipelines" / name / "checkpoints" / "s1"
        with open(folder / "state.safetensors", "r+b") as file:
            file.seek(-3, os.SEEK_END)
            file.write(b"\x7f")
        daemon.start()
        again = client.pipeline(name)
        assert again.message.step == 2
        with triton.InferenceServerClient(daemon.address) as other:
            assert infer_version(other, name, "1") == ("1", expected)
        published = again.message.published
        assert published.step == 1 and "CHECKPOINT_CORRUPT" in str(published.error)
        with pytest.raises(penstock.PenstockError, match="CHECKPOINT_CORRUPT"):
            again.infer(PROBE)
        with triton.InferenceServerClient(daemon.address) as other:
            assert other.is_model_ready(name, "1") and not other.is_model_ready(name)
        assert again.train_step(*mlp_batch(3)).step == 3, "training knows nothing of it"
        again.publish(None)
        assert answer_of(again) not in (expected, b"")


def test_a_published_checkpoint_stays(client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    saved_steps(pipeline, 1)
    pipeline.save_checkpoint("turn-1", keep=1)
    pipeline.publish("turn-1")
    for call in (lambda: pipeline.delete_checkpoint("turn-1"), lambda: pipeline.save_checkpoint("turn-1", replace=True)):
        with pytest.raises(penstock.PenstockError, match="CHECKPOINT_IN_USE"):
            call()
    for number in (2, 3):
        pipeline.train_step(*mlp_batch(number))
        pipeline.save_checkpoint(f"turn-{number}", keep=1)
    names = {checkpoint.name.rsplit("/", 1)[1] for checkpoint in pipeline.list_checkpoints()}
    assert names == {"s1", "turn-1", "turn-3"}
    pipeline.publish("s1")
    pipeline.delete_checkpoint("turn-1")
    pipeline.publish(None)
    pipeline.delete_checkpoint("s1")


def infer_version(client: triton.InferenceServerClient, model: str, version: str = "") -> tuple[str, bytes]:
    given = triton.InferInput("input", PROBE.shape, "FP32")
    given.set_data_from_numpy(PROBE)
    answer = client.infer(model, [given], model_version=version)
    return answer.get_response().model_version, answer.as_numpy("output").tobytes()


def test_versions_of_the_open_inference_protocol(client: penstock.Client, daemon: Daemon) -> None:
    pipeline = create_mlp(client)
    name = pipeline.name.removeprefix("pipelines/")
    answers = saved_steps(pipeline, 2)
    with triton.InferenceServerClient(daemon.address) as other:
        assert infer_version(other, name) == infer_version(other, name, "1") == ("1", answers[1])
        pipeline.publish("s1")
        assert list(other.get_model_metadata(name).versions) == ["1", "2"]
        assert infer_version(other, name) == infer_version(other, name, "2") == ("2", answers[0])
        assert infer_version(other, name, "1") == ("1", answers[1])
        assert other.is_model_ready(name) and other.is_model_ready(name, "1") and other.is_model_ready(name, "2")
        index = other.get_model_repository_index()
        assert [(one.version, one.state) for one in index.models if one.name == name] == [("1", "READY"), ("2", "READY")]
        pipeline.publish("s2")
        assert not other.is_model_ready(name, "2")
        with pytest.raises(InferenceServerException, match="there is 1, the live weights, and 3, the published ones, got 2"):
            infer_version(other, name, "2")
        pipeline.publish(None)
        assert list(other.get_model_metadata(name).versions) == ["1"]
        with pytest.raises(InferenceServerException, match="there is 1, got 3"):
            infer_version(other, name, "3")


def test_memory_is_that_of_before_once_nothing_is_published(client: penstock.Client, daemon: Daemon) -> None:
    pipeline = create_mlp(client)
    saved_steps(pipeline, 2)

    def reserved() -> float:
        return daemon.metrics().sum("penstock_memory_reserved_bytes", **{"class": "pipelines"})

    before = reserved()
    pipeline.publish("s1")
    published = reserved()
    assert before < published <= 2.1 * before
    for number in range(6):
        pipeline.publish(f"s{1 + number % 2}")
    assert reserved() == pytest.approx(published, rel=0.05)
    pipeline.publish(None)
    assert reserved() == before


def test_a_change_of_the_plan_leaves_it(client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    answers = saved_steps(pipeline, 2)
    pipeline.publish("s1")
    now = pipeline.replan(stages=1, batch_rows=8)
    assert now.published.step == 1 and len(now.plan.stages) == 1
    assert answer_of(pipeline) == answers[0]
    pipeline.publish("s2")
    assert answer_of(pipeline) == answers[1]
    pipeline.publish(None)
    assert answer_of(pipeline) == answers[1]
    pipeline.delete()


def publication(pipeline: str, checkpoint: str, **fields: str) -> state_pb2.PublishCheckpointRequest:
    return state_pb2.PublishCheckpointRequest(**{"pipeline": pipeline, "checkpoint_id": checkpoint, "request_id": request_id(), **fields})


@pytest.mark.parametrize(
    ("fields", "code", "reason", "named"),
    [
        ({"checkpoint": "none"}, grpc.StatusCode.NOT_FOUND, "CHECKPOINT_NOT_FOUND", ""),
        ({"checkpoint": "No Name"}, INVALID, "NAME_INVALID", "checkpoint_id"),
        ({"checkpoint": "auto-1"}, INVALID, "FIELD_INVALID", "checkpoint_id"),
        ({"pipeline": "pipelines/nobody"}, grpc.StatusCode.NOT_FOUND, "PIPELINE_NOT_FOUND", ""),
        ({"pipeline": "gpt"}, INVALID, "NAME_INVALID", "pipeline"),
        ({"request_id": ""}, INVALID, "REQUEST_ID_MISSING", "request_id"),
    ],
)  # fmt: skip
def test_a_bad_publication_changes_nothing(
    raw: Raw, client: penstock.Client, fields: dict[str, str], code: grpc.StatusCode, reason: str, named: str
) -> None:
    pipeline = create_mlp(client)
    saved_steps(pipeline, 1)
    pipeline.publish("s1")
    refused(lambda: raw.call("PublishCheckpoint", publication(**{"pipeline": pipeline.name, "checkpoint": "s1", **fields})), code, reason, named)
    before = pipeline.message
    assert pipeline.refresh() == before


def test_a_checkpoint_of_another_model_is_refused(client: penstock.Client) -> None:
    name = fresh_name("other")
    first = create_mlp(client, name)
    saved_steps(first, 1)
    first.delete()
    second = create_gpt(client, name)
    with pytest.raises(penstock.PenstockError, match="MODEL_MISMATCH"):
        second.publish("s1")
    assert not second.refresh().HasField("published")
    second.delete(purge=True)


def test_a_retry_gets_the_first_answer(raw: Raw, client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    saved_steps(pipeline, 2)
    request = publication(pipeline.name, "s1")
    first = raw.call("PublishCheckpoint", request)
    assert raw.call("PublishCheckpoint", request).published == first.published
    other = publication(pipeline.name, "s2", request_id=request.request_id)
    refused(lambda: raw.call("PublishCheckpoint", other), INVALID, "REQUEST_ID_REUSED")


def test_from_the_shell(client: penstock.Client, daemon: Daemon) -> None:
    pipeline = create_mlp(client)
    name = pipeline.name.partition("/")[2]
    answers = saved_steps(pipeline, 2)

    def penstock_of(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([PENSTOCK, "--server", daemon.address, *words], capture_output=True, text=True, timeout=120)

    done = penstock_of("checkpoint", "publish", name, "s1")
    assert done.returncode == 0 and "inference sees step 1, version 2" in done.stderr, done.stderr
    assert answer_of(pipeline) == answers[0]
    assert "Published s1  step 1, version 2" in penstock_of("pipeline", "get", name).stdout
    done = penstock_of("checkpoint", "publish", name, "--live")
    assert done.returncode == 0 and "live weights" in done.stderr, done.stderr
    assert answer_of(pipeline) == answers[1]


def test_calls_keep_what_was_published_when_they_came(client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    answers = saved_steps(pipeline, 2)
    pipeline.publish("s1")
    pending = [pipeline.submit_infer(PROBE) for _ in range(8)]
    pipeline.publish("s2")
    for one in pending:
        assert one.fetch()["output"].tobytes() == answers[0]
    assert answer_of(pipeline) == answers[1]
