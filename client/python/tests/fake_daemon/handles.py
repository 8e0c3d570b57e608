"""Results, and tensors on their way to and fro."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np
from google.rpc import status_pb2
from penstock import tensors
from penstock.checksum import crc32c
from penstock.v1 import handle_pb2, tensor_pb2, work_pb2

from fake_daemon.errors import refuse, status
from fake_daemon.server import Server

CREDIT = 1100 << 10  # bytes: a little more than one chunk
MAX_TENSORS = 64  # of one put


class Handles(Server):
    def __init__(self) -> None:
        super().__init__()
        self.handles: dict[str, handle_pb2.Handle] = {}
        self.values: dict[str, dict[str, np.ndarray]] = {}
        self.plain: dict[str, list[tensor_pb2.NamedValue]] = {}  # results that are no tensors, by handle
        self.settle_after = 0  # waits that find work handles PENDING
        self.omit_results = False  # from answers to waits
        self.result_error: status_pb2.Status | None = None  # how the next work ends
        self.damage_chunks = False
        self.break_fetch_at: int | None = None  # bytes after which the next fetch breaks off
        self.break_fetch_after_values: int | None = None  # values after which the next fetch breaks off
        self.break_put_at: int | None = None
        self.refuse_put_of: int | None = None  # so many tensors
        self.shared: dict[str, handle_pb2.Handle] = {}  # by request id
        self._made = 0
        self._partial: dict[str, bytearray] = {}
        self._put: dict[str, handle_pb2.Handle] = {}  # by request id

    def wait_until_released(self) -> bool:
        """Whether all handles are given back, at the latest in a while: clients do it in the background."""
        deadline = time.monotonic() + 10
        while self.handles and time.monotonic() < deadline:
            time.sleep(0.001)
        return not self.handles

    def new_handle(
        self,
        kind: int,
        values: dict[str, np.ndarray] | None = None,
        plain: Sequence[tensor_pb2.NamedValue] = (),
    ) -> handle_pb2.Handle:
        self._made += 1
        name = f"{self.pipeline.name}/handles/00000001-{self._made:032x}"
        handle = handle_pb2.Handle(name=name, kind=kind, state=handle_pb2.HANDLE_STATE_READY)
        if values is not None:
            self.values[name] = values
            handle.tensors.extend(tensors.header_of(key, value) for key, value in values.items())
            self.plain[name] = list(plain)
            handle.values.extend(value.name for value in plain)
        if kind == handle_pb2.HANDLE_KIND_OUTCOME:
            handle.outcome.step = self.step
            handle.outcome.loss = 0.5
            handle.outcome.applied = True
        if self.result_error is not None:
            handle.state = handle_pb2.HANDLE_STATE_FAILED
            handle.error.CopyFrom(self.result_error)
        self.handles[name] = handle
        return handle

    def result(self, handle: handle_pb2.Handle, reply: work_pb2.ReplyOptions) -> handle_pb2.Result:
        """What a call answers: the settled handle if it waited and nothing delays it, tensors inside if they fit."""
        if self.settle_after or not (reply.wait_for.seconds or reply.wait_for.nanos):
            return handle_pb2.Result(handle=handle_pb2.Handle(name=handle.name, state="HANDLE_STATE_PENDING"))
        result = handle_pb2.Result(handle=handle)
        values = self.values.get(handle.name, {})
        if sum(value.nbytes for value in values.values()) <= reply.inline_bytes:
            result.tensors.extend(tensors.encode(key, value) for key, value in values.items())
        return result

    def find(self, name: str) -> handle_pb2.HandleAnswer:
        if name not in self.handles:
            gone = status(grpc.StatusCode.NOT_FOUND, "HANDLE_RELEASED", "the handle was released", handle=name)
            return handle_pb2.HandleAnswer(name=name, error=gone)
        if self.settle_after:
            pending = handle_pb2.Handle(name=name, state="HANDLE_STATE_PENDING")
            return handle_pb2.HandleAnswer(name=name, handle=pending)
        return handle_pb2.HandleAnswer(name=name, handle=self.handles[name])

    def _still_there(self, name: str, context: Any) -> None:
        answer = self.find(name)
        if answer.HasField("error"):
            refuse(context, answer.error)

    def GetHandle(self, request: Any, context: Any) -> Any:
        self._still_there(request.name, context)
        return self.find(request.name).handle

    def WaitHandles(self, request: Any, context: Any) -> Any:
        answer = handle_pb2.WaitHandlesResponse(handles=[self.find(name) for name in request.names])
        for one in answer.handles if self.omit_results else ():
            del one.handle.tensors[:]
            one.handle.results_omitted = True
        if self.settle_after:
            time.sleep(min(0.01, request.wait_for.ToTimedelta().total_seconds()))
            self.settle_after = max(0, self.settle_after - 1)  # it may be 0 by now
        return answer

    def ListHandles(self, request: Any, context: Any) -> Any:
        return handle_pb2.ListHandlesResponse(handles=self.handles.values())

    def RenewHandles(self, request: Any, context: Any) -> Any:
        return handle_pb2.RenewHandlesResponse(handles=[self.find(name) for name in request.names])

    def ShareHandle(self, request: Any, context: Any) -> Any:
        self._still_there(request.name, context)
        if request.request_id not in self.shared:
            first = self.handles[request.name]
            share = self.new_handle(first.kind, self.values[request.name], self.plain[request.name])
            share.owner = request.recipient
            self.shared[request.request_id] = share
        return self.shared[request.request_id]

    def ReleaseHandles(self, request: Any, context: Any) -> Any:
        for name in request.names:
            self.handles.pop(name, None)
        return handle_pb2.ReleaseHandlesResponse()

    def CancelHandles(self, request: Any, context: Any) -> Any:
        answers = [
            handle_pb2.CancelHandlesResponse.Answer(name=name, effect="EFFECT_NOT_CANCELLABLE")
            for name in request.names
        ]
        return handle_pb2.CancelHandlesResponse(answers=answers)

    def FetchHandle(self, request: Any, context: Any) -> Any:
        yield handle_pb2.FetchHandleResponse(handle=self.handles[request.name])
        asked = [value for value in self.plain[request.name] if value.name == request.tensor]
        for number, value in enumerate([*asked, None]):
            if asked and self.break_fetch_after_values == number:
                self.break_fetch_after_values = None
                context.abort(grpc.StatusCode.UNAVAILABLE, "gone for a moment")
            if value is not None:
                yield handle_pb2.FetchHandleResponse(value=value)
        if asked:
            return
        data = bytes(tensors.bytes_of(self.values[request.name][request.tensor]))
        for offset in range(request.offset, len(data), 64 << 10):
            if self.break_fetch_at is not None and offset >= self.break_fetch_at:
                self.break_fetch_at = None
                context.abort(grpc.StatusCode.UNAVAILABLE, "gone for a moment")
            piece = data[offset : offset + (64 << 10)]
            checksum = crc32c(piece) ^ (1 if self.damage_chunks else 0)
            chunk = handle_pb2.TensorChunk(offset=offset, data=piece, crc32c=checksum)
            yield handle_pb2.FetchHandleResponse(chunk=chunk)

    def PutTensors(self, requests: Any, context: Any) -> Any:
        start = next(requests).start
        self.requests["PutStart"].append(start)
        headers = start.tensors
        if len(headers) > MAX_TENSORS:
            refuse(context, status(grpc.StatusCode.INVALID_ARGUMENT, "TENSOR_HEADER", f"{len(headers)} tensors"))
        if len(headers) == self.refuse_put_of:
            refuse(context, status(grpc.StatusCode.RESOURCE_EXHAUSTED, "HANDLE_BUDGET", "full"))
        sizes = [header.byte_size for header in headers]
        buffer = self._partial.setdefault(start.request_id, bytearray())
        index, offset = position(len(buffer), sizes)
        yield handle_pb2.PutTensorsResponse(
            credit=handle_pb2.PutCredit(bytes=CREDIT, next_tensor=index, next_offset=offset)
        )
        received, granted = 0, CREDIT
        arrived: queue.Queue[handle_pb2.TensorChunk] = queue.Queue()

        def receive() -> None:
            with contextlib.suppress(grpc.RpcError):  # the client has ended the stream
                for request in requests:
                    arrived.put(request.chunk)

        threading.Thread(target=receive, daemon=True).start()
        while len(buffer) < sum(sizes):
            chunk = arrived.get(timeout=5)
            received += len(chunk.data)
            assert (chunk.tensor, chunk.offset) == position(len(buffer), sizes), "a gap"
            assert crc32c(chunk.data) == chunk.crc32c
            buffer.extend(chunk.data)
            if self.break_put_at is not None and len(buffer) >= self.break_put_at:
                self.break_put_at = None
                context.abort(grpc.StatusCode.UNAVAILABLE, "gone for a moment")
            time.sleep(0.002)  # so that what was sent beyond the credit arrives
            ahead = sum(len(item.data) for item in list(arrived.queue))
            if received + ahead > granted:
                refuse(context, status(grpc.StatusCode.INVALID_ARGUMENT, "STREAM_PROTOCOL", "overdraft"))
            granted += len(chunk.data)
            yield handle_pb2.PutTensorsResponse(credit=handle_pb2.PutCredit(bytes=len(chunk.data)))
        values = {}
        done = 0
        for header in headers:
            array = tensors.empty(header)
            tensors.bytes_of(array)[:] = buffer[done : done + header.byte_size]
            done += header.byte_size
            values[header.name] = array
        if start.request_id not in self._put:
            self._put[start.request_id] = self.new_handle(handle_pb2.HANDLE_KIND_VALUE, values)
        self._still_there(self._put[start.request_id].name, context)
        yield handle_pb2.PutTensorsResponse(handle=self._put[start.request_id])


def position(done: int, sizes: list[int]) -> tuple[int, int]:
    """Where so many bytes end: tensor and offset. Empty tensors are passed over."""
    index = 0
    while index < len(sizes) and done >= sizes[index]:
        done -= sizes[index]
        index += 1
    return index, done
