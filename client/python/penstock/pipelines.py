"""The work of a pipeline: inference and training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, cast, overload

from penstock import requests
from penstock.handles import GraphHandle, Outcome, OutcomeHandle, ValueHandle
from penstock.inputs import Inputs, InputValue, Staged, named
from penstock.requests import first_wait
from penstock.specifications import OptionValue
from penstock.state import PipelineState
from penstock.tensors import Array
from penstock.v1 import handle_pb2, tensor_pb2, work_pb2


class Forward(NamedTuple):
    """What :meth:`Pipeline.forward` gives: the outputs, and the graph for :meth:`Pipeline.backward`."""

    outputs: ValueHandle
    graph: GraphHandle


class Pipeline(PipelineState):
    """One pipeline of a daemon. Methods may be called from any thread; calls that change state run in the order of
    acceptance.

    Every work call takes:
        wait: ``True`` answers what the work gave and releases its handle; ``False`` answers the handle at once.
        timeout: seconds to wait; ``None`` as long as it takes. After a ``TimeoutError`` training goes on, and inference
            that nobody waits for is cancelled.
        lease: seconds that results are kept without renewal; 0 is the daemon's default.
        inputs: one array, handle or (handle, tensor) if the model has one input, else a mapping by name. The first
            dimension is the batch, rows; all inputs have as many rows. Large arrays are uploaded first.

    And every call raises :class:`PenstockError` for what the daemon refuses or what fails.
    """

    # --- inference ----------------------------------------------------------------------------------------------------

    @overload
    def infer(
        self,
        inputs: Inputs,
        *,
        outputs: Sequence[str] = ...,
        micro_batches: int | None = ...,
        priority: int = ...,
        wait: Literal[True] = ...,
        timeout: float | None = ...,
        lease: float = ...,
    ) -> dict[str, Array]: ...

    @overload
    def infer(
        self,
        inputs: Inputs,
        *,
        outputs: Sequence[str] = ...,
        micro_batches: int | None = ...,
        priority: int = ...,
        wait: Literal[False],
        timeout: float | None = ...,
        lease: float = ...,
    ) -> ValueHandle: ...

    def infer(
        self,
        inputs: Inputs,
        *,
        outputs: Sequence[str] = (),
        micro_batches: int | None = None,
        priority: int = 0,
        wait: bool = True,
        timeout: float | None = None,
        lease: float = 0.0,
    ) -> dict[str, Array] | ValueHandle:
        """Runs the model without keeping a graph, on the weights of the last finished step, without dropout.

        Args:
            outputs: names of wanted outputs; empty: all.
            micro_batches: into how many the rows are cut; ``None`` as the pipeline says.
            priority: among inference calls that wait, higher ones go first.

        Returns:
            Arrays by output name, of as many rows as the inputs; or their handle.
        """
        with self._stage(inputs) as staged:
            request = requests.infer(
                self.name,
                staged.messages,
                wait,
                outputs=outputs,
                micro_batches=micro_batches,
                priority=priority,
                timeout=timeout,
                lease=lease,
            )
            response = self._connection.unary(
                "WorkService/Infer", request, work_pb2.InferResponse, first_wait(wait, timeout)
            )
        handle = ValueHandle(self._connection, response.outputs)
        if not wait:
            return handle
        with handle:
            return handle.fetch(timeout)

    # --- training -----------------------------------------------------------------------------------------------------

    @overload
    def train_step(
        self,
        inputs: Inputs,
        target: InputValue = None,
        *,
        loss: str | None = ...,
        loss_options: Mapping[str, OptionValue] | None = ...,
        loss_output: str = ...,
        micro_batches: int | None = ...,
        learning_rate: float | None = ...,
        clip_norm: float | None = ...,
        outputs: Sequence[str] = ...,
        expected_state: str = ...,
        wait: Literal[True] = ...,
        timeout: float | None = ...,
        lease: float = ...,
    ) -> Outcome: ...

    @overload
    def train_step(
        self,
        inputs: Inputs,
        target: InputValue = None,
        *,
        loss: str | None = ...,
        loss_options: Mapping[str, OptionValue] | None = ...,
        loss_output: str = ...,
        micro_batches: int | None = ...,
        learning_rate: float | None = ...,
        clip_norm: float | None = ...,
        outputs: Sequence[str] = ...,
        expected_state: str = ...,
        wait: Literal[False],
        timeout: float | None = ...,
        lease: float = ...,
    ) -> OutcomeHandle: ...

    def train_step(
        self,
        inputs: Inputs,
        target: InputValue = None,
        *,
        loss: str | None = None,
        loss_options: Mapping[str, OptionValue] | None = None,
        loss_output: str = "",
        micro_batches: int | None = None,
        learning_rate: float | None = None,
        clip_norm: float | None = None,
        outputs: Sequence[str] = (),
        expected_state: str = "",
        wait: bool = True,
        timeout: float | None = None,
        lease: float = 0.0,
    ) -> Outcome | OutcomeHandle:
        """Forward, loss, backward and optimizer step, atomic.

        Args:
            target: what the loss compares with; cross-entropy: class indices, INT64 ``[rows, ...]``; ``None`` for
                ``"scalar_output"``, where the model itself gives the loss.
            loss: as in :meth:`Client.create_pipeline`, with its options and output; ``None`` as the pipeline says.
            learning_rate, clip_norm: instead of the pipeline's, for this step; a ``clip_norm`` of 0 does not clip.
            outputs: names of model outputs to keep; they come as ``Outcome.outputs``.
            expected_state: the ``state_token`` of the last outcome; a stale one is refused (STATE_MISMATCH).

        Raises:
            PenstockError: also ACCUMULATION_OPEN, if contributions wait for :meth:`optimizer_step`.
        """
        with self._stage(inputs, target) as staged:
            request = requests.train_step(
                self.name,
                *self._with_target(staged, target),
                wait,
                loss=loss,
                loss_options=loss_options,
                loss_output=loss_output,
                micro_batches=micro_batches,
                learning_rate=learning_rate,
                clip_norm=clip_norm,
                outputs=outputs,
                expected_state=expected_state,
                timeout=timeout,
                lease=lease,
            )
            response = self._connection.unary(
                "WorkService/TrainStep", request, work_pb2.TrainStepResponse, first_wait(wait, timeout)
            )
        return self._outcome(response.outcome, response.outputs if outputs else None, wait, timeout)

    @overload
    def forward_backward(
        self,
        inputs: Inputs,
        target: InputValue = None,
        *,
        loss: str | None = ...,
        loss_options: Mapping[str, OptionValue] | None = ...,
        loss_output: str = ...,
        total_rows: int | None = ...,
        total_elements: int | None = ...,
        micro_batches: int | None = ...,
        outputs: Sequence[str] = ...,
        expected_state: str = ...,
        wait: Literal[True] = ...,
        timeout: float | None = ...,
        lease: float = ...,
    ) -> Outcome: ...

    @overload
    def forward_backward(
        self,
        inputs: Inputs,
        target: InputValue = None,
        *,
        loss: str | None = ...,
        loss_options: Mapping[str, OptionValue] | None = ...,
        loss_output: str = ...,
        total_rows: int | None = ...,
        total_elements: int | None = ...,
        micro_batches: int | None = ...,
        outputs: Sequence[str] = ...,
        expected_state: str = ...,
        wait: Literal[False],
        timeout: float | None = ...,
        lease: float = ...,
    ) -> OutcomeHandle: ...

    def forward_backward(
        self,
        inputs: Inputs,
        target: InputValue = None,
        *,
        loss: str | None = None,
        loss_options: Mapping[str, OptionValue] | None = None,
        loss_output: str = "",
        total_rows: int | None = None,
        total_elements: int | None = None,
        micro_batches: int | None = None,
        outputs: Sequence[str] = (),
        expected_state: str = "",
        wait: bool = True,
        timeout: float | None = None,
        lease: float = 0.0,
    ) -> Outcome | OutcomeHandle:
        """Adds one contribution to the gradients of the next :meth:`optimizer_step`.

        Args:
            total_rows: rows of the whole step, over all its contributions; ``None``: this call's rows.
            total_elements: counted elements of the whole step, where labels are ignored.

        The other arguments are those of :meth:`train_step`.

        Raises:
            PenstockError: also ACCUMULATION_HELD, if another caller has contributions open.
        """
        with self._stage(inputs, target) as staged:
            request = requests.forward_backward(
                self.name,
                *self._with_target(staged, target),
                wait,
                loss=loss,
                loss_options=loss_options,
                loss_output=loss_output,
                total_rows=total_rows,
                total_elements=total_elements,
                micro_batches=micro_batches,
                outputs=outputs,
                expected_state=expected_state,
                timeout=timeout,
                lease=lease,
            )
            response = self._connection.unary(
                "WorkService/ForwardBackward", request, work_pb2.ForwardBackwardResponse, first_wait(wait, timeout)
            )
        return self._outcome(response.outcome, response.outputs if outputs else None, wait, timeout)

    def forward(
        self,
        inputs: Inputs,
        *,
        outputs: Sequence[str] = (),
        micro_batches: int | None = None,
        input_gradients: bool = False,
        wait: bool = True,
        timeout: float | None = None,
        lease: float = 0.0,
    ) -> Forward:
        """Runs the model in training mode and keeps its graph, for a loss that the caller computes.

        Args:
            input_gradients: ``True`` keeps what :meth:`backward` needs to answer d loss / d input.

        Returns:
            Two handles, also with ``wait``. The graph belongs to the present step and is freed when that ends.

        Raises:
            PenstockError: also GRAPH_LIMIT, if too many graphs are open.
        """
        with self._stage(inputs) as staged:
            request = requests.forward(
                self.name,
                staged.messages,
                wait,
                outputs=outputs,
                micro_batches=micro_batches,
                input_gradients=input_gradients,
                timeout=timeout,
                lease=lease,
            )
            response = self._connection.unary(
                "WorkService/Forward", request, work_pb2.ForwardResponse, first_wait(wait, timeout)
            )
        result = Forward(ValueHandle(self._connection, response.outputs), GraphHandle(self._connection, response.graph))
        if wait:
            result.outputs.wait(timeout)
        return result

    @overload
    def backward(
        self,
        graph: GraphHandle,
        gradients: Inputs,
        *,
        retain_graph: bool = ...,
        input_gradients: bool = ...,
        expected_state: str = ...,
        wait: Literal[True] = ...,
        timeout: float | None = ...,
        lease: float = ...,
    ) -> Outcome: ...

    @overload
    def backward(
        self,
        graph: GraphHandle,
        gradients: Inputs,
        *,
        retain_graph: bool = ...,
        input_gradients: bool = ...,
        expected_state: str = ...,
        wait: Literal[False],
        timeout: float | None = ...,
        lease: float = ...,
    ) -> OutcomeHandle: ...

    def backward(
        self,
        graph: GraphHandle,
        gradients: Inputs,
        *,
        retain_graph: bool = False,
        input_gradients: bool = False,
        expected_state: str = "",
        wait: bool = True,
        timeout: float | None = None,
        lease: float = 0.0,
    ) -> Outcome | OutcomeHandle:
        """Adds the contribution of a forward, given d loss / d output for each output, scaled by the caller.

        Args:
            gradients: by output name, each of its output's shape and type.
            retain_graph: ``True`` lets the graph serve again; ``False`` uses it up.
            input_gradients: ``True`` answers d loss / d input too, as ``Outcome.input_gradients``; the forward must
                have asked for them. An input that has none is left out.

        Raises:
            PenstockError: also GRAPH_CONSUMED and GRAPH_STALE.
        """
        values = named(gradients, self.signature.outputs, "outputs")
        with Staged(self._connection, self.name, values, self.signature.outputs) as staged:
            request = requests.backward(
                self.name,
                graph.name,
                staged.messages,
                wait,
                retain_graph=retain_graph,
                input_gradients=input_gradients,
                expected_state=expected_state,
                timeout=timeout,
                lease=lease,
            )
            response = self._connection.unary(
                "WorkService/Backward", request, work_pb2.BackwardResponse, first_wait(wait, timeout)
            )
        return self._outcome(
            response.outcome, None, wait, timeout, response.input_gradients if input_gradients else None
        )

    @overload
    def optimizer_step(
        self,
        *,
        discard: bool = ...,
        learning_rate: float | None = ...,
        clip_norm: float | None = ...,
        expected_state: str = ...,
        wait: Literal[True] = ...,
        timeout: float | None = ...,
        lease: float = ...,
    ) -> Outcome: ...

    @overload
    def optimizer_step(
        self,
        *,
        discard: bool = ...,
        learning_rate: float | None = ...,
        clip_norm: float | None = ...,
        expected_state: str = ...,
        wait: Literal[False],
        timeout: float | None = ...,
        lease: float = ...,
    ) -> OutcomeHandle: ...

    def optimizer_step(
        self,
        *,
        discard: bool = False,
        learning_rate: float | None = None,
        clip_norm: float | None = None,
        expected_state: str = "",
        wait: bool = True,
        timeout: float | None = None,
        lease: float = 0.0,
    ) -> Outcome | OutcomeHandle:
        """Applies the contributions to the weights, or forgets them.

        Args:
            discard: ``True`` forgets them.
            learning_rate, clip_norm: as in :meth:`train_step`.

        Raises:
            PenstockError: also ACCUMULATION_EMPTY.
        """
        request = requests.optimizer_step(
            self.name,
            wait,
            discard=discard,
            learning_rate=learning_rate,
            clip_norm=clip_norm,
            expected_state=expected_state,
            timeout=timeout,
            lease=lease,
        )
        response = self._connection.unary(
            "WorkService/OptimizerStep", request, work_pb2.OptimizerStepResponse, first_wait(wait, timeout)
        )
        return self._outcome(response.outcome, None, wait, timeout)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _stage(self, inputs: Inputs, target: InputValue = None) -> Staged:
        """Inputs, and the target last if there is one."""
        values = named(inputs, self.signature.inputs, "inputs")
        wanted = requests.with_target(cast(dict[str, object], values), self.signature, target)
        return Staged(self._connection, self.name, values, wanted)

    @staticmethod
    def _with_target(staged: Staged, target: InputValue) -> tuple[list[tensor_pb2.Input], tensor_pb2.Input | None]:
        messages = staged.messages
        return (messages, None) if target is None else (messages[:-1], messages[-1])

    def _outcome(
        self,
        outcome: handle_pb2.Result,
        outputs: handle_pb2.Result | None,
        wait: bool,
        timeout: float | None,
        input_gradients: handle_pb2.Result | None = None,
    ) -> Outcome | OutcomeHandle:
        kept = None if outputs is None else ValueHandle(self._connection, outputs)
        gradients = None if input_gradients is None else ValueHandle(self._connection, input_gradients)
        handle = OutcomeHandle(self._connection, outcome, kept, gradients)
        if not wait:
            return handle
        with handle:
            return handle.result(timeout)
