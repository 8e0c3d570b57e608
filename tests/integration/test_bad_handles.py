"""Handles that are not there, bad names and pages, bad uploads.

Each is a named error with field and value; the daemon lives, and the next good request is answered.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import penstock
import pytest
from penstock.checksum import crc32c
from penstock.chunks import Chunk
from penstock.v1 import handle_pb2, pipeline_pb2, tensor_pb2

from conftest import StartDaemon
from daemon_process import Daemon
from raw_calls import INVALID, ROWS, Raw, duration, infer, refused
from small_models import WIDTH, create_mlp

pytestmark = pytest.mark.usefixtures("next_request_is_served")
Code = grpc.StatusCode


def test_handles_that_are_not_there(daemon: Daemon, raw: Raw, pipeline: penstock.Pipeline) -> None:
    stranger = Raw(daemon.address, "stranger")
    mine = pipeline.submit_infer(ROWS).wait(30)
    epoch, secret = mine.name.rsplit("/", 1)[1].split("-")
    prefix = f"{pipeline.name}/handles/"
    missing = f"{prefix}{epoch}-{'0' * 32}"
    older = f"{prefix}{int(epoch, 16) - 1:08x}-{secret}"
    gone = pipeline.submit_infer(ROWS).wait(30)
    gone.release()

    def ways(calls: Raw, name: str) -> list[Callable[[], Any]]:
        source = tensor_pb2.Input(name="input", handle=tensor_pb2.HandleTensor(handle=name))
        return [
            lambda: calls.call("GetHandle", handle_pb2.GetHandleRequest(name=name)),
            lambda: calls.fetch(handle_pb2.FetchHandleRequest(name=name)),
            lambda: calls.call("ShareHandle", handle_pb2.ShareHandleRequest(name=name, recipient="bob")),
            lambda: calls.call("Infer", infer(pipeline.name, source)),
            lambda: _first_error(calls.call("WaitHandles", handle_pb2.WaitHandlesRequest(names=[name])).handles),
            lambda: _first_error(calls.call("RenewHandles", handle_pb2.RenewHandlesRequest(names=[name])).handles),
            lambda: _first_error(calls.call("CancelHandles", handle_pb2.CancelHandlesRequest(names=[name])).answers),
        ]

    for way in ways(raw, missing):
        refused(way, Code.NOT_FOUND, "HANDLE_NOT_FOUND")
    for way in ways(stranger, mine.name):
        refused(way, Code.NOT_FOUND, "HANDLE_NOT_FOUND")
    for way in ways(raw, older):
        refused(way, Code.FAILED_PRECONDITION, "EPOCH_MISMATCH")
    for way in ways(raw, gone.name):
        refused(way, Code.NOT_FOUND, "HANDLE_RELEASED")
    assert _first_error(
        stranger.call("ReleaseHandles", handle_pb2.ReleaseHandlesRequest(names=[mine.name])).handles, False
    ) == "HANDLE_NOT_FOUND"
    assert mine.fetch()["output"].shape == ROWS.shape, "a stranger released it"
    gone.release()
    mine.release()
    stranger.close()


def _first_error(answers: Any, raises: bool = True) -> str | None:
    if not answers[0].HasField("error"):
        return None
    error = penstock.PenstockError.from_status(answers[0].error)
    if raises:
        raise error
    return error.reason


def test_an_expired_handle(raw: Raw, pipeline: penstock.Pipeline) -> None:

    handle = pipeline.submit_infer(ROWS, lease=5).wait(30)
    deadline = time.monotonic() + 15
    with pytest.raises(penstock.PenstockError) as raised:
        while time.monotonic() < deadline:
            handle.refresh()
            time.sleep(0.2)
    assert (raised.value.code, raised.value.reason) == (Code.NOT_FOUND, "HANDLE_EXPIRED")
    refused(lambda: raw.fetch(handle_pb2.FetchHandleRequest(name=handle.name)), Code.NOT_FOUND, "HANDLE_EXPIRED")


BAD_NAMES = [
    "",
    "victim",
    "/etc/passwd",
    "pipelines/",
    "pipelines/../victim",
    "pipelines/victim/..",
    "pipelines/Victim",
    "pipelines/-victim",
    "pipelines/victim\n",
    "pipelines/victim\0",
    "pipelines/\x1b[31mred",
    "pipelines/" + "x" * 64,
    "pipelines/" + "x" * 60_000,
]


@pytest.mark.parametrize("name", BAD_NAMES, ids=range(len(BAD_NAMES)))
def test_a_bad_name(raw: Raw, name: str) -> None:
    refused(lambda: raw.call("GetPipeline", pipeline_pb2.GetPipelineRequest(name=name)), INVALID, "NAME_INVALID")
    refused(lambda: raw.call("Infer", infer(name)), INVALID, "NAME_INVALID", "pipeline")
    handle = handle_pb2.GetHandleRequest(name=f"{name}/handles/{'0' * 8}-{'0' * 32}")
    refused(lambda: raw.call("GetHandle", handle), INVALID, "NAME_INVALID", "name")


@pytest.mark.parametrize(
    "identifier", ["", "0", "0-0", "00000001-" + "g" * 32, "00000001-" + "0" * 31, "00000001" + "0" * 33]
)
def test_a_bad_handle_name(raw: Raw, pipeline: penstock.Pipeline, identifier: str) -> None:
    name = f"{pipeline.name}/handles/{identifier}"
    refused(lambda: raw.call("GetHandle", handle_pb2.GetHandleRequest(name=name)), INVALID, "NAME_INVALID", "name")
    refused(lambda: raw.fetch(handle_pb2.FetchHandleRequest(name=name)), INVALID, "NAME_INVALID", "name")


@pytest.mark.parametrize(
    ("changes", "code", "reason"),
    [
        ({"offset": -1}, INVALID, "FIELD_INVALID"),
        ({"offset": 257}, Code.OUT_OF_RANGE, "OFFSET_OUT_OF_RANGE"),
        ({"offset": 2**63 - 1}, Code.OUT_OF_RANGE, "OFFSET_OUT_OF_RANGE"),
        ({"limit": -1}, INVALID, "FIELD_INVALID"),
        ({"chunk_size": 1}, INVALID, "CHUNK_SIZE"),
        ({"chunk_size": 2**20 + 1}, INVALID, "CHUNK_SIZE"),
        ({"chunk_size": -1}, INVALID, "CHUNK_SIZE"),
        ({"tensor": "nothing"}, INVALID, "FIELD_INVALID"),
        ({"wait_for": duration(61)}, INVALID, "FIELD_INVALID"),
    ],
)
def test_a_bad_fetch(raw: Raw, pipeline: penstock.Pipeline, changes: dict[str, Any], code: Any, reason: Any) -> None:
    with pipeline.submit_infer(ROWS).wait(30) as handle:
        fields = {"name": handle.name, "tensor": "output", **changes}
        refused(lambda: raw.fetch(handle_pb2.FetchHandleRequest(**fields)), code, reason)
        # The ends of the range are legal: nothing, and all from the start with a limit that would wrap.
        assert not [a for a in raw.fetch(_fetch(handle.name, 256, 0)) if isinstance(a, Chunk)]
        whole = [a for a in raw.fetch(_fetch(handle.name, 8, 2**63 - 1)) if isinstance(a, Chunk)]
        assert sum(len(a.data) for a in whole) == 248


def _fetch(name: str, offset: int, limit: int) -> handle_pb2.FetchHandleRequest:
    return handle_pb2.FetchHandleRequest(name=name, tensor="output", offset=offset, limit=limit)


def test_too_many_names(raw: Raw, pipeline: penstock.Pipeline) -> None:
    names = [f"{pipeline.name}/handles/00000001-{i:032x}" for i in range(1001)]
    for method, request in [
        ("WaitHandles", handle_pb2.WaitHandlesRequest(names=names)),
        ("RenewHandles", handle_pb2.RenewHandlesRequest(names=names)),
        ("ReleaseHandles", handle_pb2.ReleaseHandlesRequest(names=names)),
        ("CancelHandles", handle_pb2.CancelHandlesRequest(names=names)),
    ]:
        refused(
            lambda method=method, request=request: raw.call(method, request),
            INVALID,
            "FIELD_INVALID",
        )


def test_bad_pages(raw: Raw, pipeline: penstock.Pipeline) -> None:
    def handles(**fields: Any) -> Any:
        return raw.call("ListHandles", handle_pb2.ListHandlesRequest(parent=pipeline.name, **fields))

    refused(lambda: handles(page_size=-1), INVALID, "FIELD_INVALID", "page_size", "-1")
    refused(lambda: handles(page_token="made up"), INVALID, "PAGE_TOKEN_INVALID")
    kept = [pipeline.submit_infer(ROWS).wait(30) for _ in range(3)]
    token = handles(page_size=1).next_page_token
    assert token
    refused(
        lambda: handles(page_size=1, page_token=token[:-1] + chr(ord(token[-1]) ^ 1)), INVALID, "PAGE_TOKEN_INVALID"
    )
    refused(
        lambda: raw.call("ListPipelines", pipeline_pb2.ListPipelinesRequest(page_token=token)),
        INVALID,
        "PAGE_TOKEN_INVALID",
    )
    assert handles(page_size=1, page_token=token).handles
    pipeline.release(kept)


# --- uploads ---


def _start(pipeline: str, *headers: tensor_pb2.TensorHeader, **fields: Any) -> handle_pb2.PutTensorsRequest:
    start = handle_pb2.PutStart(pipeline=pipeline, tensors=headers or [_header(4)], **fields)
    return handle_pb2.PutTensorsRequest(start=start)


def _header(elements: int, name: str = "x") -> tensor_pb2.TensorHeader:
    return tensor_pb2.TensorHeader(name=name, type="DATA_TYPE_FP32", shape=[elements], byte_size=4 * elements)


def _chunk(data: bytes, offset: int = 0, index: int = 0, checksum: int | None = None) -> handle_pb2.PutTensorsRequest:

    return handle_pb2.PutTensorsRequest(
        chunk=handle_pb2.TensorChunk(
            tensor=index, offset=offset, data=data, crc32c=crc32c(data) if checksum is None else checksum
        )
    )


def test_bad_uploads(raw: Raw, pipeline: penstock.Pipeline) -> None:
    name = pipeline.name
    good = bytes(16)
    half = 128 << 10
    big = _start(name, _header(half // 2))  # two halves

    def put(*messages: handle_pb2.PutTensorsRequest) -> Callable[[], Any]:
        return lambda: raw.put(messages)

    refused(put(_chunk(good)), INVALID, "STREAM_PROTOCOL")
    refused(put(), INVALID, "STREAM_PROTOCOL")
    refused(put(handle_pb2.PutTensorsRequest()), INVALID, "STREAM_PROTOCOL")
    refused(put(_start(name), _start(name)), INVALID, "STREAM_PROTOCOL")
    refused(put(_start(name)), INVALID, "CHUNK_SIZE")  # an early end
    refused(put(_start(name), _chunk(good[:8])), INVALID, "CHUNK_SIZE")
    refused(put(_start(name), _chunk(good + b"\0")), INVALID, "CHUNK_SIZE")
    refused(put(_start(name), _chunk(good, offset=8)), INVALID, "CHUNK_SIZE")
    refused(put(_start(name), _chunk(good, offset=-1)), INVALID, "CHUNK_SIZE")
    refused(put(_start(name), _chunk(good, index=1)), INVALID, "CHUNK_SIZE")
    refused(put(_start(name), _chunk(good, checksum=1)), Code.DATA_LOSS, "CHUNK_CHECKSUM")
    refused(put(big, _chunk(bytes(half)), _chunk(bytes(half), offset=0)), INVALID, "CHUNK_SIZE")
    # A hundred thousand chunks of one byte: the first one is too small already.
    refused(put(_start(name, _header(25_000)), *[_chunk(b"\0", offset=i) for i in range(100)]), INVALID, "CHUNK_SIZE")
    refused(put(_start("pipelines/nobody")), Code.NOT_FOUND, "PIPELINE_NOT_FOUND")
    refused(put(_start(name, request_id="x")), INVALID, "FIELD_INVALID", "request_id")
    refused(put(_start(name, lease=duration(-1))), INVALID, "FIELD_INVALID", "lease")
    refused(put(_start(name, _header(4), _header(4))), INVALID, "TENSOR_HEADER", "tensors[1]")
    refused(put(_start(name, *[_header(4, f"x{i}") for i in range(65)])), INVALID, "TENSOR_HEADER", "tensors", "65")
    refused(put(_start(name, _header(1 << 40))), Code.RESOURCE_EXHAUSTED, "TENSOR_TOO_LARGE", "", "")
    four = [_header(1 << 28, f"x{i}") for i in range(5)]
    refused(put(_start(name, *four)), Code.RESOURCE_EXHAUSTED, "TENSOR_TOO_LARGE")
    lying = _header(4)
    lying.byte_size = 17
    refused(put(_start(name, lying)), INVALID, "TENSOR_HEADER", "tensors[0]", "17")
    assert raw.put([_start(name), _chunk(good)])[-1].handle.state == handle_pb2.HANDLE_STATE_READY


def test_a_sender_that_does_not_wait_for_credit(raw: Raw, pipeline: penstock.Pipeline) -> None:
    """Credit comes back as fast as chunks are taken in, and who is read one after the other can't be ahead of it."""
    chunk, count = 1 << 20, 96
    messages = [_start(pipeline.name, _header(chunk * count // 4))]
    data = bytes(chunk)
    messages += [_chunk(data, offset=i * chunk) for i in range(count)]
    answer = raw.put(messages)
    assert answer[-1].handle.byte_size == chunk * count


def test_a_client_that_vanishes_in_mid_stream(daemon: Daemon, pipeline: penstock.Pipeline) -> None:
    before = pipeline.statistics().handle_bytes
    for sent in (0, 1, 3):
        vanishing = Raw(daemon.address, "ghost")
        messages = [_start(pipeline.name, _header(1 << 20))]
        messages += [_chunk(bytes(256 << 10), offset=i << 18) for i in range(sent)]

        def endless(messages: list[Any] = messages) -> Iterator[Any]:

            yield from messages
            threading.Event().wait(2)

        answers = vanishing.open_put(endless())
        assert next(answers).HasField("credit")
        vanishing.close()
    with pipeline.put({"x": np.zeros(1 << 20, np.float32)}) as whole:
        assert whole.fetch()["x"].shape == (1 << 20,)
    vanishing = Raw(daemon.address, "ghost")
    with pipeline.submit_infer(np.ones((20_000, WIDTH), np.float32)).wait(60) as handle:
        stream = vanishing._connection.stream(
            "HandleService/FetchHandle", handle_pb2.FetchHandleRequest(name=handle.name), handle_pb2.FetchHandleResponse
        )
        with pytest.raises(penstock.PenstockError):
            next(stream)  # the ghost does not own it
        own = penstock.Client(daemon.address)
        stream = own._connection.stream(
            "HandleService/FetchHandle", handle_pb2.FetchHandleRequest(name=handle.name), handle_pb2.FetchHandleResponse
        )
        next(stream)
        own.close()
        assert handle.fetch()["output"].shape == (20_000, WIDTH)
    vanishing.close()
    # What has come of an upload is kept for a minute, and no more is held for it.
    deadline = time.monotonic() + 30
    while pipeline.statistics().handle_bytes > before + (256 << 10) * 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert pipeline.statistics().handle_bytes <= before + (256 << 10) * 4


def test_two_callers_that_announce_the_whole_budget_and_send_nothing(start_daemon: StartDaemon) -> None:
    """What is announced takes nothing: memory is held for what has come, and for the credit of an open stream."""
    budget, credit = 256 << 20, 32 << 20
    daemon = start_daemon("--drain-announce=0s", f"--handle-bytes={budget}", f"--handle-bytes-per-caller={budget // 2}")
    end = threading.Event()

    def announced(pipeline: str) -> Iterator[Any]:
        yield _start(pipeline, *[_header(8 << 20, f"x{i}") for i in range(4)])  # 128 MiB
        end.wait()

    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client)
        expected = pipeline.infer(ROWS)["output"]
        for _ in range(3):
            strangers = [Raw(daemon.address, name) for name in ("invented-a", "invented-b")]
            answers = [stranger.open_put(announced(pipeline.name)) for stranger in strangers]
            for answer in answers:
                assert next(answer).HasField("credit")
            held = sum(value for _, value in daemon.metrics().select("penstock_handle_bytes"))
            assert held < 2 * credit + (1 << 20)  # a small result may not yet be released
            rows = np.ones((1000 << 10, WIDTH), np.float32)  # nearly 64 MiB, up and down
            with pipeline.put({"input": rows}) as handle:
                assert pipeline.infer(handle)["output"].shape == rows.shape
            assert np.array_equal(pipeline.infer(ROWS)["output"], expected)
            for stranger in strangers:
                stranger.close()
    end.set()
    daemon.stop()
