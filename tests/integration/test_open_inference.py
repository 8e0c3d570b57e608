"""The Open Inference Protocol, spoken by an unchanged client from PyPI while the pipeline trains."""

from __future__ import annotations

import threading

import numpy as np
import penstock
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from daemon_process import Daemon
from small_models import GPT, create_gpt, create_mlp, gpt_batch, mlp_batch


@pytest.fixture
def open_client(daemon: Daemon) -> triton.InferenceServerClient:
    with triton.InferenceServerClient(daemon.address) as client:
        yield client


def infer(client: triton.InferenceServerClient, model: str, name: str, array: np.ndarray, output: str) -> np.ndarray:
    datatype = {"float32": "FP32", "int64": "INT64"}[array.dtype.name]
    given = triton.InferInput(name, array.shape, datatype)
    given.set_data_from_numpy(array)
    answer = client.infer(model, [given], outputs=[triton.InferRequestedOutput(output)], request_id="id-1")
    assert answer.get_response().id == "id-1" and answer.get_response().model_name == model
    return answer.as_numpy(output)


def test_the_server_is_live_and_ready(open_client: triton.InferenceServerClient) -> None:
    assert open_client.is_server_live() and open_client.is_server_ready()
    metadata = open_client.get_server_metadata()
    assert metadata.name and metadata.version


def test_a_model_is_ready_and_described(client: penstock.Client, open_client: triton.InferenceServerClient) -> None:
    name = create_gpt(client).name.removeprefix("pipelines/")
    assert open_client.is_model_ready(name) and open_client.is_model_ready(name, "1")
    assert not open_client.is_model_ready("nobody")
    metadata = open_client.get_model_metadata(name)
    assert metadata.name == name and list(metadata.versions) == ["1"]
    own = client.pipeline(name).signature
    for described, signed, kind in [(metadata.inputs, own.inputs, "tokens"), (metadata.outputs, own.outputs, "logits")]:
        (one,), (other,) = described, signed
        assert one.name == other.name == kind
        assert one.datatype == {"tokens": "INT64", "logits": "FP32"}[kind]
        assert list(one.shape) == list(other.shape) and one.shape[0] == -1
    assert list(metadata.outputs[0].shape)[-1] == GPT["vocab"]


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_the_same_answer_as_infer(
    client: penstock.Client, open_client: triton.InferenceServerClient, rows: int
) -> None:
    gpt, mlp = create_gpt(client), create_mlp(client)
    tokens, inputs = np.ascontiguousarray(gpt_batch(rows, rows)[0]), mlp_batch(rows, rows)[0]
    logits = infer(open_client, gpt.name.removeprefix("pipelines/"), "tokens", tokens, "logits")
    assert logits.tobytes() == gpt.infer(tokens)["logits"].tobytes()
    output = infer(open_client, mlp.name.removeprefix("pipelines/"), "input", inputs, "output")
    assert output.tobytes() == mlp.infer(inputs)["output"].tobytes()


def test_inference_while_the_pipeline_trains(
    daemon: Daemon, client: penstock.Client, open_client: triton.InferenceServerClient
) -> None:
    """Each answer equals that of the weights after one of the steps, and never a mixture of two."""
    pipeline = create_gpt(client, dropout=0.1, optimizer_options={"learning_rate": 0.01})
    name = pipeline.name.removeprefix("pipelines/")
    probe = np.ascontiguousarray(gpt_batch(100)[0])
    steps = 12

    # The same steps on a pipeline of its own tell what each version of the weights answers.
    twin = create_gpt(client, dropout=0.1, optimizer_options={"learning_rate": 0.01})
    expected = [twin.infer(probe)["logits"].tobytes()]
    for step in range(steps):
        twin.train_step(*gpt_batch(step))
        expected.append(twin.infer(probe)["logits"].tobytes())
    assert len(set(expected)) == steps + 1

    failures: list[BaseException] = []

    def train() -> None:
        try:
            with penstock.Client(daemon.address) as own:
                trained = own.pipeline(name)
                for step in range(steps):
                    trained.train_step(*gpt_batch(step))
        except BaseException as error:
            failures.append(error)

    trainer = threading.Thread(target=train)
    seen = []
    trainer.start()
    while trainer.is_alive():
        seen.append(expected.index(infer(open_client, name, "tokens", probe, "logits").tobytes()))
    trainer.join()
    seen.append(expected.index(infer(open_client, name, "tokens", probe, "logits").tobytes()))
    assert not failures, failures
    assert seen == sorted(seen), f"answers went back to older weights: {seen}"
    assert seen[-1] == steps
    assert pipeline.infer(probe)["logits"].tobytes() == expected[-1]


def test_what_is_wrong_is_refused(client: penstock.Client, open_client: triton.InferenceServerClient) -> None:
    name = create_mlp(client).name.removeprefix("pipelines/")
    good = mlp_batch(0)[0]
    with pytest.raises(InferenceServerException) as raised:
        infer(open_client, "nobody", "input", good, "output")
    assert raised.value.status() == "StatusCode.NOT_FOUND"
    for array, given, output in [
        (good[:, :5], "input", "output"),  # shape
        (good.astype(np.int64), "input", "output"),  # type
        (good, "inputs", "output"),  # name
        (good, "input", "outputs"),
    ]:
        with pytest.raises(InferenceServerException) as raised:
            infer(open_client, name, given, np.ascontiguousarray(array), output)
        assert raised.value.status() == "StatusCode.INVALID_ARGUMENT", raised.value
    with pytest.raises(InferenceServerException) as raised:
        open_client.get_model_metadata("nobody")
    assert raised.value.status() == "StatusCode.NOT_FOUND"
    assert infer(open_client, name, "input", good, "output").shape == good.shape
