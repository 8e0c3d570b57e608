"""The Open Inference Protocol by PyPI's client, as the examples of other servers use it: a model whose inputs and outputs
have names in capitals, its configuration, statistics, index, settings, and what is refused."""

from __future__ import annotations

import asyncio
import pathlib
import queue
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import penstock
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

import model_files
from conftest import QUICK_DRAIN
from daemon_process import Daemon, eventually
from small_models import create_mlp, mlp_batch

FIRST = np.arange(16, dtype=np.int32)[None]
SECOND = np.ones((1, 16), np.int32)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    root: pathlib.Path = tmp_path_factory.mktemp("models")
    (root / "simple.pt2").write_bytes(model_files.golden("simple.pt2"))
    with Daemon(tmp_path_factory.mktemp("daemon"), *QUICK_DRAIN, f"--model-root={root}").running() as shared:
        with penstock.Client(shared.address) as client:
            for name in ("simple", "simple_too"):
                client.create_pipeline(name, model="simple.pt2", stages=1, micro_batches=1)
        yield shared


@pytest.fixture
def open_client(daemon: Daemon) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(daemon.address) as client:
        yield client


def given(module: Any = triton, second: np.ndarray = SECOND) -> dict[str, Any]:
    inputs = [module.InferInput("INPUT0", [1, 16], "INT32"), module.InferInput("INPUT1", [1, 16], "INT32")]
    inputs[0].set_data_from_numpy(FIRST)
    inputs[1].set_data_from_numpy(second)
    outputs = [module.InferRequestedOutput("OUTPUT0"), module.InferRequestedOutput("OUTPUT1")]
    return {"inputs": inputs, "outputs": outputs}


def check(answer: Any) -> None:
    assert answer.as_numpy("OUTPUT0").tolist() == (FIRST + SECOND).tolist()
    assert answer.as_numpy("OUTPUT1").tolist() == (FIRST - SECOND).tolist()


def refused(call: Callable[[], Any], code: str, says: str) -> None:
    with pytest.raises(InferenceServerException) as raised:
        call()
    assert raised.value.status() == f"StatusCode.{code}" and says in raised.value.message(), raised.value


def test_inference_with_and_without_chosen_outputs(open_client: triton.InferenceServerClient) -> None:
    check(open_client.infer("simple", **given(), headers={"test": "1"}))
    check(open_client.infer("simple_too", given()["inputs"]))
    one = open_client.infer("simple", given()["inputs"], outputs=[triton.InferRequestedOutput("OUTPUT1")])
    assert one.as_numpy("OUTPUT0") is None and one.as_numpy("OUTPUT1").tolist() == (FIRST - SECOND).tolist()
    wrong = triton.InferInput("input0", [1, 16], "INT32")
    wrong.set_data_from_numpy(FIRST)
    refused(lambda: open_client.infer("simple", [wrong, given()["inputs"][1]]), "INVALID_ARGUMENT", "input0")
    refused(
        lambda: open_client.infer("simple", given()["inputs"], outputs=[triton.InferRequestedOutput("output0")]),
        "INVALID_ARGUMENT",
        "output0",
    )


def test_inference_by_callback_and_by_other_channels(daemon: Daemon, open_client: triton.InferenceServerClient) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    for _ in range(4):
        open_client.async_infer("simple", callback=lambda result, error: answers.put(error or result), **given())
    for _ in range(4):
        check(answers.get(timeout=60))
    keepalive = triton.KeepAliveOptions(2**31 - 1, 20000, False, 2)
    arguments = [("grpc.max_send_message_length", 1 << 20), ("grpc.dns_enable_srv_queries", 1)]
    for options in ({"keepalive_options": keepalive}, {"channel_args": arguments}):
        with triton.InferenceServerClient(daemon.address, **options) as client:
            check(client.infer("simple", **given()))

    async def by_aio() -> Any:
        async with triton_aio.InferenceServerClient(daemon.address) as client:
            return await client.infer("simple", **given(triton_aio))

    check(asyncio.run(by_aio()))


def test_a_stream_answers_each_request_in_its_turn(open_client: triton.InferenceServerClient) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    open_client.start_stream(callback=lambda result, error: answers.put(error or result))
    for number in range(40):
        open_client.async_stream_infer("simple", request_id=str(number), **given())
    open_client.async_stream_infer("wrong_model_name", request_id="wrong", **given())
    open_client.async_stream_infer("simple", request_id="last", **given(), sequence_id=7, sequence_start=True)
    open_client.async_stream_infer("simple_too", request_id="after", **given())
    for number in range(40):
        answer = answers.get(timeout=60)
        assert answer.get_response().id == str(number)
        check(answer)
    for says in ("wrong_model_name", "is reserved"):
        answer = answers.get(timeout=60)
        assert isinstance(answer, InferenceServerException) and says in answer.message(), answer
    answer = answers.get(timeout=60)
    assert answer.get_response().id == "after"
    check(answer)
    open_client.stop_stream()


def test_contents_by_type_and_what_may_not_go_with_them(daemon: Daemon) -> None:
    with grpc.insecure_channel(daemon.address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = service_pb2.ModelInferRequest(model_name="simple", id="my request id")
        for name, numbers in (("INPUT0", range(16)), ("INPUT1", [1] * 16)):
            one = request.inputs.add(name=name, datatype="INT32", shape=[1, 16])
            one.contents.int_contents[:] = numbers
        answer = stub.ModelInfer(request)
        assert answer.id == "my request id" and [output.name for output in answer.outputs] == ["OUTPUT0", "OUTPUT1"]
        assert np.frombuffer(answer.raw_output_contents[0], np.int32).tolist() == (FIRST + SECOND)[0].tolist()
        request.raw_input_contents.append(FIRST[:, :8].tobytes())
        with pytest.raises(grpc.RpcError) as raised:
            stub.ModelInfer(request)
        assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        words = "contents field must not be specified when using raw_input_contents for 'INPUT0' for model 'simple'"
        assert words in raised.value.details()


def test_metadata_and_configuration_have_the_authors_names(open_client: triton.InferenceServerClient) -> None:
    metadata = open_client.get_model_metadata("simple")
    config = open_client.get_model_config("simple").config
    assert (config.name, config.platform, config.backend, config.max_batch_size) == ("simple", "penstock", "penstock", 0)
    assert config.platform == metadata.platform
    for described, configured, names in [
        (metadata.inputs, config.input, ["INPUT0", "INPUT1"]),
        (metadata.outputs, config.output, ["OUTPUT0", "OUTPUT1"]),
    ]:
        assert [one.name for one in described] == [one.name for one in configured] == names
        assert [(one.datatype, list(one.shape)) for one in described] == [("INT32", [-1, 16])] * 2
        assert [(one.data_type, list(one.dims)) for one in configured] == [(8, [-1, 16])] * 2
    refused(lambda: open_client.get_model_config("wrong_model_name"), "NOT_FOUND", "wrong_model_name")
    refused(lambda: open_client.get_model_config("simple", "2"), "NOT_FOUND", "version")
    extensions = set(open_client.get_server_metadata().extensions)
    assert {"model_configuration", "model_repository", "statistics", "binary_tensor_data"} <= extensions


def test_statistics_count_rows_and_calls(client: penstock.Client, open_client: triton.InferenceServerClient) -> None:
    create_mlp(client, "counted")

    def times() -> Any:
        (only,) = open_client.get_inference_statistics("counted").model_stats
        return only

    assert times().last_inference == 0 and not times().batch_stats
    own = triton.InferInput("input", [3, mlp_batch(0)[0].shape[1]], "FP32")
    own.set_data_from_numpy(mlp_batch(0, rows=3)[0])
    try:
        for _ in range(2):
            open_client.infer("counted", [own])
        client.pipeline("counted").infer(mlp_batch(0, rows=5)[0])
        (counted,) = open_client.get_inference_statistics("counted").model_stats
        assert (counted.name, counted.version) == ("counted", "1")
        assert (counted.inference_count, counted.execution_count) == (11, 3)
        stats = counted.inference_stats
        assert (stats.success.count, stats.fail.count, stats.queue.count) == (3, 0, 3)
        assert stats.success.ns >= stats.queue.ns > 0
        eventually(lambda: len(times().batch_stats) == 2 and times().inference_stats.compute_output.count == 3)
        told = times()
        assert [(one.batch_size, one.compute_infer.count) for one in told.batch_stats] == [(3, 2), (5, 1)]
        stats = told.inference_stats
        assert stats.compute_infer.count == 3 and 0 < stats.compute_infer.ns <= stats.success.ns
        assert sum(one.compute_infer.ns for one in told.batch_stats) == stats.compute_infer.ns
        assert stats.compute_input.ns == 0
        assert abs(told.last_inference / 1000 - time.time()) < 60
        assert {one.name for one in open_client.get_inference_statistics().model_stats} == {
            "simple",
            "simple_too",
            "counted",
        }
    finally:
        client.pipeline("counted").delete(force=True, purge=True)
    refused(lambda: open_client.get_inference_statistics("counted"), "NOT_FOUND", "counted")


def test_the_index_and_what_loads(open_client: triton.InferenceServerClient) -> None:
    for index in (open_client.get_model_repository_index(), _ready(open_client)):
        assert [(one.name, one.version, one.state, one.reason) for one in index.models] == [
            ("simple", "1", "READY", ""),
            ("simple_too", "1", "READY", ""),
        ]
    open_client.load_model("simple")
    refused(lambda: open_client.load_model("wrong_model_name"), "NOT_FOUND", "failed to load")
    refused(lambda: open_client.load_model("simple", config="{}"), "UNIMPLEMENTED", "failed to load")
    refused(lambda: open_client.load_model("simple", config="{}", files={"file:a": b"a"}), "UNIMPLEMENTED", "parameters")
    refused(lambda: open_client.unload_model("wrong_model_name"), "NOT_FOUND", "failed to unload")
    open_client.unload_model("simple")
    (one,) = [one for one in open_client.get_model_repository_index().models if one.name == "simple"]
    assert (one.state, one.reason) == ("UNAVAILABLE", "unloaded") and not open_client.is_model_ready("simple")
    refused(lambda: open_client.infer("simple", **given()), "FAILED_PRECONDITION", "is unloaded")
    open_client.load_model("simple")
    check(open_client.infer("simple", **given()))
    assert open_client.is_model_ready("simple") and open_client.is_server_live()


def _ready(client: triton.InferenceServerClient) -> Any:
    return client._client_stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(ready=True))


def test_settings_are_read_only(open_client: triton.InferenceServerClient) -> None:
    assert list(open_client.get_trace_settings().settings["trace_level"].value) == ["OFF"]
    assert list(open_client.get_trace_settings("simple").settings["trace_level"].value) == ["OFF"]
    refused(lambda: open_client.get_trace_settings("wrong_model_name"), "NOT_FOUND", "wrong_model_name")
    settings = open_client.get_log_settings().settings
    assert settings["log_error"].bool_param and settings["log_info"].bool_param
    assert settings["log_verbose_level"].uint32_param == 0 and settings["log_format"].string_param == "text"
    level = {"trace_level": ["TIMESTAMPS"]}
    refused(lambda: open_client.update_trace_settings(settings=level), "UNIMPLEMENTED", "settings[trace_level]")
    told = "settings[log_info]: can't be set here; the page /logz of --admin-listen sets the level"
    refused(lambda: open_client.update_log_settings({"log_info": False}), "UNIMPLEMENTED", told)


def test_shared_memory_is_refused(open_client: triton.InferenceServerClient) -> None:
    for call in (
        open_client.get_system_shared_memory_status,
        open_client.get_cuda_shared_memory_status,
        open_client.unregister_system_shared_memory,
        open_client.unregister_cuda_shared_memory,
        lambda: open_client.register_system_shared_memory("a", "/a", 64),
        lambda: open_client.register_cuda_shared_memory("a", b"aGFuZGxl", 0, 64),
    ):
        refused(call, "UNIMPLEMENTED", "shared memory is not supported")
