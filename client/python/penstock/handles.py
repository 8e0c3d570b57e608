"""Results that the daemon holds: wait for them, fetch them, keep them alive, give them back."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import grpc
from google.protobuf import duration_pb2

from penstock import tensors
from penstock.checksum import crc32c
from penstock.connection import Connection
from penstock.errors import PenstockError
from penstock.tensors import Array
from penstock.v1 import handle_pb2

_LONGEST_WAIT = 30.0  # seconds of one waiting call; longer waits are made of several
Self = TypeVar("Self", bound="Handle")

_SETTLED = (handle_pb2.HANDLE_STATE_READY, handle_pb2.HANDLE_STATE_FAILED, handle_pb2.HANDLE_STATE_CANCELLED)


def seconds(value: float) -> duration_pb2.Duration:
    """A protobuf duration of so many seconds."""
    duration = duration_pb2.Duration()
    duration.FromNanoseconds(round(value * 1e9))
    return duration


class Handle:
    """A remote result. Its state is that of the last answer; waiting asks the daemon.

    Used in a ``with`` block, it is released at the end.

    Attributes:
        name: ``pipelines/{pipeline}/handles/{handle}``.
        message: the daemon's last word on it.
    """

    def __init__(self, connection: Connection, result: handle_pb2.Result) -> None:
        self._connection = connection
        self.name = result.handle.name
        self.message = result.handle
        self._inline = list(result.tensors)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.state})"

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    @property
    def state(self) -> str:
        """``PENDING``, ``READY``, ``FAILED``, ``CANCELLED``, ``RELEASED`` or ``EXPIRED``, as last seen."""
        return handle_pb2.HandleState.Name(self.message.state).replace("HANDLE_STATE_", "")

    def done(self) -> bool:
        """Whether the result has settled: ready, failed or cancelled. Asks the daemon if it had not."""
        if self.message.state not in _SETTLED:
            self.refresh()
        return self.message.state in _SETTLED

    def refresh(self) -> handle_pb2.Handle:
        """Asks for the present state.

        Raises:
            PenstockError: HANDLE_NOT_FOUND, HANDLE_RELEASED, HANDLE_EXPIRED or EPOCH_MISMATCH.
        """
        request = handle_pb2.GetHandleRequest(name=self.name)
        self.message = self._connection.unary("HandleService/GetHandle", request, handle_pb2.Handle)
        return self.message

    def wait(self: Self, timeout: float | None = None) -> Self:
        """Waits until the result is ready.

        Args:
            timeout: seconds; ``None`` waits as long as it takes.

        Raises:
            TimeoutError: it has not settled in time.
            PenstockError: the work failed or was cancelled (with the work's code and reason), or the handle is gone.
        """
        wait_all(self._connection, [self], timeout)
        if self.message.state != handle_pb2.HANDLE_STATE_READY:
            raise PenstockError.from_status(self.message.error)
        return self

    def result(self, timeout: float | None = None) -> Any:
        """Waits, and answers what the work gave; see the subclasses. Raises as :meth:`wait`."""
        self.wait(timeout)
        return None

    def renew(self, lease: float = 0.0) -> None:
        """Keeps a settled result for at least ``lease`` more seconds; 0 is the daemon's default.

        Raises:
            PenstockError: the handle is gone; renewing revives nothing.
        """
        request = handle_pb2.RenewHandlesRequest(names=[self.name], lease=seconds(lease))
        response = self._connection.unary("HandleService/RenewHandles", request, handle_pb2.RenewHandlesResponse)
        self._take(response.handles[0])

    def release(self) -> None:
        """Gives the result back; its bytes go when nothing uses them. Twice is fine, as is one that is gone."""
        release_all(self._connection, [self.name])

    def cancel(self) -> str:
        """Stops the work behind a pending result.

        Returns:
            ``CANCELLED``, ``CANCELLING`` (at the next micro-batch) or ``NOT_CANCELLABLE`` (finished, or training that
            has started).

        Raises:
            PenstockError: the handle is gone.
        """
        request = handle_pb2.CancelHandlesRequest(names=[self.name])
        response = self._connection.unary("HandleService/CancelHandles", request, handle_pb2.CancelHandlesResponse)
        answer = response.answers[0]
        if answer.HasField("error"):
            raise PenstockError.from_status(answer.error)
        return handle_pb2.CancelHandlesResponse.Effect.Name(answer.effect).replace("EFFECT_", "")

    def _take(self, answer: handle_pb2.HandleAnswer) -> None:
        if answer.HasField("error"):
            raise PenstockError.from_status(answer.error)
        self.message = answer.handle


class ValueHandle(Handle):
    """Tensors that the daemon holds. They can be inputs of further calls without coming here."""

    def result(self, timeout: float | None = None) -> dict[str, Array]:
        """The same as :meth:`fetch`."""
        return self.fetch(timeout)

    def fetch(self, timeout: float | None = None) -> dict[str, Array]:
        """Waits, and brings all tensors here, by name. A connection that breaks goes on where it was.

        Raises:
            TimeoutError, PenstockError: as :meth:`wait`; DATA_LOSS / CHUNK_CHECKSUM if bytes arrived damaged.
        """
        self.wait(timeout)
        if self._inline:
            return {tensor.header.name: tensors.decode(tensor) for tensor in self._inline}
        return _Download(self._connection, self.name, self.message.tensors).run()


class GraphHandle(Handle):
    """Activations kept by a forward; only :meth:`Pipeline.backward` takes it, once unless retained."""


@dataclass(frozen=True)
class Outcome:
    """What a call did that changes state.

    Attributes:
        step: finished optimizer steps after the call.
        sequence: place in the pipeline's total order.
        state_token: fits ``expected_state`` of the next call.
        loss: per counted element (cross-entropy, in nats) or mean squared error, over the call's rows; ``None`` if the
            call has none.
        gradient_norm: the norm over all parameters before clipping, of calls that step.
        applied: ``False``: the loss or a gradient was not finite, and the weights are as before.
        learning_rate: that of the step.
        rows: rows of the mini-batch; micro_batches: how many it was cut into.
        seconds: from the start of the run to its end.
        measured_bubble: 1 - work / in-step time over all stages, of this run.
        outputs: the model's outputs, if the call asked for some.
        input_gradients: d loss / d input by input name, if the call asked for them.
    """

    step: int
    sequence: int
    state_token: str
    loss: float | None
    gradient_norm: float | None
    applied: bool | None
    learning_rate: float | None
    rows: int
    micro_batches: int
    seconds: float
    measured_bubble: float | None
    outputs: ValueHandle | None = None
    input_gradients: ValueHandle | None = None


class OutcomeHandle(Handle):
    """The outcome of a call that changes state.

    Attributes:
        outputs: the model's outputs, if the call asked for some.
        input_gradients: d loss / d input by input name, if the call asked for them.
    """

    def __init__(
        self,
        connection: Connection,
        result: handle_pb2.Result,
        outputs: ValueHandle | None = None,
        input_gradients: ValueHandle | None = None,
    ) -> None:
        super().__init__(connection, result)
        self.outputs = outputs
        self.input_gradients = input_gradients

    def result(self, timeout: float | None = None) -> Outcome:
        """Waits, and answers what happened. Raises as :meth:`wait`."""
        self.wait(timeout)
        message = self.message.outcome

        def optional(field: str) -> Any:
            return getattr(message, field) if message.HasField(field) else None

        return Outcome(
            step=message.step,
            sequence=message.sequence,
            state_token=message.state_token,
            loss=optional("loss"),
            gradient_norm=optional("gradient_norm"),
            applied=optional("applied"),
            learning_rate=optional("learning_rate"),
            rows=message.rows,
            micro_batches=message.micro_batches,
            seconds=message.seconds,
            measured_bubble=optional("measured_bubble"),
            outputs=self.outputs,
            input_gradients=self.input_gradients,
        )


def wait_all(connection: Connection, handles: Sequence[Handle], timeout: float | None = None) -> None:
    """Waits until all handles have settled, ready or not.

    Raises:
        TimeoutError: one has not settled in time.
        PenstockError: one is gone.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    pending = [handle for handle in handles if handle.message.state not in _SETTLED]
    while pending:
        left = _LONGEST_WAIT if deadline is None else max(0.0, deadline - time.monotonic())
        wait = min(left, _LONGEST_WAIT)
        request = handle_pb2.WaitHandlesRequest(
            names=[handle.name for handle in pending[:1000]],
            mode=handle_pb2.WaitHandlesRequest.MODE_ALL,
            wait_for=seconds(wait),
        )
        response = connection.unary("HandleService/WaitHandles", request, handle_pb2.WaitHandlesResponse, wait)
        for handle, answer in zip(pending, response.handles):
            handle._take(answer)
        pending = [handle for handle in pending if handle.message.state not in _SETTLED]
        if pending and left <= 0.0:
            raise TimeoutError(f"{pending[0].name} has not settled in {timeout} s")


def release_all(connection: Connection, names: Iterable[str]) -> None:
    """Releases handles by name, also ones that are gone."""
    remaining: list[str] = list(names)
    while remaining:
        request = handle_pb2.ReleaseHandlesRequest(names=remaining[:1000])
        connection.unary("HandleService/ReleaseHandles", request, handle_pb2.ReleaseHandlesResponse)
        remaining = remaining[1000:]


class _Download:
    """Fetches the tensors of a handle, one after the other, and resumes by offset."""

    def __init__(self, connection: Connection, name: str, headers: Sequence[Any]) -> None:
        self._connection = connection
        self._name = name
        self._headers = list(headers)
        self._arrays = [tensors.empty(header) for header in headers]
        self._done = [0] * len(self._headers)

    def run(self) -> dict[str, Array]:
        for index, header in enumerate(self._headers):
            while self._done[index] < header.byte_size:
                self._connection.retry(partial(self._attempt, index))
        return {header.name: array for header, array in zip(self._headers, self._arrays)}

    def _attempt(self, index: int) -> handle_pb2.Handle:
        """Reads on from where the tensor stands; a break leaves what has arrived."""
        request = handle_pb2.FetchHandleRequest(
            name=self._name, tensor=self._headers[index].name, offset=self._done[index]
        )
        target = tensors.bytes_of(self._arrays[index])
        for answer in self._connection.stream("HandleService/FetchHandle", request, handle_pb2.FetchHandleResponse):
            if not answer.HasField("chunk"):
                continue
            chunk = answer.chunk
            if chunk.offset != self._done[index] or chunk.offset + len(chunk.data) > len(target):
                raise _damaged("CHUNK_SIZE", f"{self._name}: a chunk at {chunk.offset} came at {self._done[index]}")
            if crc32c(chunk.data) != chunk.crc32c:
                raise _damaged("CHUNK_CHECKSUM", f"{self._name}: the chunk at {chunk.offset} arrived damaged")
            target[chunk.offset : chunk.offset + len(chunk.data)] = chunk.data
            self._done[index] += len(chunk.data)
        if self._done[index] < self._headers[index].byte_size:
            raise _damaged("CHUNK_SIZE", f"{self._name}: the stream ended at {self._done[index]}")
        return handle_pb2.Handle()


def _damaged(reason: str, message: str) -> PenstockError:
    return PenstockError(grpc.StatusCode.DATA_LOSS, reason, message)
