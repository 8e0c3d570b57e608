"""UnloadPipeline and LoadPipeline: a pipeline that stands on disk alone goes on later as if nothing had happened."""

from __future__ import annotations

import os
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import penstock
import pytest
import tritonclient.grpc as triton
from penstock.v1 import pipeline_pb2, work_pb2
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from conftest import QUICK_DRAIN, WITHOUT_JOURNAL, StartDaemon
from daemon_process import Daemon
from raw_calls import Raw, refused
from small_models import create_gpt, create_mlp, differing, fresh_name, gpt_batch, mlp_batch, request_id, state_of

PENSTOCK = os.environ.get("PENSTOCK", "penstock")
FAILED = grpc.StatusCode.FAILED_PRECONDITION
PROBE = mlp_batch(99)[0]


def not_ready(call: Callable[[], object], says: str) -> None:
    with pytest.raises(penstock.PenstockError) as told:
        call()
    assert told.value.reason == "PIPELINE_NOT_READY" and says in str(told.value), told.value


def reserved(daemon: Daemon) -> float:
    return daemon.metrics().sum("penstock_memory_reserved_bytes", **{"class": "pipelines"})


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "adam", "dropout": 0.5},
        {"optimizer": "sgd", "optimizer_options": {"momentum": 0.9}, "stages": 1},
        {"batch_rows": 16},
    ],
)
def test_training_goes_on_bit_for_bit_as_in_one_that_was_never_unloaded(client: penstock.Client, changes: dict[str, Any]) -> None:
    pipeline, kept = create_mlp(client, **changes), create_mlp(client, **changes)
    for step in range(1, 7):
        losses = [one.train_step(*mlp_batch(step)).loss for one in (pipeline, kept)]
        assert losses[0] == losses[1], step
        if step in (2, 4):
            loaded, unloaded = pipeline.refresh(), pipeline.unload()
            assert unloaded.state == pipeline_pb2.PIPELINE_STATE_UNLOADED
            assert (unloaded.step, unloaded.state_token) == (step, loaded.state_token), "as it was saved"
            assert pipeline.load().step == step
            assert not differing(state_of(kept), state_of(pipeline))
    assert not differing(state_of(kept), state_of(pipeline))
    assert pipeline.infer(PROBE)["output"].tobytes() == kept.infer(PROBE)["output"].tobytes()


def test_one_that_was_never_trained_and_an_accumulation_that_is_open(client: penstock.Client) -> None:
    pipeline, kept = (create_gpt(client, dropout=0.1) for _ in range(2))
    before = pipeline.infer(gpt_batch(1)[0])["logits"].tobytes()
    pipeline.unload()
    pipeline.load()
    assert pipeline.infer(gpt_batch(1)[0])["logits"].tobytes() == before
    for one in (pipeline, kept):
        one.forward_backward(*gpt_batch(1))
    pipeline.unload()
    pipeline.load()
    for one in (pipeline, kept):
        one.forward_backward(*gpt_batch(2))
        one.optimizer_step()
    assert not differing(state_of(kept), state_of(pipeline))


def test_it_holds_nothing_and_work_is_told_how_to_load_it(client: penstock.Client, daemon: Daemon) -> None:
    empty = reserved(daemon)
    pipeline = create_mlp(client)
    name = pipeline.name.removeprefix("pipelines/")
    pipeline.train_step(*mlp_batch(1))
    result = pipeline.submit_infer(PROBE)
    expected = pipeline.infer(PROBE)["output"].tobytes()
    holds = reserved(daemon)
    assert holds > empty and daemon.metrics().select("penstock_step_number", pipeline=name)
    pipeline.unload()
    assert reserved(daemon) == empty
    assert not daemon.metrics().select("penstock_step_number", pipeline=name)
    for work in (lambda: pipeline.infer(PROBE), lambda: pipeline.train_step(*mlp_batch(2)), pipeline.read_parameters, lambda: pipeline.save_checkpoint("now")):
        not_ready(work, f"pipeline {name} is unloaded; ")
    told = refused(lambda: Raw(daemon.address).call("Infer", work_pb2.InferRequest(pipeline=pipeline.name)), FAILED, "PIPELINE_NOT_READY")
    assert f"LoadPipeline, or penstock pipeline load {name}, makes it ready again" in told.message
    assert client.pipeline(name).state == "UNLOADED"
    with urllib.request.urlopen(f"http://{daemon.admin_address}/statusz?format=json", timeout=60) as page:
        assert "unloaded" in page.read().decode()
    assert result.fetch()["output"].tobytes() == expected, "what it has given stays"
    # Twice is once.
    pipeline.unload()
    pipeline.load()
    assert pipeline.load().state == pipeline_pb2.PIPELINE_STATE_READY
    assert reserved(daemon) == holds
    assert pipeline.infer(PROBE)["output"].tobytes() == expected


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_restart_does_not_load_it_and_a_retry_changes_nothing(start_daemon: StartDaemon, end: str) -> None:
    daemon = start_daemon(*QUICK_DRAIN)
    with penstock.Client(daemon.address) as client:
        pipeline, kept = create_mlp(client, fresh_name("gone")), create_mlp(client, fresh_name("kept"))
        for one in (pipeline, kept):
            one.train_step(*mlp_batch(1))
        pipeline.save_checkpoint("s1")
        pipeline.publish("s1")
        raw = Raw(daemon.address)
        unload = pipeline_pb2.UnloadPipelineRequest(name=pipeline.name, request_id=request_id())
        raw.call("UnloadPipeline", unload)
        getattr(daemon, end)()
        daemon.start()
        assert raw.call("UnloadPipeline", unload).state == pipeline_pb2.PIPELINE_STATE_UNLOADED
        again = client.pipeline(pipeline.name)
        assert (again.message.step, again.message.published.step) == (1, 1) and again.message.state_token, "as it was saved"
        assert again.state == "UNLOADED" and again.message.spec.model == pipeline.message.spec.model
        not_ready(lambda: again.infer(PROBE), "is unloaded")
        load = pipeline_pb2.LoadPipelineRequest(name=pipeline.name, request_id=request_id())
        raw.call("LoadPipeline", load)
        getattr(daemon, end)()
        daemon.start()
        assert raw.call("LoadPipeline", load).state == pipeline_pb2.PIPELINE_STATE_READY
        assert raw.call("UnloadPipeline", unload).state == pipeline_pb2.PIPELINE_STATE_READY, "what was asked once is done once"
        assert client.pipeline(pipeline.name).message.published.version == "2"
        for one in (client.pipeline(pipeline.name), client.pipeline(kept.name)):
            one.train_step(*mlp_batch(2))
        assert not differing(state_of(client.pipeline(kept.name)), state_of(client.pipeline(pipeline.name)))
        raw.close()


def test_killed_at_any_moment_it_is_loaded_or_unloaded_and_its_state_is_whole(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(*QUICK_DRAIN)
    name = fresh_name("killed")
    with penstock.Client(daemon.address) as client:
        create_mlp(client, name).train_step(*mlp_batch(1))
        expected = state_of(client.pipeline(name))
    seen = set()
    for turn in range(16):
        with penstock.Client(daemon.address, retry_for=0) as client:
            pipeline = client.pipeline(name)
            change = pipeline.unload if pipeline.state == "READY" else pipeline.load

            def run() -> None:
                try:
                    change()
                except penstock.PenstockError:
                    pass

            thread = threading.Thread(target=run)
            thread.start()
            time.sleep(0.002 * turn)  # another moment each time
            daemon.kill()
            thread.join()
        daemon.start()
        with penstock.Client(daemon.address) as client:
            state = client.pipeline(name).state
            assert state in ("READY", "UNLOADED")
            seen.add(state)
            if state == "READY":
                assert not differing(expected, state_of(client.pipeline(name)))
    assert seen == {"READY", "UNLOADED"}


def test_deletion_while_unloaded_frees_the_name_and_purges(client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    name = pipeline.name.removeprefix("pipelines/")
    pipeline.train_step(*mlp_batch(1))
    pipeline.save_checkpoint("mine")
    pipeline.unload()
    assert [one.name.rpartition("/")[2] for one in pipeline.list_checkpoints()] == ["mine"]
    not_ready(lambda: pipeline.delete_checkpoint("mine"), "is unloaded")
    pipeline.delete(purge=True)
    with pytest.raises(penstock.PenstockError, match="PIPELINE_NOT_FOUND"):
        pipeline.load()
    again = create_mlp(client, name)
    assert again.message.step == 0 and not again.list_checkpoints()
    assert again.state == "READY"


def test_races_of_unload_load_and_delete_end_in_a_state(client: penstock.Client, daemon: Daemon) -> None:
    pipeline = create_mlp(client)
    pipeline.train_step(*mlp_batch(1))
    expected = state_of(pipeline)
    reasons: list[str] = []

    def repeat(change: str) -> None:
        with penstock.Client(daemon.address) as other:
            same = other.pipeline(pipeline.name)
            for _ in range(12):
                try:
                    getattr(same, change)()
                except penstock.PenstockError as error:
                    reasons.append(error.reason)

    threads = [threading.Thread(target=repeat, args=(change,)) for change in ("unload", "load", "unload", "load")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(reasons) <= {"PIPELINE_NOT_READY"}, reasons
    pipeline.load()
    assert not differing(expected, state_of(pipeline))
    pipeline.unload()
    loading = threading.Thread(target=pipeline.load)
    loading.start()
    with penstock.Client(daemon.address) as other:
        same = other.pipeline(pipeline.name)
        while True:
            try:
                same.delete(purge=True)
                break
            except penstock.PenstockError as error:
                assert error.reason == "PIPELINE_NOT_READY", error
        loading.join()
        with pytest.raises(penstock.PenstockError, match="PIPELINE_NOT_FOUND"):
            same.refresh()


def test_accepted_work_ends_first_under_load(client: penstock.Client, daemon: Daemon) -> None:
    """Each call that was accepted has its answer; the others are told."""
    pipeline = create_mlp(client)
    answer = pipeline.infer(PROBE)["output"].tobytes()
    told: list[str] = []
    wrong: list[bytes] = []

    def infer() -> None:
        with penstock.Client(daemon.address, retry_for=0) as other:
            same = other.pipeline(pipeline.name)
            while not told:
                try:
                    got = same.infer(PROBE)["output"].tobytes()
                    if got != answer:
                        wrong.append(got)
                except penstock.PenstockError as error:
                    told.append(error.reason)

    threads = [threading.Thread(target=infer) for _ in range(3)]
    for thread in threads:
        thread.start()
    pipeline.unload()
    for thread in threads:
        thread.join()
    assert not wrong and set(told) == {"PIPELINE_NOT_READY"}
    pipeline.load()


def test_what_refuses_an_unload_leaves_it_serving(client: penstock.Client, start_daemon: StartDaemon) -> None:
    pipeline = create_mlp(client)
    output = pipeline.forward(PROBE)
    with pytest.raises(penstock.PenstockError, match="GRAPH_OPEN"):
        pipeline.unload()
    assert pipeline.infer(PROBE)["output"].size > 0
    output.graph.release()
    pipeline.unload()
    pipeline.load()
    with penstock.Client(start_daemon(*WITHOUT_JOURNAL).address) as other:
        volatile = create_mlp(other)
        with pytest.raises(penstock.PenstockError, match="FEATURE_DISABLED.*without a journal"):
            volatile.unload()
        assert volatile.train_step(*mlp_batch(1)).step == 1
        volatile.load()


def test_one_that_does_not_fit_now_stays_unloaded(start_daemon: StartDaemon) -> None:
    large = {"options": {"layers": 4, "width": 512}, "batch_rows": 8}
    rows = np.ones((8, 512), np.float32)
    probe = start_daemon(*QUICK_DRAIN)
    with penstock.Client(probe.address) as client:
        create_mlp(client, "first", **large).train_step(rows, rows)
        needed = probe.metrics().sum("penstock_memory_reserved_bytes")
        one = reserved(probe)
    limited = start_daemon(*QUICK_DRAIN, f"--memory-limit={int((needed + one / 2) * 32 / 29)}")
    with penstock.Client(limited.address) as client:
        first = create_mlp(client, "first", **large)
        first.train_step(rows, rows)
        first.unload()
        second = create_mlp(client, "second", **large)
        with pytest.raises(penstock.PenstockError, match="HOST_MEMORY"):
            first.load()
        assert first.refresh().state == pipeline_pb2.PIPELINE_STATE_UNLOADED
        assert second.train_step(rows, rows).step == 1
        second.delete()
        assert first.load().step == 1
        assert first.train_step(rows, rows).step == 2


def test_the_command_line(client: penstock.Client, daemon: Daemon) -> None:
    pipeline = create_mlp(client)
    name = pipeline.name.removeprefix("pipelines/")

    def run(*words: str) -> str:
        done = subprocess.run([PENSTOCK, "--server", daemon.address, *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    assert f"unloaded; back: penstock pipeline load {name}" in run("pipeline", "unload", name)
    assert f"{name}  unloaded" in run("pipeline", "get", name)
    assert "loaded" in run("pipeline", "load", name)
    assert f"{name}  ready" in run("pipeline", "get", name)


def test_the_open_inference_protocol(client: penstock.Client, daemon: Daemon) -> None:
    pipeline = create_mlp(client)
    name = pipeline.name.removeprefix("pipelines/")
    given = triton.InferInput("input", list(PROBE.shape), "FP32")
    given.set_data_from_numpy(PROBE)
    with triton.InferenceServerClient(daemon.address) as other:
        before = other.infer(name, [given]).as_numpy("output").tobytes()
        other.unload_model(name)
        index = {one.name: (one.state, one.reason) for one in other.get_model_repository_index().models}
        assert index[name] == ("UNAVAILABLE", "unloaded")
        ready = other._client_stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(ready=True))
        assert name not in {one.name for one in ready.models}
        assert not other.is_model_ready(name) and other.is_server_ready()
        with pytest.raises(InferenceServerException, match=f"pipeline {name} is unloaded"):
            other.infer(name, [given])
        other.unload_model(name, unload_dependents=True)
        other.load_model(name)
        other.load_model(name)
        assert other.is_model_ready(name)
        assert other.infer(name, [given]).as_numpy("output").tobytes() == before
        for call, says in ((other.unload_model, "failed to unload: there is no pipeline none"), (other.load_model, "failed to load: there is no pipeline none")):
            with pytest.raises(InferenceServerException, match=says):
                call("none")


@pytest.mark.parametrize("method", ["UnloadPipeline", "LoadPipeline"])
def test_bad_requests(client: penstock.Client, daemon: Daemon, method: str) -> None:
    pipeline = create_mlp(client)
    message = getattr(pipeline_pb2, f"{method}Request")
    raw = Raw(daemon.address)
    refused(lambda: raw.call(method, message(name=pipeline.name)), grpc.StatusCode.INVALID_ARGUMENT, "REQUEST_ID_MISSING", "request_id")
    refused(lambda: raw.call(method, message(name="none", request_id=request_id())), grpc.StatusCode.INVALID_ARGUMENT, "NAME_INVALID", "name")
    refused(lambda: raw.call(method, message(name="pipelines/none", request_id=request_id())), grpc.StatusCode.NOT_FOUND, "PIPELINE_NOT_FOUND", "")
    raw.close()
