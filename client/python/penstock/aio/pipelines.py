"""The work of a pipeline, for asyncio; see :mod:`penstock.pipelines`."""

from __future__ import annotations

import collections
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, overload

from penstock import requests
from penstock.aio.handles import GraphHandle, Outcome, OutcomeHandle, ValueHandle
from penstock.aio.resources import PipelineResource
from penstock.aio.uploads import staged
from penstock.data import Batch, batches_of
from penstock.inputs import Inputs, InputValue, named
from penstock.requests import first_wait
from penstock.tensors import Array
from penstock.v1 import handle_pb2, tensor_pb2, work_pb2

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Forward(NamedTuple):
    """What :meth:`Pipeline.forward` gives: the outputs, and the graph for :meth:`Pipeline.backward`."""

    outputs: ValueHandle
    graph: GraphHandle


class Pipeline(PipelineResource):
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
        timeout = arguments.get("timeout")
        values = named(inputs, self.signature.inputs, "inputs")
        async with staged(self._connection, self.name, values, self.signature.inputs) as messages:
            request = requests.infer(self.name, messages, wait, **arguments)
            response = await self._connection.unary(
                "WorkService/Infer", request, work_pb2.InferResponse, first_wait(wait, timeout)
            )
        handle = ValueHandle(self._connection, response.outputs)
        if not wait:
            return handle
        async with handle:
            return await handle.fetch(timeout)

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
        timeout = arguments.get("timeout")
        values, wanted = self._values(inputs, target)
        async with staged(self._connection, self.name, values, wanted) as messages:
            request = requests.train_step(self.name, *_split(messages, target), wait, **arguments)
            response = await self._connection.unary(
                "WorkService/TrainStep", request, work_pb2.TrainStepResponse, first_wait(wait, timeout)
            )
        return await self._outcome(response, bool(arguments.get("outputs")), wait, timeout)

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
        timeout = arguments.get("timeout")
        values, wanted = self._values(inputs, target)
        async with staged(self._connection, self.name, values, wanted) as messages:
            request = requests.forward_backward(self.name, *_split(messages, target), wait, **arguments)
            response = await self._connection.unary(
                "WorkService/ForwardBackward", request, work_pb2.ForwardBackwardResponse, first_wait(wait, timeout)
            )
        return await self._outcome(response, bool(arguments.get("outputs")), wait, timeout)

    async def forward(
        self,
        inputs: Inputs,
        *,
        input_gradients: bool = False,
        wait: bool = True,
        **arguments: Unpack[requests.ForwardArguments],
    ) -> Forward:
        """Runs the model in training mode and keeps its graph; see :meth:`penstock.Pipeline.forward`."""
        timeout = arguments.get("timeout")
        values = named(inputs, self.signature.inputs, "inputs")
        async with staged(self._connection, self.name, values, self.signature.inputs) as messages:
            request = requests.forward(self.name, messages, wait, input_gradients=input_gradients, **arguments)
            response = await self._connection.unary(
                "WorkService/Forward", request, work_pb2.ForwardResponse, first_wait(wait, timeout)
            )
        result = Forward(ValueHandle(self._connection, response.outputs), GraphHandle(self._connection, response.graph))
        if wait:
            await result.outputs.wait(timeout)
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
        timeout = arguments.get("timeout")
        values = named(gradients, self.signature.outputs, "outputs")
        async with staged(self._connection, self.name, values, self.signature.outputs) as messages:
            request = requests.backward(self.name, graph.name, messages, wait, **arguments)
            response = await self._connection.unary(
                "WorkService/Backward", request, work_pb2.BackwardResponse, first_wait(wait, timeout)
            )
        return await self._outcome(response, False, wait, timeout, bool(arguments.get("input_gradients")))

    @overload
    async def optimizer_step(
        self, *, discard: bool = ..., wait: Literal[True] = ..., **arguments: Unpack[requests.StepArguments]
    ) -> Outcome: ...

    @overload
    async def optimizer_step(
        self, *, discard: bool = ..., wait: Literal[False], **arguments: Unpack[requests.StepArguments]
    ) -> OutcomeHandle: ...

    async def optimizer_step(
        self, *, discard: bool = False, wait: bool = True, **arguments: Unpack[requests.StepArguments]
    ) -> Outcome | OutcomeHandle:
        """Applies the contributions to the weights, or forgets them; see :meth:`penstock.Pipeline.optimizer_step`."""
        timeout = arguments.get("timeout")
        request = requests.optimizer_step(self.name, wait, discard=discard, **arguments)
        response = await self._connection.unary(
            "WorkService/OptimizerStep", request, work_pb2.OptimizerStepResponse, first_wait(wait, timeout)
        )
        return await self._outcome(response, False, wait, timeout)

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
        under_way: collections.deque[OutcomeHandle] = collections.deque()
        number = 0
        try:
            async for batch in _batches(batches):
                if steps is not None and number >= steps:
                    break
                number += 1
                under_way.append(await self.train_step(batch.inputs, batch.target, wait=False, **arguments))
                while len(under_way) > ahead:
                    async with under_way.popleft() as handle:
                        yield await handle.result()
            while under_way:
                async with under_way.popleft() as handle:
                    yield await handle.result()
        finally:
            for handle in under_way:
                with suppress(Exception):
                    async with handle:
                        await handle.wait()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _values(
        self, inputs: Inputs, target: InputValue
    ) -> tuple[dict[str, InputValue], list[tensor_pb2.TensorSignature]]:
        values = named(inputs, self.signature.inputs, "inputs")
        wanted = requests.with_target(cast(dict[str, object], values), self.signature, target)
        return values, wanted

    async def _outcome(
        self, response: Any, has_outputs: bool, wait: bool, timeout: float | None, has_gradients: bool = False
    ) -> Outcome | OutcomeHandle:
        def value(result: handle_pb2.Result) -> ValueHandle:
            return ValueHandle(self._connection, result)

        handle = OutcomeHandle(
            self._connection,
            response.outcome,
            value(response.outputs) if has_outputs else None,
            value(response.input_gradients) if has_gradients else None,
        )
        if not wait:
            return handle
        async with handle:
            return await handle.result(timeout)


def _split(
    messages: list[tensor_pb2.Input], target: InputValue
) -> tuple[list[tensor_pb2.Input], tensor_pb2.Input | None]:
    return (messages, None) if target is None else (messages[:-1], messages[-1])


async def _batches(source: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Batch]:
    if isinstance(source, AsyncIterable):
        async for item in source:
            for batch in batches_of([item]):
                yield batch
        return
    for batch in batches_of(source):
        yield batch
