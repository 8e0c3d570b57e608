"""The work of a pipeline, for asyncio; see :mod:`penstock.pipelines`."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

from penstock import requests
from penstock.aio.handles import GraphHandle, Outcome, OutcomeHandle, ValueHandle
from penstock.aio.state import PipelineState
from penstock.aio.uploads import staged
from penstock.data import Batch, batches_of
from penstock.deadline import LONGEST_WAIT
from penstock.errors import DeadlineError, PenstockError
from penstock.inputs import Inputs, InputValue, named
from penstock.tensors import Array
from penstock.window import Window
from penstock.v1 import handle_pb2, tensor_pb2, work_pb2

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Forward(NamedTuple):
    """What :meth:`Pipeline.forward` gives: the outputs, and the graph for :meth:`Pipeline.backward`."""

    outputs: ValueHandle
    graph: GraphHandle


class Pipeline(PipelineState):
    """One pipeline of a daemon. Arguments, results and errors are those of :class:`penstock.Pipeline`; with
    ``wait=False`` a call answers a handle, which can be awaited, or be an input of a further call, at once."""

    # --- inference ----------------------------------------------------------------------------------------------------

    @overload
    async def infer(
        self, inputs: Inputs, *, wait: Literal[True] = ..., **arguments: Unpack[requests.InferArguments]
    ) -> dict[str, Array]: ...

    @overload
    async def infer(
        self, inputs: Inputs, *, wait: Literal[False], **arguments: Unpack[requests.InferArguments]
    ) -> ValueHandle: ...

    async def infer(
        self, inputs: Inputs, *, wait: bool = True, **arguments: Unpack[requests.InferArguments]
    ) -> dict[str, Array] | ValueHandle:
        """Runs the model without keeping a graph; see :meth:`penstock.Pipeline.infer`."""
        call, own = requests.split(wait, arguments)
        async with self._staged(inputs, None, call) as messages:
            request = requests.infer(self.name, messages, call, **own)
            response = await self._connection.unary(
                "WorkService/Infer", request, work_pb2.InferResponse, call.deadline, LONGEST_WAIT
            )
        handle = ValueHandle(self._connection, response.outputs)
        if not wait:
            return handle
        try:
            return await handle.fetch_until(call.deadline)
        finally:
            self._connection.release_later([handle.name])

    # --- training -----------------------------------------------------------------------------------------------------

    @overload
    async def train_step(
        self,
        inputs: Inputs,
        target: InputValue = ...,
        *,
        wait: Literal[True] = ...,
        **arguments: Unpack[requests.TrainArguments],
    ) -> Outcome: ...

    @overload
    async def train_step(
        self,
        inputs: Inputs,
        target: InputValue = ...,
        *,
        wait: Literal[False],
        **arguments: Unpack[requests.TrainArguments],
    ) -> OutcomeHandle: ...

    async def train_step(
        self,
        inputs: Inputs,
        target: InputValue = None,
        *,
        wait: bool = True,
        **arguments: Unpack[requests.TrainArguments],
    ) -> Outcome | OutcomeHandle:
        """Forward, loss, backward and optimizer step, atomic; see :meth:`penstock.Pipeline.train_step`."""
        call, own = requests.split(wait, arguments)
        handle = await self._start_step(inputs, target, call, **own)
        return await self._finish(handle, call) if wait else handle

    @overload
    async def forward_backward(
        self,
        inputs: Inputs,
        target: InputValue = ...,
        *,
        wait: Literal[True] = ...,
        **arguments: Unpack[requests.ContributionArguments],
    ) -> Outcome: ...

    @overload
    async def forward_backward(
        self,
        inputs: Inputs,
        target: InputValue = ...,
        *,
        wait: Literal[False],
        **arguments: Unpack[requests.ContributionArguments],
    ) -> OutcomeHandle: ...

    async def forward_backward(
        self,
        inputs: Inputs,
        target: InputValue = None,
        *,
        wait: bool = True,
        **arguments: Unpack[requests.ContributionArguments],
    ) -> Outcome | OutcomeHandle:
        """Adds one contribution to the gradients; see :meth:`penstock.Pipeline.forward_backward`."""
        call, own = requests.split(wait, arguments)
        async with self._staged(inputs, target, call) as messages:
            request = requests.forward_backward(self.name, *requests.without_target(messages, target), call, **own)
            response = await self._connection.unary(
                "WorkService/ForwardBackward", request, work_pb2.ForwardBackwardResponse, call.deadline, LONGEST_WAIT
            )
        handle = self._handle(response.outcome, response.outputs if arguments.get("outputs") else None)
        return await self._finish(handle, call) if wait else handle

    async def forward(
        self,
        inputs: Inputs,
        *,
        input_gradients: bool = False,
        wait: bool = True,
        **arguments: Unpack[requests.ForwardArguments],
    ) -> Forward:
        """Runs the model in training mode and keeps its graph; see :meth:`penstock.Pipeline.forward`."""
        call, own = requests.split(wait, arguments)
        async with self._staged(inputs, None, call) as messages:
            request = requests.forward(self.name, messages, call, input_gradients=input_gradients, **own)
            response = await self._connection.unary(
                "WorkService/Forward", request, work_pb2.ForwardResponse, call.deadline, LONGEST_WAIT
            )
        result = Forward(ValueHandle(self._connection, response.outputs), GraphHandle(self._connection, response.graph))
        if wait:
            await result.outputs.wait_until(call.deadline)
        return result

    @overload
    async def backward(
        self,
        graph: GraphHandle,
        gradients: Inputs,
        *,
        wait: Literal[True] = ...,
        **arguments: Unpack[requests.BackwardArguments],
    ) -> Outcome: ...

    @overload
    async def backward(
        self,
        graph: GraphHandle,
        gradients: Inputs,
        *,
        wait: Literal[False],
        **arguments: Unpack[requests.BackwardArguments],
    ) -> OutcomeHandle: ...

    async def backward(
        self,
        graph: GraphHandle,
        gradients: Inputs,
        *,
        wait: bool = True,
        **arguments: Unpack[requests.BackwardArguments],
    ) -> Outcome | OutcomeHandle:
        """Adds the contribution of a forward; see :meth:`penstock.Pipeline.backward`."""
        call, own = requests.split(wait, arguments)
        values = named(gradients, self.signature.outputs, "outputs")
        async with staged(self._connection, self.name, values, call.deadline, call.request_id) as messages:
            request = requests.backward(self.name, graph.name, messages, call, **own)
            response = await self._connection.unary(
                "WorkService/Backward", request, work_pb2.BackwardResponse, call.deadline, LONGEST_WAIT
            )
        gradients_made = response.input_gradients if arguments.get("input_gradients") else None
        handle = self._handle(response.outcome, None, gradients_made)
        return await self._finish(handle, call) if wait else handle

    @overload
    async def optimizer_step(
        self,
        *,
        discard: bool = ...,
        force: bool = ...,
        wait: Literal[True] = ...,
        **arguments: Unpack[requests.StepArguments],
    ) -> Outcome: ...

    @overload
    async def optimizer_step(
        self,
        *,
        discard: bool = ...,
        force: bool = ...,
        wait: Literal[False],
        **arguments: Unpack[requests.StepArguments],
    ) -> OutcomeHandle: ...

    async def optimizer_step(
        self,
        *,
        discard: bool = False,
        force: bool = False,
        wait: bool = True,
        **arguments: Unpack[requests.StepArguments],
    ) -> Outcome | OutcomeHandle:
        """Applies the contributions to the weights, or forgets them; see :meth:`penstock.Pipeline.optimizer_step`."""
        call, own = requests.split(wait, arguments)
        request = requests.optimizer_step(self.name, call, discard=discard, force=force, **own)
        response = await self._connection.unary(
            "WorkService/OptimizerStep", request, work_pb2.OptimizerStepResponse, call.deadline, LONGEST_WAIT
        )
        handle = self._handle(response.outcome, None)
        return await self._finish(handle, call) if wait else handle

    async def train(
        self,
        batches: Iterable[Any] | AsyncIterable[Any],
        *,
        ahead: int = 2,
        steps: int | None = None,
        **arguments: Unpack[requests.TrainArguments],
    ) -> AsyncIterator[Outcome]:
        """Makes one step of each batch and gives the outcomes in order; see :func:`penstock.outcomes`. Batches may come
        from an ``async for``, too."""
        window = Window(ahead)
        under_way: collections.deque[asyncio.Task[Outcome]] = collections.deque()
        number = 0
        last = ""
        accepted: set[asyncio.Task[Outcome]] = set()

        async def make(batch: Batch, call: requests.Call, own: dict[str, Any]) -> Outcome:
            handle = await self._start_step(batch.inputs, batch.target, call, **own)
            accepted.add(asyncio.current_task())  # type: ignore[arg-type]
            return await self._finish(handle, call)

        async def ended() -> Outcome:
            task = under_way.popleft()
            try:
                return await task
            except Exception:
                if task not in accepted:  # those behind it wait for its acceptance
                    for later in under_way:
                        later.cancel()
                raise
            finally:
                accepted.discard(task)

        try:
            async for batch in _batches(batches):
                if steps is not None and number >= steps:
                    break
                number += 1
                call, own = requests.split(True, arguments)
                under_way.append(asyncio.create_task(make(batch, call, {**own, "after": last})))
                last = call.request_id
                while len(under_way) >= window.room():
                    yield await ended()
            while under_way:
                yield await ended()
        finally:
            await asyncio.gather(*under_way, return_exceptions=True)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _staged(
        self, inputs: Inputs, target: InputValue, call: requests.Call
    ) -> AbstractAsyncContextManager[list[tensor_pb2.Input]]:
        values = named(inputs, self.signature.inputs, "inputs")
        requests.with_target(values, self.signature, target)
        return staged(self._connection, self.name, values, call.deadline, call.request_id)

    async def _start_step(
        self, inputs: Inputs, target: InputValue, call: requests.Call, **arguments: Unpack[requests.StepOptions]
    ) -> OutcomeHandle:
        """The first part of :meth:`train_step`: when it returns, the daemon has accepted the call."""
        async with self._staged(inputs, target, call) as messages:
            request = requests.train_step(self.name, *requests.without_target(messages, target), call, **arguments)
            response = await self._connection.unary(
                "WorkService/TrainStep", request, work_pb2.TrainStepResponse, call.deadline, LONGEST_WAIT
            )
        return self._handle(response.outcome, response.outputs if arguments.get("outputs") else None)

    def _handle(
        self,
        outcome: handle_pb2.Result,
        outputs: handle_pb2.Result | None,
        input_gradients: handle_pb2.Result | None = None,
    ) -> OutcomeHandle:
        kept = None if outputs is None else ValueHandle(self._connection, outputs)
        gradients = None if input_gradients is None else ValueHandle(self._connection, input_gradients)
        return OutcomeHandle(self._connection, outcome, kept, gradients)

    async def _finish(self, handle: OutcomeHandle, call: requests.Call) -> Outcome:
        """What a call that changes state did; the handle is given back, unless its outcome is still to come."""
        try:
            result = await handle.result_until(call.deadline)
        except DeadlineError:
            raise DeadlineError.pending(handle.name, call.deadline.seconds, call.request_id) from None
        except PenstockError as error:
            if not error.in_doubt:
                self._connection.release_later([handle.name])
            raise
        self._connection.release_later([handle.name])
        return result


async def _batches(source: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Batch]:
    if isinstance(source, AsyncIterable):
        async for item in source:
            for batch in batches_of([item]):
                yield batch
        return
    for batch in batches_of(source):
        yield batch
