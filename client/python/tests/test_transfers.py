"""Arrays on their way to the daemon and back, over broken streams and damaged chunks."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import penstock
import pytest
from fake_daemon import FakeDaemon

from penstock.v1 import handle_pb2, tensor_pb2


def test_a_large_result_is_fetched_in_chunks(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    rows = np.random.default_rng(0).random((100_000, 4), np.float32)
    assert np.array_equal(pipeline.infer(rows)["output"], 2 * rows)
    assert daemon.requests["FetchHandle"]


def test_a_broken_fetch_goes_on_where_it_was(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    rows = np.random.default_rng(0).random((100_000, 4), np.float32)
    daemon.break_fetch_at = 128 << 10
    assert np.array_equal(pipeline.infer(rows)["output"], 2 * rows)
    assert [request.offset for request in daemon.requests["FetchHandle"]] == [0, 128 << 10]


@pytest.mark.parametrize("breaks_after", [0, 1])
@pytest.mark.parametrize("rows", [None, np.arange(3, dtype=np.float32)], ids=["values alone", "a tensor after them"])
def test_a_fetch_that_breaks_around_the_last_value_goes_on(
    pipeline: penstock.Pipeline, daemon: FakeDaemon, rows: np.ndarray | None, breaks_after: int
) -> None:
    count = tensor_pb2.NamedValue(name="count", value=tensor_pb2.Value(int_value=3))
    handle = daemon.new_handle(handle_pb2.HANDLE_KIND_VALUE, {} if rows is None else {"rows": rows}, [count])
    daemon.break_fetch_after_values = breaks_after
    fetched = penstock.ValueHandle(pipeline._connection, handle_pb2.Result(handle=handle)).fetch()
    assert fetched.pop("count") == 3 and daemon.break_fetch_after_values is None
    assert list(fetched) == ([] if rows is None else ["rows"])
    if rows is not None:
        assert np.array_equal(fetched["rows"], rows)
    asked = [request.tensor for request in daemon.requests["FetchHandle"]]
    assert asked == ["count"] * (2 - breaks_after) + ["rows"] * (rows is not None)


def test_some_results_are_fetched_and_the_others_stay(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    arrays = {"token": np.arange(2), "cache": np.ones((2, 3), np.float32), "state.0": np.arange(3)}
    state = tensor_pb2.NamedValue(name="state")
    state.value.list.items.add().handle.tensor = "state.0"
    count = tensor_pb2.NamedValue(name="count", value=tensor_pb2.Value(int_value=3))
    made = daemon.new_handle(handle_pb2.HANDLE_KIND_VALUE, arrays, [count, state])
    handle = penstock.ValueHandle(pipeline._connection, handle_pb2.Result(handle=made))

    def asked(outputs: list[str] | str) -> tuple[dict[str, Any], list[str]]:
        daemon.requests["FetchHandle"].clear()
        fetched = handle.fetch(10, outputs)
        return fetched, [request.tensor for request in daemon.requests["FetchHandle"]]

    fetched, requests = asked("token")
    assert list(fetched) == ["token"] and requests == ["token"] and np.array_equal(fetched["token"], arrays["token"])
    fetched, requests = asked(["state"])
    assert list(fetched) == ["state"] and requests == ["state", "state.0"], "the tensors inside of a value come with it"
    assert np.array_equal(fetched["state"][0], arrays["state.0"])
    assert set(asked([])[0]) == {"token", "cache", "count", "state"}
    with pytest.raises(ValueError, match="outputs: the results are token, cache, state.0, count, state, got 'logits'"):
        asked(["token", "logits"])


def test_of_results_that_came_with_the_answer_some_are_given(pipeline: penstock.Pipeline) -> None:
    outputs, _ = pipeline.forward(np.ones((2, 4), np.float32))
    assert list(outputs.fetch(outputs=["output"])) == ["output"]
    with pytest.raises(ValueError, match="outputs: the results are output, got 'token'"):
        outputs.fetch(outputs=["token"])


def test_what_a_wait_left_out_is_asked_for(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.settle_after = 1
    handle = pipeline.submit_infer(np.ones((2, 4), np.float32))
    daemon.omit_results = True
    assert handle.wait().message.results_omitted and not handle.message.tensors
    assert np.array_equal(handle.fetch()["output"], np.full((2, 4), 2, np.float32))


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


def test_texts_count_beside_arrays(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    rows = np.ones((500_000, 1), np.float32)  # 2 MB
    pipeline.infer({"input": rows, "texts": penstock.Plain(["x" * 60_000] * 40)})
    request = daemon.requests["Infer"][0]
    assert request.inputs[0].HasField("handle") and 2_400_000 < request.ByteSize() < 4 << 20
    pipeline.infer({"input": ROWS, "texts": penstock.Plain(["x" * 60_000] * 10)})
    assert daemon.requests["Infer"][1].inputs[0].HasField("tensor"), "as small as ever"


ROWS = np.ones((2, 4), np.float32)
CACHE = [np.full((100, 100), number, np.float32) for number in range(66)]  # 40 kB each, 2.6 MB in all


def test_more_tensors_than_an_upload_takes_are_several(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    pipeline.infer({"input": CACHE[0], "cache": penstock.Plain(CACHE)})
    assert [len(start.tensors) for start in daemon.requests["PutStart"]] == [64, 3]
    first, cache = daemon.requests["Infer"][0].inputs
    held = [item.handle for item in cache.value.list.items]
    assert first.handle.handle == held[62].handle != held[63].handle == held[65].handle
    for item, array in zip(held, CACHE):
        assert np.array_equal(daemon.values[item.handle][item.tensor], array)
    assert daemon.wait_until_released(), "an upload was not released"


def test_uploads_of_a_call_have_request_ids_of_their_own_that_its_repetition_has_too(
    pipeline: penstock.Pipeline, daemon: FakeDaemon
) -> None:
    for _ in range(2):
        pipeline.infer({"input": CACHE[0], "cache": penstock.Plain(CACHE)}, request_id="00000000-0000-4000-8000-000000000001")
    first, second, *again = (start.request_id for start in daemon.requests["PutStart"])
    assert first != second and again == [first, second]


def test_an_upload_that_is_refused_gives_those_before_it_back(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.refuse_put_of = 3  # tensors: the second one
    with pytest.raises(penstock.PenstockError, match="HANDLE_BUDGET"):
        pipeline.infer({"input": CACHE[0], "cache": penstock.Plain(CACHE)})
    assert len(daemon.requests["PutStart"]) == 2 and not daemon.requests["Infer"]
    assert daemon.wait_until_released(), "the first upload was not released"


def test_a_broken_upload_resumes_under_the_same_request_id(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    rows = np.random.default_rng(0).random((100_000, 4), np.float32)
    daemon.break_put_at = 512 << 10
    with pipeline.put({"a": rows, "empty": np.zeros((0, 4), np.float32)}) as handle:
        fetched = handle.fetch()
    assert np.array_equal(fetched["a"], rows) and fetched["empty"].shape == (0, 4)
    starts = daemon.requests["PutStart"]
    assert len(starts) == 2 and starts[0].request_id == starts[1].request_id


def test_parameters(pipeline: penstock.Pipeline) -> None:
    parameters = pipeline.read_parameters()
    assert parameters.step == 7 and list(parameters) == ["weight", "empty"]
    assert np.array_equal(parameters["weight"], np.arange(6, dtype=np.float32).reshape(2, 3))
    assert parameters["empty"].shape == (0, 3)
