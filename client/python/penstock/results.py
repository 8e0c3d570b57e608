"""What the daemon says of results that it holds. Makes no calls: both clients have their handles from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf import duration_pb2

from penstock import tensors, values
from penstock.errors import PenstockError
from penstock.v1 import handle_pb2

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
        self._inline_values = list(result.values)

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

    def inline(self) -> dict[str, Any] | None:
        """Arrays and values, if they came with the answer.

        Raises:
            ImportError: see :meth:`ValueHandle.fetch`.
        """
        if not self._inline and not self._inline_values:
            return None
        arrays = tensors.shown({tensor.header.name: tensors.decode(tensor) for tensor in self._inline})
        return values.results(arrays, self._inline_values)


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
        counted: elements that the loss is the mean of: labels that are not ignored, elements, or rows; ``None`` without
            a loss.
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
    counted: float | None = None


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found, of one mini-batch or of several.

    Attributes:
        loss: the mean over counted elements; 0 where nothing counts.
        metrics: by name: means over ``metric_elements``.
        counted: elements: labels that are not ignored, elements, or rows; with weights, the sum of what they weigh.
        metric_elements: labels that are not ignored, or elements; 0 without metrics.
        rows: of all mini-batches; micro_batches: how many they were cut into.
        step: finished optimizer steps of the weights; of several mini-batches: those of the last one.
        state_token: of the state that these weights came with: fits ``expected_state``, unless a call has changed the
            state since.
        seconds: from the start of the run to its end; of several mini-batches: the sum.
    """

    loss: float
    metrics: dict[str, float]
    counted: float
    metric_elements: int
    rows: int
    micro_batches: int
    step: int
    state_token: str
    seconds: float

    @property
    def perplexity(self) -> float:
        """Of cross-entropy: e to the power of the loss."""
        return math.exp(self.loss)

    @classmethod
    def of(cls, message: handle_pb2.Outcome) -> Evaluation:
        return cls(
            loss=message.loss,
            metrics=dict(message.metrics),
            counted=message.counted_elements,
            metric_elements=message.metric_elements,
            rows=message.rows,
            micro_batches=message.micro_batches,
            step=message.step,
            state_token=message.state_token,
            seconds=message.seconds,
        )

    @classmethod
    def joined(cls, parts: Sequence[Evaluation]) -> Evaluation:
        """The evaluation of all: each part's loss has the weight of its counted elements, its metrics that of their number.

        Raises:
            ValueError: there is none.
        """
        if not parts:
            raise ValueError("there is no mini-batch to evaluate")
        counted = [part.counted for part in parts]
        elements = [part.metric_elements for part in parts]

        def mean(values: list[float], weights: Sequence[float]) -> float:
            total = math.fsum(weights)
            return math.fsum(value * weight for value, weight in zip(values, weights)) / total if total else 0.0

        return cls(
            loss=mean([part.loss for part in parts], counted),
            metrics={name: mean([part.metrics[name] for part in parts], elements) for name in parts[0].metrics},
            counted=math.fsum(counted),
            metric_elements=sum(elements),
            rows=sum(part.rows for part in parts),
            micro_batches=sum(part.micro_batches for part in parts),
            step=parts[-1].step,
            state_token=parts[-1].state_token,
            seconds=math.fsum(part.seconds for part in parts),
        )


def outcome_fields(message: handle_pb2.Outcome) -> dict[str, Any]:
    """The plain facts of an outcome: what is not set is ``None``."""
    facts = {
        name: getattr(message, name) for name in ("step", "sequence", "state_token", "rows", "micro_batches", "seconds")
    }
    for name in ("loss", "gradient_norm", "applied", "learning_rate", "measured_bubble"):
        facts[name] = getattr(message, name) if message.HasField(name) else None
    facts["counted"] = message.counted_elements if message.HasField("counted_elements") else None
    return facts


def effect_of(answer: handle_pb2.CancelHandlesResponse.Answer) -> str:
    """What cancelling did; see :meth:`Handle.cancel`."""
    if answer.HasField("error"):
        raise PenstockError.from_status(answer.error)
    return handle_pb2.CancelHandlesResponse.Effect.Name(answer.effect).replace("EFFECT_", "")


def wait_request(pending: Sequence[Remote], wait: float, any_of: bool = False) -> handle_pb2.WaitHandlesRequest:
    """Waits for all of the first thousand, or for any."""
    return handle_pb2.WaitHandlesRequest(
        names=[handle.name for handle in pending[:1000]],
        mode=handle_pb2.WaitHandlesRequest.MODE_ANY if any_of else handle_pb2.WaitHandlesRequest.MODE_ALL,
        wait_for=seconds(wait),
    )
