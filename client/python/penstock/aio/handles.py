"""Results that the daemon holds: wait for them, fetch them, keep them alive, give them back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from penstock.aio.attempts import collect
from penstock.aio.connection import Connection
from penstock.aio.settling import Settling
from penstock.deadline import LONGEST_WAIT, Deadline
from penstock.download import Download
from penstock.errors import DeadlineError, PenstockError
from penstock.releases import NAMES_OF_A_CALL
from penstock.requests import new_request_id
from penstock.results import Evaluation, OutcomeFacts, effect_of, outcome_fields, seconds, wait_request
from penstock.specifications import names_of
from penstock.v1 import handle_pb2
from penstock.values import check_wanted

Self = TypeVar("Self", bound="Handle")


class Handle(Settling):
    """A remote result. Its state is that of the last answer; waiting asks the daemon.

    Used in a ``with`` block (asyncio: ``async with``), it is released at the end.
    """

    async def __aenter__(self: Self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.release()

    async def done(self) -> bool:
        """Whether the result has settled: ready, failed or cancelled. Asks the daemon if it had not."""
        if not self.settled:
            await self.refresh()
        return self.settled

    async def refresh(self) -> handle_pb2.Handle:
        """Asks for the present state.

        Raises:
            PenstockError: HANDLE_NOT_FOUND, HANDLE_RELEASED, HANDLE_EXPIRED or EPOCH_MISMATCH.
        """
        request = handle_pb2.GetHandleRequest(name=self.name)
        self.message = await self._connection.unary("HandleService/GetHandle", request, handle_pb2.Handle)
        return self.message

    async def wait(self: Self, timeout: float | None = None) -> Self:
        """Waits until the result is ready.

        Args:
            timeout: seconds; ``None`` waits as long as it takes.

        Raises:
            DeadlineError: it has not settled in time.
            PenstockError: the work failed or was cancelled (with the work's code and reason), or the handle is gone.
        """
        return await self.wait_until(Deadline(timeout))

    async def wait_until(self: Self, deadline: Deadline) -> Self:
        """As :meth:`wait`, for a part of a longer call."""
        await wait_all(self._connection, [self], deadline)
        self.check()
        return self

    async def result(self, timeout: float | None = None) -> Any:
        """Waits, and answers what the work gave; see the subclasses. Raises as :meth:`wait`."""
        await self.wait(timeout)
        return None

    async def exception(self, timeout: float | None = None) -> PenstockError | None:
        """Waits, and answers what the work failed with; ``None`` if it went well.

        Raises:
            DeadlineError: it has not settled in time.
            PenstockError: the handle is gone.
        """
        await wait_all(self._connection, [self], Deadline(timeout))
        if self.message.state == handle_pb2.HANDLE_STATE_READY:
            return None
        return PenstockError.from_status(self.message.error)

    async def renew(self, lease: float = 0.0) -> None:
        """Keeps a settled result for at least ``lease`` more seconds; 0 is the daemon's default.

        Raises:
            PenstockError: the handle is gone; renewing revives nothing.
        """
        request = handle_pb2.RenewHandlesRequest(names=[self.name], lease=seconds(lease))
        response = await self._connection.unary("HandleService/RenewHandles", request, handle_pb2.RenewHandlesResponse)
        self.take(response.handles[0])

    async def release(self) -> None:
        """Gives the result back; its bytes go when nothing uses them. Twice is fine, as is one that is gone."""
        await release_all(self._connection, [self.name])

    async def cancel(self) -> str:
        """Stops the work behind a pending result.

        Returns:
            ``CANCELLED``, ``CANCELLING`` (soon: at the next micro-batch, or when it is recorded) or ``NOT_CANCELLABLE``
            (finished, or training that has started).

        Raises:
            PenstockError: the handle is gone.
        """
        request = handle_pb2.CancelHandlesRequest(names=[self.name])
        response = await self._connection.unary(
            "HandleService/CancelHandles", request, handle_pb2.CancelHandlesResponse
        )
        return effect_of(response.answers[0])


class ValueHandle(Handle):
    """Tensors, and values that are none, which the daemon holds. They can be inputs of further calls without coming here."""

    async def result(self, timeout: float | None = None) -> dict[str, Any]:
        """The same as :meth:`fetch`."""
        return await self.fetch(timeout)

    async def fetch(self, timeout: float | None = None, outputs: Sequence[str] = ()) -> dict[str, Any]:
        """Waits, and brings results here, by name: arrays; and, for an output that is no tensor, a list with its value of
        each micro-batch: ``None``, numbers, texts, lists, tuples, dictionaries, arrays. A connection that breaks goes on
        where it was.

        Args:
            outputs: names of wanted results; empty: all. The others stay with the daemon.

        Raises:
            ValueError: one of ``outputs`` is no result of the handle.
            ImportError: one is of bfloat16, and ``ml_dtypes`` is not installed.
            DeadlineError, PenstockError: as :meth:`wait`; DATA_LOSS / CHUNK_CHECKSUM if bytes arrived damaged.
        """
        return await self.fetch_until(Deadline(timeout), outputs)

    async def share(self, recipient: str, lease: float = 0.0, timeout: float | None = None) -> str:
        """Waits until the result is ready, and gives another caller a handle of the same values, with a lease of its own:
        what happens to one of the two does not touch the other. The bytes are charged once, to the owner of the oldest
        that lives.

        Args:
            recipient: the name of the caller who gets it.
            lease: seconds from now on; 0 is the daemon's default.
            timeout: seconds for all of it; ``None`` waits as long as it takes.

        Returns:
            The new handle's name. It is of use to the recipient only: :meth:`Client.handle`.

        Raises:
            DeadlineError: as :meth:`wait`.
            PenstockError: as :meth:`wait`; RECIPIENT_UNKNOWN, HANDLE_BUDGET.
        """
        deadline = Deadline(timeout)
        await self.wait_until(deadline)
        request = handle_pb2.ShareHandleRequest(
            name=self.name, recipient=recipient, request_id=new_request_id(), lease=seconds(lease)
        )
        shared = await self._connection.unary("HandleService/ShareHandle", request, handle_pb2.Handle, deadline)
        return shared.name

    async def fetch_until(self, deadline: Deadline, outputs: Sequence[str] = ()) -> dict[str, Any]:
        """As :meth:`fetch`, for a part of a longer call."""
        await self.wait_until(deadline)
        wanted = names_of(outputs)
        inline = self.inline()
        if inline is not None:
            check_wanted(wanted, inline)
            return {name: value for name, value in inline.items() if not wanted or name in wanted}
        if self.message.results_omitted:
            await self.refresh()
        download = Download(self.message, wanted)

        async def attempt() -> None:
            request = download.start_stream()
            if request is None:
                return
            await collect(
                self._connection.stream("HandleService/FetchHandle", request, handle_pb2.FetchHandleResponse, deadline),
                download.accept,
            )
            download.end_stream()

        while download.request() is not None:
            await self._connection.retry(attempt, "HandleService/FetchHandle", deadline)
        return download.results()


class GraphHandle(Handle):
    """Activations kept by a forward; only :meth:`Pipeline.backward` takes it, once unless retained."""


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

    def kept(self) -> list[ValueHandle]:
        """What the call keeps for its caller beside the outcome."""
        return [handle for handle in (self.outputs, self.input_gradients) if handle is not None]

    async def result(self, timeout: float | None = None) -> Outcome:
        """Waits, and answers what happened. Raises as :meth:`wait`."""
        return await self.result_until(Deadline(timeout))

    async def result_until(self, deadline: Deadline) -> Outcome:
        """As :meth:`result`, for a part of a longer call."""
        await self.wait_until(deadline)
        return Outcome(
            **outcome_fields(self.message.outcome), outputs=self.outputs, input_gradients=self.input_gradients
        )


class EvaluationHandle(Handle):
    """What an evaluation finds."""

    async def result(self, timeout: float | None = None) -> Evaluation:
        """Waits, and answers what was found. Raises as :meth:`wait`."""
        return await self.result_until(Deadline(timeout))

    async def result_until(self, deadline: Deadline) -> Evaluation:
        """As :meth:`result`, for a part of a longer call."""
        await self.wait_until(deadline)
        return Evaluation.of(self.message.outcome)


async def gather(*handles: Handle, timeout: float | None = None) -> list[Any]:
    """Waits for many with few calls, and returns their results in order.

    Raises:
        ValueError: they are of several clients.
        DeadlineError: one has not settled in time.
        PenstockError: the first in order that failed.
    """
    if any(handle._connection is not handles[0]._connection for handle in handles):
        raise ValueError("handles: must all be of one client, whose daemon is asked")
    deadline = Deadline(timeout)
    if handles:
        await wait_all(handles[0]._connection, handles, deadline)
    return [await handle.result(None if timeout is None else deadline.left()) for handle in handles]


async def wait_all(connection: Connection, handles: Sequence[Handle], deadline: Deadline) -> None:
    """Waits until all handles have settled, ready or not.

    Raises:
        DeadlineError: one has not settled in time.
        PenstockError: one is gone.
    """
    pending = [handle for handle in handles if not handle.settled]
    while pending:
        if deadline.left() <= 0.0:
            raise DeadlineError.pending(pending[0].name, deadline.seconds)
        try:
            response = await connection.unary(
                "HandleService/WaitHandles",
                wait_request(pending, deadline.hold()),
                handle_pb2.WaitHandlesResponse,
                deadline,
                LONGEST_WAIT,
            )
        except DeadlineError as error:
            raise DeadlineError.pending(pending[0].name, deadline.seconds) from error
        for handle, answer in zip(pending, response.handles):
            handle.take(answer)
        pending = [handle for handle in pending if not handle.settled]


async def release_all(connection: Connection, names: Iterable[str]) -> None:
    """Releases handles by name, also ones that are gone."""
    remaining = list(names)
    while remaining:
        request = handle_pb2.ReleaseHandlesRequest(names=remaining[:NAMES_OF_A_CALL])
        await connection.unary("HandleService/ReleaseHandles", request, handle_pb2.ReleaseHandlesResponse)
        remaining = remaining[NAMES_OF_A_CALL:]
