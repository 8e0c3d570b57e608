"""Results that the daemon holds: wait for them, fetch them, keep them alive, give them back."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import grpc
from google.protobuf import duration_pb2

from penstock import tensors
from penstock.checksum import crc32c
from penstock.chunks import Chunk
from penstock.connection import Connection
from penstock.deadline import LONGEST_WAIT, Deadline
from penstock.errors import DeadlineError, PenstockError
from penstock.tensors import Array
from penstock.v1 import handle_pb2
from penstock.watcher import Watcher

CHUNK_BYTES = 1 << 20  # the most that the daemon takes and gives
Self = TypeVar("Self", bound="Handle")

_SETTLED = (handle_pb2.HANDLE_STATE_READY, handle_pb2.HANDLE_STATE_FAILED, handle_pb2.HANDLE_STATE_CANCELLED)


_MOST_SECONDS = 315_576_000_000.0  # of a protobuf duration


def seconds(value: float, field: str = "lease") -> duration_pb2.Duration:
    """A protobuf duration of so many seconds.

    Raises:
        ValueError: it is no number that a duration can have; names ``field``.
    """
    if not abs(value) <= _MOST_SECONDS:
        raise ValueError(f"{field}: must be a finite number of seconds, got {value}")
    duration = duration_pb2.Duration()
    duration.FromNanoseconds(round(value * 1e9))
    return duration


class Remote:
    """A result that the daemon holds, whichever client made it: it can be an input of further calls.

    Attributes:
        name: ``pipelines/{pipeline}/handles/{handle}``.
        message: the daemon's last word on it.
    """

    def __init__(self, result: handle_pb2.Result) -> None:
        self.name = result.handle.name
        self.message = result.handle
        self._inline = list(result.tensors)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.state})"

    @property
    def state(self) -> str:
        """``PENDING``, ``READY``, ``FAILED``, ``CANCELLED``, ``RELEASED`` or ``EXPIRED``, as last seen."""
        return handle_pb2.HandleState.Name(self.message.state).replace("HANDLE_STATE_", "")

    @property
    def settled(self) -> bool:
        """Whether it was ready, failed or cancelled when the daemon was last asked."""
        return self.message.state in _SETTLED

    def take(self, answer: handle_pb2.HandleAnswer) -> None:
        """Takes over what the daemon says of it.

        Raises:
            PenstockError: the handle is gone.
        """
        if answer.HasField("error"):
            raise PenstockError.from_status(answer.error)
        self.message = answer.handle

    def check(self) -> None:
        """Raises what the work failed with, if it did."""
        if self.message.state != handle_pb2.HANDLE_STATE_READY:
            raise PenstockError.from_status(self.message.error)

    def inline(self) -> dict[str, Array] | None:
        """The tensors, if they came with the answer.

        Raises:
            ImportError: see :meth:`ValueHandle.fetch`.
        """
        if not self._inline:
            return None
        return tensors.shown({tensor.header.name: tensors.decode(tensor) for tensor in self._inline})


class Handle(Remote):
    """A remote result, and a future: its state is that of the last answer; waiting asks the daemon.

    Used in a ``with`` block, it is released at the end.
    """

    def __init__(self, connection: Connection, result: handle_pb2.Result) -> None:
        super().__init__(result)
        self._connection = connection

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def done(self) -> bool:
        """Whether the result has settled: ready, failed or cancelled. Asks the daemon if it had not."""
        if not self.settled:
            self.refresh()
        return self.settled

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
            DeadlineError: it has not settled in time.
            PenstockError: the work failed or was cancelled (with the work's code and reason), or the handle is gone.
        """
        return self.wait_until(Deadline(timeout))

    def wait_until(self: Self, deadline: Deadline) -> Self:
        """As :meth:`wait`, for a part of a longer call."""
        wait_all(self._connection, [self], deadline)
        self.check()
        return self

    def result(self, timeout: float | None = None) -> Any:
        """Waits, and answers what the work gave; see the subclasses. Raises as :meth:`wait`."""
        self.wait(timeout)
        return None

    def exception(self, timeout: float | None = None) -> PenstockError | None:
        """Waits, and answers what the work failed with; ``None`` if it went well.

        Raises:
            DeadlineError: it has not settled in time.
            PenstockError: the handle is gone.
        """
        wait_all(self._connection, [self], Deadline(timeout))
        if self.message.state == handle_pb2.HANDLE_STATE_READY:
            return None
        return PenstockError.from_status(self.message.error)

    def future(self) -> Future[Any]:
        """The same result for code that wants a :class:`concurrent.futures.Future`: callbacks, ``as_completed``, an
        event loop's ``wrap_future``. One thread of this connection waits for all of them. Cancelling it cancels no
        work."""
        return _watcher_of(self._connection).watch(self)

    def renew(self, lease: float = 0.0) -> None:
        """Keeps a settled result for at least ``lease`` more seconds; 0 is the daemon's default.

        Raises:
            PenstockError: the handle is gone; renewing revives nothing.
        """
        request = handle_pb2.RenewHandlesRequest(names=[self.name], lease=seconds(lease))
        response = self._connection.unary("HandleService/RenewHandles", request, handle_pb2.RenewHandlesResponse)
        self.take(response.handles[0])

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
        return effect_of(response.answers[0])


class ValueHandle(Handle):
    """Tensors that the daemon holds. They can be inputs of further calls without coming here."""

    def result(self, timeout: float | None = None) -> dict[str, Array]:
        """The same as :meth:`fetch`."""
        return self.fetch(timeout)

    def fetch(self, timeout: float | None = None) -> dict[str, Array]:
        """Waits, and brings all tensors here, by name. A connection that breaks goes on where it was.

        Raises:
            ImportError: one is of bfloat16, and ``ml_dtypes`` is not installed.
            DeadlineError, PenstockError: as :meth:`wait`; DATA_LOSS / CHUNK_CHECKSUM if bytes arrived damaged.
        """
        return self.fetch_until(Deadline(timeout))

    def fetch_until(self, deadline: Deadline) -> dict[str, Array]:
        """As :meth:`fetch`, for a part of a longer call."""
        self.wait_until(deadline)
        inline = self.inline()
        if inline is not None:
            return inline
        download = Download(self.name, self.message.tensors)
        while download.request() is not None:
            self._connection.retry(partial(self._attempt, download, deadline), "HandleService/FetchHandle", deadline)
        return download.arrays()

    def _attempt(self, download: Download, deadline: Deadline) -> handle_pb2.Handle:
        """Reads on from where the download stands; a break leaves what has arrived."""
        request = download.request()
        assert request is not None
        for answer in self._connection.stream(
            "HandleService/FetchHandle", request, handle_pb2.FetchHandleResponse, deadline
        ):
            download.accept(answer)
        download.end_tensor()
        return self.message


class GraphHandle(Handle):
    """Activations kept by a forward; only :meth:`Pipeline.backward` takes it, once unless retained."""


@dataclass(frozen=True)
class OutcomeFacts:
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


@dataclass(frozen=True)
class Outcome(OutcomeFacts):
    """What a call did that changes state: the facts, and results that stay with the daemon.

    Attributes:
        outputs: the model's outputs, if the call asked for some.
        input_gradients: d loss / d input by input name, if the call asked for them.
    """

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
        return self.result_until(Deadline(timeout))

    def result_until(self, deadline: Deadline) -> Outcome:
        """As :meth:`result`, for a part of a longer call."""
        self.wait_until(deadline)
        return Outcome(
            **outcome_fields(self.message.outcome), outputs=self.outputs, input_gradients=self.input_gradients
        )


def outcome_fields(message: handle_pb2.Outcome) -> dict[str, Any]:
    """The plain facts of an outcome: what is not set is ``None``."""
    facts = {
        name: getattr(message, name) for name in ("step", "sequence", "state_token", "rows", "micro_batches", "seconds")
    }
    for name in ("loss", "gradient_norm", "applied", "learning_rate", "measured_bubble"):
        facts[name] = getattr(message, name) if message.HasField(name) else None
    return facts


def effect_of(answer: handle_pb2.CancelHandlesResponse.Answer) -> str:
    """What cancelling did; see :meth:`Handle.cancel`."""
    if answer.HasField("error"):
        raise PenstockError.from_status(answer.error)
    return handle_pb2.CancelHandlesResponse.Effect.Name(answer.effect).replace("EFFECT_", "")


def wait_all(connection: Connection, handles: Sequence[Handle], deadline: Deadline) -> None:
    """Waits until all handles have settled, ready or not.

    Raises:
        DeadlineError: one has not settled in time.
        PenstockError: one is gone.
    """
    pending = [handle for handle in handles if not handle.settled]
    while pending:
        if deadline.left() <= 0.0:
            raise DeadlineError.pending(pending[0].name, deadline.seconds)
        response = connection.unary(
            "HandleService/WaitHandles",
            wait_request(pending, deadline.hold()),
            handle_pb2.WaitHandlesResponse,
            deadline,
            LONGEST_WAIT,
        )
        for handle, answer in zip(pending, response.handles):
            handle.take(answer)
        pending = [handle for handle in pending if not handle.settled]


def wait_request(pending: Sequence[Remote], wait: float, any_of: bool = False) -> handle_pb2.WaitHandlesRequest:
    """Waits for all of the first thousand, or for any."""
    return handle_pb2.WaitHandlesRequest(
        names=[handle.name for handle in pending[:1000]],
        mode=handle_pb2.WaitHandlesRequest.MODE_ANY if any_of else handle_pb2.WaitHandlesRequest.MODE_ALL,
        wait_for=seconds(wait),
    )


def _ask_any(handles: Sequence[Handle], wait: float) -> handle_pb2.WaitHandlesResponse:
    """Waits so many seconds until one of the handles, all of one connection, settles."""
    request = wait_request(handles, wait, any_of=True)
    return handles[0]._connection.unary("HandleService/WaitHandles", request, handle_pb2.WaitHandlesResponse, wait=wait)


_watchers_lock = threading.Lock()
_watchers: weakref.WeakKeyDictionary[Connection, Watcher[Handle]] = weakref.WeakKeyDictionary()


def _watcher_of(connection: Connection) -> Watcher[Handle]:
    """Who waits for the futures of a connection's handles: one, made with the first future."""
    with _watchers_lock:
        return _watchers.setdefault(connection, Watcher(_ask_any))


def release_all(connection: Connection, names: Iterable[str]) -> None:
    """Releases handles by name, also ones that are gone."""
    remaining: list[str] = list(names)
    while remaining:
        request = handle_pb2.ReleaseHandlesRequest(names=remaining[:1000])
        connection.unary("HandleService/ReleaseHandles", request, handle_pb2.ReleaseHandlesResponse)
        remaining = remaining[1000:]


class Download:
    """The tensors of a handle on their way here, one after the other, resumed by offset. Does no input or output
    itself."""

    def __init__(self, name: str, headers: Sequence[Any]) -> None:
        self._name = name
        self._headers = list(headers)
        self._arrays = [tensors.empty(header) for header in headers]
        tensors.shown(dict(zip((header.name for header in headers), self._arrays)))
        self._done = [0] * len(self._headers)
        self._current = 0

    def request(self) -> handle_pb2.FetchHandleRequest | None:
        """What to ask for next; ``None`` when everything is here."""
        while self._current < len(self._headers):
            header = self._headers[self._current]
            if self._done[self._current] < header.byte_size:
                return handle_pb2.FetchHandleRequest(
                    name=self._name, tensor=header.name, offset=self._done[self._current], chunk_size=CHUNK_BYTES
                )
            self._current += 1
        return None

    def accept(self, answer: handle_pb2.FetchHandleResponse | Chunk) -> None:
        """Takes the next answer; only chunks count.

        Raises:
            PenstockError: CHUNK_SIZE or CHUNK_CHECKSUM.
        """
        if not isinstance(answer, Chunk):
            return
        chunk, data = answer, answer.data
        target = tensors.bytes_of(self._arrays[self._current])
        done = self._done[self._current]
        if chunk.offset != done or done + len(data) > len(target):
            raise _damaged("CHUNK_SIZE", f"{self._name}: a chunk at {chunk.offset} came at {done}")
        if crc32c(data) != chunk.crc32c:
            raise _damaged("CHUNK_CHECKSUM", f"{self._name}: the chunk at {chunk.offset} arrived damaged")
        target[done : done + len(data)] = data
        self._done[self._current] += len(data)

    def end_tensor(self) -> None:
        """The stream of one tensor has ended well.

        Raises:
            PenstockError: too early.
        """
        done = self._done[self._current]
        if done < self._headers[self._current].byte_size:
            raise _damaged("CHUNK_SIZE", f"{self._name}: the stream ended at {done}")

    def arrays(self) -> dict[str, Array]:
        return {header.name: array for header, array in zip(self._headers, self._arrays)}


def _damaged(reason: str, message: str) -> PenstockError:
    return PenstockError(grpc.StatusCode.DATA_LOSS, reason, message)
