"""Arrays on their way to the daemon and back, over broken streams and damaged chunks."""

from __future__ import annotations

import grpc
import numpy as np
import penstock
import pytest
from fake_daemon import FakeDaemon


def test_a_large_result_is_fetched_in_chunks(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    rows = np.random.default_rng(0).random((100_000, 4), np.float32)
    assert np.array_equal(pipeline.infer(rows)["output"], 2 * rows)
    assert daemon.requests["FetchHandle"]


def test_a_broken_fetch_goes_on_where_it_was(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    rows = np.random.default_rng(0).random((100_000, 4), np.float32)
    daemon.break_fetch_at = 128 << 10
    assert np.array_equal(pipeline.infer(rows)["output"], 2 * rows)
    assert [request.offset for request in daemon.requests["FetchHandle"]] == [0, 128 << 10]


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
