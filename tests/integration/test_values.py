"""Values that are no tensors, over gRPC, by the Python clients and by the command line: in, out, from call to call."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import subprocess
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import penstock
import penstock.aio
import pytest
import tritonclient.grpc as triton
from penstock import Layer, Plain, Whole
from penstock.errors import PenstockError
from penstock.v1 import handle_pb2, tensor_pb2, work_pb2
from tritonclient.utils import InferenceServerException

import daemon_process
from conftest import QUICK_DRAIN
from daemon_process import Daemon
from layer_lists import create, linear
from raw_calls import INVALID, ROWS, Raw, given, infer, refused, waiting
from small_models import WIDTH, create_mlp, differing, fresh_name, mlp_batch, request_id, state_of

LIBRARY = os.environ["PENSTOCK_TEST_LAYERS"]
PENSTOCK = pathlib.Path(daemon_process.BINARY).parents[1] / "client" / "cli" / "penstock"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """With layers that give values; it must live to the end and then exit with 0."""
    with Daemon(tmp_path_factory.mktemp("daemon"), *QUICK_DRAIN, f"--layer-library={LIBRARY}").running() as shared:
        yield shared


@pytest.fixture
def identity(client: penstock.Client) -> penstock.Pipeline:
    """Takes any values and gives them back."""
    return client.create_pipeline(fresh_name("identity"), model="identity", micro_batches=4, stages=1)


def values_model(client: penstock.Client, **changes: Any) -> penstock.Pipeline:
    return create(client, [linear("first"), Layer("test_values", "values")], **{"loss": "", **changes})


# --- out --------------------------------------------------------------------------------------------------------------


def test_what_is_no_tensor_is_a_list_of_its_micro_batches(identity: penstock.Pipeline) -> None:
    rows = np.arange(8, dtype=np.float32).reshape(8, 1)
    state = {"step": 3, "pair": (None, "x"), "list": [1.5, [True]]}
    answer = identity.infer({"x": rows, "none": None, "count": Plain(42), "word": "yes", "state": state})
    assert list(answer) == ["output0", "output1", "output2", "output3", "output4"]
    assert np.array_equal(answer["output0"], rows)
    assert answer["output1"] == [None] * 4 and answer["output2"] == [42] * 4 and answer["output3"] == ["yes"] * 4
    assert answer["output4"] == [state] * 4
    assert [type(one) for one in (*answer["output2"], answer["output4"][0]["pair"])] == [int] * 4 + [tuple]
    # The number of micro-batches is that which the rows make.
    assert identity.infer({"x": rows[:6], "none": None})["output1"] == [None] * 3
    assert identity.infer({"x": rows, "none": None}, micro_batches=1)["output1"] == [None]


@pytest.mark.parametrize("cut", [{}, {"balance": [1, 1]}], ids=["one stage", "two stages"])
@pytest.mark.parametrize("rows", [8, 4096])
def test_a_model_of_tensors_numbers_and_dictionaries(client: penstock.Client, rows: int, cut: dict[str, Any]) -> None:
    """With the reply, and by a fetch of what is too large for it."""
    pipeline = values_model(client, **cut)
    inputs, _ = mlp_batch(0, rows)
    answer = pipeline.infer(inputs)
    values = [answer[f"output{i}"] for i in range(4)]
    assert list(answer) == [f"output{i}" for i in range(4)]
    assert values[1] == [None] * 4 and values[2] == [0, 1, 2, 3]
    assert [one["rows"] for one in values[3]] == [rows // 4] * 4
    parts = np.concatenate([one["parts"][0] for one in values[3]])
    assert np.array_equal(parts, 3 * values[0]) and values[0].shape == (rows, WIDTH)
    handle = pipeline.submit_infer(inputs)
    fetched = handle.fetch()
    assert list(handle.message.values) == ["output1", "output2", "output3"]
    assert [one.name for one in handle.message.tensors] == ["output0", *(f"output3.{i}" for i in range(4))]
    assert handle.message.byte_size >= 2 * values[0].nbytes, "those inside of values are charged, too"
    assert fetched["output2"] == values[2] and np.array_equal(fetched["output3"][2]["parts"][0], parts[rows // 2 : rows * 3 // 4])
    handle.release()


def test_the_asyncio_client_has_the_same(daemon: Daemon) -> None:
    async def run() -> None:
        async with penstock.aio.Client(daemon.address) as client:
            pipeline = await client.create_pipeline(fresh_name("aio"), model="identity", micro_batches=2, stages=1)
            rows = np.ones((2, 1), np.float32)
            answer = await pipeline.infer({"x": rows, "y": {"a": [None, rows]}})
            assert answer["output1"][1]["a"][0] is None and np.array_equal(answer["output1"][1]["a"][1], rows)
            await pipeline.delete()

    asyncio.run(run())


@pytest.mark.parametrize("balance", [[2, 1], [1, 2], [1, 1, 1]], ids=str)
def test_a_tensor_in_a_dictionary_has_its_gradient_over_a_cut(client: penstock.Client, balance: list[int]) -> None:
    layers = [linear("first"), Layer("test_values", "values"), Layer("test_values_sum", "sum")]
    pipeline, whole = create(client, layers, balance=balance), create(client, layers, balance=[3])
    for step in range(3):
        batch = mlp_batch(step)
        assert pipeline.train_step(*batch).loss == whole.train_step(*batch).loss
    assert not differing(state_of(pipeline), state_of(whole))


@pytest.mark.parametrize("balance", [[2, 1], [1, 1, 1]], ids=str)
def test_a_list_over_a_cut_is_one_argument_with_gradients(client: penstock.Client, balance: list[int]) -> None:
    layers = [linear("first"), Layer("test_list", "list"), Layer("test_list_sum", "sum")]
    pipeline, whole = create(client, layers, balance=balance), create(client, layers)
    for step in range(3):
        batch = mlp_batch(step)
        assert pipeline.train_step(*batch).loss == whole.train_step(*batch).loss
    assert not differing(state_of(pipeline), state_of(whole))
    weights = pipeline.read_parameters()
    rows = mlp_batch(9)[0]
    wanted = 3 * (rows @ weights["first.weight"].T + weights["first.bias"])
    assert np.allclose(pipeline.infer(rows)["output"], wanted, rtol=1e-4, atol=1e-5)


def test_a_list_out_of_the_model_is_its_items_joined(client: penstock.Client) -> None:
    pipeline = create(client, [linear("first"), Layer("test_list", "list")], loss="")
    answer = pipeline.infer(mlp_batch(0)[0])
    assert list(answer) == ["output0", "output1"] and np.array_equal(answer["output1"], 2 * answer["output0"])


def test_outputs_of_training_steps(client: penstock.Client, identity: penstock.Pipeline) -> None:
    pipeline = values_model(client)
    forward = pipeline.forward(mlp_batch(0)[0])
    outputs = forward.outputs.fetch()
    assert outputs["output2"] == [0, 1, 2, 3]
    pipeline.backward(forward.graph, {"output0": np.ones((8, WIDTH), np.float32)})
    assert pipeline.optimizer_step().applied


# --- from call to call ------------------------------------------------------------------------------------------------


def test_results_are_inputs_of_further_calls(client: penstock.Client, identity: penstock.Pipeline) -> None:
    rows = np.arange(4, dtype=np.float32).reshape(4, 1)
    first = identity.submit_infer({"x": rows, "state": {"a": rows, "n": Plain(1).value}})
    second = identity.submit_infer({"x": (first, "output0"), "state": (first, "output1"), "part": [(first, "output1.0"), None]})
    answer = second.fetch()
    assert np.array_equal(answer["output0"], rows)
    states = answer["output1"]
    assert len(states) == 4 and all(len(state) == 4 for state in states), "a list of m, whole in each micro-batch"
    assert np.array_equal(states[3][0]["a"], rows) and states[0][0]["n"] == 1
    assert np.array_equal(answer["output2"][1][0], rows) and answer["output2"][1][1] is None
    # A handle of one result needs no name.
    only = identity.submit_infer({"x": rows})
    assert np.array_equal(identity.infer({"x": only})["output"], rows)
    with pytest.raises(PenstockError, match="must name one of the handle's 2 tensors") as ambiguous:
        identity.infer({"x": first})
    assert ambiguous.value.values["field"] == "inputs[0].handle.tensor"


def test_large_tensors_inside_of_values(identity: penstock.Pipeline) -> None:
    rows = np.ones((2, 1), np.float32)
    large = np.random.default_rng(0).random((700_000, 1), np.float32)
    answer = identity.infer({"x": rows, "cache": [large, None, (large[:1], "x")]})
    (one, two) = answer["output1"]
    assert np.array_equal(one[0], large) and np.array_equal(two[2][0], large[:1]) and two[2][1] == "x"


def test_more_tensors_than_an_upload_takes(identity: penstock.Pipeline) -> None:
    cache = [np.full((100, 100), number, np.float32) for number in range(66)]  # 2.6 MB: uploaded
    answer = identity.infer({"x": np.ones((2, 1), np.float32), "cache": Plain(cache)})
    for one in answer["output1"]:
        assert len(one) == 66 and all(np.array_equal(got, wanted) for got, wanted in zip(one, cache))


# --- whole tensors, other rows, no rows -------------------------------------------------------------------------------


def test_no_rows_give_no_rows(client: penstock.Client, identity: penstock.Pipeline) -> None:
    mlp = create_mlp(client)
    answer = mlp.infer(np.zeros((0, WIDTH), np.float32))
    assert answer["output"].shape == (0, WIDTH) and answer["output"].dtype == np.float32
    none = identity.infer({"x": np.zeros((0, 3), np.int64), "y": None})
    assert none["output0"].shape == (0, 3) and none["output1"] == [None] * 4, "as many pieces as asked for"
    gpt = client.create_pipeline(
        fresh_name("gpt"), model="gpt", options={"blocks": 1, "width": 8, "heads": 2, "sequence": 4, "vocab": 8}, stages=1,
        micro_batches=2, loss="cross_entropy",
    )
    assert gpt.infer(np.zeros((0, 4), np.int64))["logits"].shape == (0, 4, 8)
    empty = np.zeros((0, WIDTH), np.float32)
    for train in (
        lambda: mlp.train_step(empty, empty),
        lambda: mlp.forward_backward(empty, empty),
        lambda: mlp.forward(empty),
        lambda: mlp.evaluate(empty, empty),
    ):
        with pytest.raises(PenstockError, match="must have at least one row to train on") as failed:
            train()
        assert failed.value.reason == "TENSOR_SIGNATURE" and failed.value.values["field"] == "inputs[0].shape"
    x, y = mlp_batch(0)
    for train in (mlp.train_step, mlp.forward_backward, mlp.evaluate):
        with pytest.raises(PenstockError, match="inputs: at least one must be a tensor that is split into rows") as failed:
            train(Whole(x), y)
        assert failed.value.reason == "TENSOR_SIGNATURE" and failed.value.values["field"] == "inputs"
    assert mlp.train_step(x, y).step == 1, "nothing is left behind"


# --- what is refused --------------------------------------------------------------------------------------------------


def named(value: tensor_pb2.Value, name: str = "b") -> tensor_pb2.Input:
    return tensor_pb2.Input(name=name, value=value)


def nested(depth: int) -> tensor_pb2.Value:
    outer = tensor_pb2.Value()
    inner = outer
    for _ in range(depth - 1):
        inner = inner.list.items.add()
    inner.int_value = 1
    return outer


def repeated_key() -> tensor_pb2.Value:
    value = tensor_pb2.Value()
    for key in ("a", "b", "a"):
        value.dict.entries.add(name=key)
    return value


def with_handle(name: str, tensor: str = "") -> tensor_pb2.Value:
    value = tensor_pb2.Value()
    value.list.items.add().handle.CopyFrom(tensor_pb2.HandleTensor(handle=name, tensor=tensor))
    return value


@pytest.mark.parametrize(
    ("value", "reason", "field"),
    [
        (nested(17), "FIELD_INVALID", "inputs[1].value" + ".list.items[0]" * 16),
        (repeated_key(), "FIELD_INVALID", "inputs[1].value.dict.entries[2].name"),
        (tensor_pb2.Value(tensor=given().tensor), "FIELD_INVALID", "inputs[1].value.tensor"),
        (with_handle("nonsense"), "NAME_INVALID", "inputs[1].value.list.items[0].handle.handle"),
        (tensor_pb2.Value(string_value="x" * 65_537), "FIELD_INVALID", "inputs[1].value.string_value"),
    ],
    ids=["deep", "key", "tensor", "handle", "text"],
)
def test_bad_values_are_named(
    raw: Raw, identity: penstock.Pipeline, value: tensor_pb2.Value, reason: str, field: str
) -> None:
    request = infer(identity.name, given("a"), named(value))
    error = refused(lambda: raw.call("Infer", request), INVALID, reason)
    assert error.values["field"] == field, error.values
    assert len(error.values["value"]) < 300
    assert raw.call("Infer", infer(identity.name, given("a"), named(nested(16)))).outputs.handle.state == 2


def test_a_handle_inside_that_is_not_there(raw: Raw, identity: penstock.Pipeline) -> None:
    handle = raw.call("Infer", infer(identity.name, given("a"))).outputs.handle.name
    folder, number = handle.rsplit("/", 1)
    epoch = number.split("-")[0]
    earlier = f"{int(epoch, 16) - 1:08x}"
    for other, code, reason in (
        (f"{folder}/{epoch}-{'0' * 32}", grpc.StatusCode.NOT_FOUND, "HANDLE_NOT_FOUND"),
        (f"{folder}/{earlier}-{'0' * 32}", grpc.StatusCode.FAILED_PRECONDITION, "EPOCH_MISMATCH"),
    ):
        request = infer(identity.name, given("a"), named(with_handle(other)))
        error = refused(lambda: raw.call("Infer", request), code, reason)
        assert error.values["field"] == "inputs[1].value.list.items[0].handle" and error.values["handle"] == other
    request = infer(identity.name, given("a"), named(with_handle(handle, "nothing")))
    error = refused(lambda: raw.call("Infer", request), INVALID, "TENSOR_SIGNATURE")
    assert error.values["field"] == "inputs[1].value.list.items[0].handle.tensor"


def test_many_values_are_bounded(raw: Raw, client: penstock.Client, identity: penstock.Pipeline) -> None:
    rows = np.ones((4, 1), np.float32)
    ten_thousand = list(range(10_000))
    assert identity.infer({"x": rows, "y": Plain(ten_thousand)})["output1"] == [ten_thousand] * 4
    # Counted on the wire, before anything is parsed.
    value = tensor_pb2.Value()
    value.list.items.extend(tensor_pb2.Value(int_value=1) for _ in range(70_000))
    error = refused(lambda: raw.call("Infer", infer(identity.name, given("a"), named(value))), INVALID, "FIELD_INVALID")
    assert "must have at most 65536 entries" in error.message
    # Of the results, which are m times as many; text; and tensors.
    for given_value in (
        Plain(list(range(17_000))),
        Plain(["x" * 60_000] * 5),
        [np.full(1, i, np.float32) for i in range(60)] + [None],
    ):
        m = 20 if isinstance(given_value, list) else 4
        handle = identity.submit_infer({"x": np.ones((m, 1), np.float32), "y": given_value}, micro_batches=m)
        if isinstance(given_value, list):
            assert len(handle.fetch()["output1"]) == 20, "the same tensor in each micro-batch is one"
            continue
        with pytest.raises(PenstockError, match="values of a result may hold at most") as failed:
            handle.wait()
        assert failed.value.reason == "MESSAGE_TOO_LARGE" and failed.value.values["field"] == "outputs[output1]"
    # Of an input, which every micro-batch gets: 17,000 values 62 times are more than 2^20.
    for m, is_taken in ((61, True), (62, False)):
        handle = identity.submit_infer({"x": np.ones((m, 1), np.float32), "y": Plain([0] * 17_000)}, micro_batches=m)
        sentence = "values of a result may hold" if is_taken else "may hold at most 1048576 values for all micro-batches"
        with pytest.raises(PenstockError, match=sentence) as failed:
            handle.wait()
        assert failed.value.reason == "MESSAGE_TOO_LARGE"
    many = values_model(client).submit_infer(np.ones((1025, WIDTH), np.float32), micro_batches=1025)
    with pytest.raises(PenstockError, match="hold at most 1024 tensors inside of lists and dictionaries"):
        many.wait()
    assert identity.infer({"x": rows})["output"].shape == (4, 1)


def test_values_where_tensors_belong(client: penstock.Client) -> None:
    mlp = create_mlp(client)
    for value, kind in ((Plain([1]), "list"), ({"a": 1}, "dict"), (("x",), "tuple"), (None, "NoneType")):
        with pytest.raises(PenstockError, match=f"expected Tensor, but got {kind}") as failed:
            mlp.infer({"input": value})
        assert failed.value.reason == "WRONG_TYPE" and failed.value.values["field"] == "inputs[0]"
    with pytest.raises(PenstockError, match="target: expected Tensor, but got dict"):
        mlp.train_step(mlp_batch(0)[0], {"a": 1})


def test_a_fetch_of_one_value_and_with_an_offset(raw: Raw, identity: penstock.Pipeline) -> None:
    request = work_pb2.InferRequest(
        pipeline=identity.name, inputs=[given("a"), named(nested(2))], reply=waiting(), request_id=request_id()
    )
    name = raw.call("Infer", request).outputs.handle.name
    answers = raw.fetch(handle_pb2.FetchHandleRequest(name=name, tensor="output1"))
    assert [answer.WhichOneof("message") for answer in answers] == ["handle", "value"]
    assert len(answers[1].value.value.list.items) == 4
    bad = handle_pb2.FetchHandleRequest(name=name, tensor="output1", offset=1)
    error = refused(lambda: raw.fetch(bad), INVALID, "FIELD_INVALID", "tensor")
    assert error.values["value"] == "output1"


def test_the_open_protocol_carries_tensors_alone(daemon: Daemon, client: penstock.Client) -> None:
    with triton.InferenceServerClient(daemon.address) as open_client:

        def ask(pipeline: penstock.Pipeline, rows: np.ndarray) -> triton.InferResult:
            given = triton.InferInput("input", rows.shape, "FP32")
            given.set_data_from_numpy(rows)
            return open_client.infer(pipeline.name.removeprefix("pipelines/"), [given])

        sentence = r"outputs\[output1\]: expected Tensor, but got list, which this protocol does not carry"
        with pytest.raises(InferenceServerException, match=sentence):
            ask(values_model(client), np.ones((4, WIDTH), np.float32))
        assert ask(create_mlp(client), np.zeros((0, WIDTH), np.float32)).as_numpy("output").shape == (0, WIDTH)


# --- the command line -------------------------------------------------------------------------------------------------


def run(daemon: Daemon, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PENSTOCK, f"--server={daemon.address}", *arguments], capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def batch_file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "batch.safetensors"
    penstock.write_safetensors(
        path, {"x": np.arange(4, dtype=np.float32).reshape(4, 1), "table": np.full((2, 1), 7, np.int64)}, {}
    )
    return path


def test_infer_prints_json_and_writes_npz(
    daemon: Daemon, identity: penstock.Pipeline, batch_file: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    values = ["--value", 'flags={"a": [1, null], "b": 0.5}', "--value", "none=null"]
    command = ["infer", identity.name, "--input", str(batch_file), "--whole", "table", *values]
    printed = run(daemon, *command)
    assert printed.returncode == 0, printed.stderr
    wanted = {
        "output0": [[7]] * 8,  # in the order of the file: the widest types first
        "output1": [[0.0], [1.0], [2.0], [3.0]],
        "output2": [{"a": [1, None], "b": 0.5}] * 4,
        "output3": [None] * 4,
    }
    assert json.loads(printed.stdout) == wanted
    assert json.loads(run(daemon, "-o", "json", *command).stdout) == wanted
    written = run(daemon, *command, "--to", str(tmp_path / "out.npz"))
    assert written.returncode == 0 and "wrote 2 tensors" in written.stderr, written.stderr
    assert json.loads(written.stdout) == {name: wanted[name] for name in ("output2", "output3")}
    with np.load(tmp_path / "out.npz") as arrays:
        assert sorted(arrays) == ["output0", "output1"]
        assert arrays["output0"].dtype == np.int64 and arrays["output0"].tolist() == wanted["output0"]
        assert arrays["output1"].dtype == np.float32 and arrays["output1"].tolist() == wanted["output1"]
    piped = subprocess.run([PENSTOCK, f"--server={daemon.address}", *command, "--to", "-"], capture_output=True, timeout=60)
    assert piped.returncode == 0 and b"left out, for they are no tensors: output2, output3" in piped.stderr
    (tmp_path / "piped").write_bytes(piped.stdout)
    assert list(penstock.read_safetensors(tmp_path / "piped")) == ["output0", "output1"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--value", "x"], "--value: must be NAME=JSON, got x"),
        (["--value", "x=word"], "--value x: must be JSON, such as"),
        (["--value", "x=" + "w" * 100_000], "--value x: must be JSON, such as"),
        (["--value", "x=18446744073709551616000"], "--value x: must have integers of 64 bits"),
        (["--value", 'x={"a": 1, "a": 2}'], "--value x: has the name a twice"),
        (["--value", "x=9223372036854775808"], "--value x: must have integers of 64 bits"),
        (["--value", f"x={'[' * 17}{']' * 17}"], "--value x: must be nested at most 16 deep"),
    ],
)
def test_bad_values_end_the_command(
    daemon: Daemon, identity: penstock.Pipeline, arguments: list[str], sentence: str
) -> None:
    done = run(daemon, "infer", identity.name, *arguments)
    assert done.returncode == 2 and sentence in done.stderr, done.stderr
    assert len(done.stderr) < 1000


def test_whole_must_name_a_tensor(daemon: Daemon, identity: penstock.Pipeline, batch_file: pathlib.Path) -> None:
    done = run(daemon, "infer", identity.name, "--input", str(batch_file), "--whole", "nothing")
    assert done.returncode == 2 and "--whole: must name a tensor of --input, got nothing" in done.stderr


def test_handles_with_values_are_told_and_fetched(
    daemon: Daemon, identity: penstock.Pipeline, tmp_path: pathlib.Path
) -> None:
    handle = identity.submit_infer({"x": ROWS, "n": Plain(3)}).wait()
    done = run(daemon, "handle", "fetch", handle.name, "--to", str(tmp_path / "x.npz"))
    assert done.returncode == 0 and json.loads(done.stdout) == {"output1": [3] * 4}, done.stderr
    with np.load(tmp_path / "x.npz") as arrays:
        assert np.array_equal(arrays["output0"], ROWS)
    listed = json.loads(run(daemon, "-o", "json", "handle", "get", handle.name).stdout)
    assert listed["values"] == ["output1"]


def test_whole_tensors_of_other_rows_by_both_clients(identity: penstock.Pipeline) -> None:
    table = np.arange(3, dtype=np.int64)
    answer = identity.infer({"x": np.zeros((4, 1), np.float32), "table": Whole(table)})
    assert np.array_equal(answer["output1"], np.tile(table, 4))
