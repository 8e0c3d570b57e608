"""The work of a pipeline: inference and training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Literal, NamedTuple, overload

from penstock import requests
from penstock.deadline import LONGEST_WAIT
from penstock.errors import DeadlineError, PenstockError
from penstock.handles import GraphHandle, Outcome, OutcomeHandle, ValueHandle
from penstock.inputs import Inputs, InputValue, named
from penstock.specifications import OptionValue
from penstock.state import PipelineState
from penstock.tensors import Array
from penstock.uploads import staged
from penstock.v1 import handle_pb2, tensor_pb2, work_pb2

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Forward(NamedTuple):
    """What :meth:`Pipeline.forward` gives: the outputs, and the graph for :meth:`Pipeline.backward`."""

    outputs: ValueHandle
    graph: GraphHandle


class Pipeline(PipelineState):
    """One pipeline of a daemon. Methods may be called from any thread; calls that change state run in the order of
    acceptance.

    Every work call takes:
        wait: ``True`` answers what the work gave and releases its handle; ``False`` answers the handle at once.
        timeout: seconds for all of the call: upload, waiting and download; ``None`` as long as it takes. Then a
            :class:`DeadlineError` is raised; training goes on, and inference that nobody waits for is cancelled. Until
            then a call that gets no answer is repeated under its request id, so that nothing is applied twice.
        request_id: a UUID; a second call with the same one, and the same other arguments, gets the first one's answer.
            Empty: a new one.
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
        request_id: str = ...,
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
        request_id: str = ...,
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
        request_id: str = "",
    ) -> dict[str, Array] | ValueHandle:
        """Runs the model without keeping a graph, on the weights of the last finished step, without dropout.

        Args:
            outputs: names of wanted outputs; empty: all.
            micro_batches: into how many the rows are cut; ``None`` as the pipeline says.
            priority: among inference calls that wait, higher ones go first.

        Returns:
            Arrays by output name, of as many rows as the inputs; or their handle.
        """
        call = requests.Call.of(wait, timeout, lease, request_id)
        with self._stage(inputs, call) as messages:
            request = requests.infer(
                self.name,
                messages,
                call,
                outputs=outputs,
                micro_batches=micro_batches,
                priority=priority,
            )
            response = self._connection.unary(
                "WorkService/Infer", request, work_pb2.InferResponse, call.deadline, LONGEST_WAIT
            )
        handle = ValueHandle(self._connection, response.outputs)
        if not wait:
            return handle
        try:
            return handle.fetch_until(call.deadline)
        finally:
            self._connection.release_later([handle.name])

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
        after: str = ...,
        wait: Literal[True] = ...,
        timeout: float | None = ...,
        lease: float = ...,
        request_id: str = ...,
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
        after: str = ...,
        wait: Literal[False],
        timeout: float | None = ...,
        lease: float = ...,
        request_id: str = ...,
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
        after: str = "",
        wait: bool = True,
        timeout: float | None = None,
        lease: float = 0.0,
        request_id: str = "",
    ) -> Outcome | OutcomeHandle:
        """Forward, loss, backward and optimizer step, atomic.

        Args:
            target: what the loss compares with; cross-entropy: class indices, INT64 ``[rows, ...]``; ``None`` for
                ``"scalar_output"``, where the model itself gives the loss.
            loss: as in :meth:`Client.create_pipeline`, with its options and output; ``None`` as the pipeline says.
            learning_rate, clip_norm: instead of the pipeline's, for this step; a ``clip_norm`` of 0 does not clip.
            outputs: names of model outputs to keep; they come as ``Outcome.outputs``.
            expected_state: the ``state_token`` of the last outcome; a stale one is refused (STATE_MISMATCH).
            after: the request id of a call of this caller on this pipeline, after which this one is accepted although
                both are under way.

        Raises:
            PenstockError: also ACCUMULATION_OPEN, if contributions wait for :meth:`optimizer_step`; STEP_ROLLED_BACK: the
                step failed, was undone on every stage, and may be taken again; PIPELINE_BROKEN: it could not be undone,
                and only :meth:`restore_checkpoint`, :meth:`load_from` of everything and :meth:`delete` help.
        """
        call = requests.Call.of(wait, timeout, lease, request_id)
        handle = self._start_step(
            inputs,
            target,
            call,
            loss=loss,
            loss_options=loss_options,
            loss_output=loss_output,
            micro_batches=micro_batches,
            learning_rate=learning_rate,
            clip_norm=clip_norm,
            outputs=outputs,
            expected_state=expected_state,
            after=after,
        )
        return self._finish(handle, call) if wait else handle

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
        accumulation_lease: float = ...,
        wait: Literal[True] = ...,
        timeout: float | None = ...,
        lease: float = ...,
        request_id: str = ...,
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
        accumulation_lease: float = ...,
        wait: Literal[False],
        timeout: float | None = ...,
        lease: float = ...,
        request_id: str = ...,
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
        accumulation_lease: float = 0.0,
        wait: bool = True,
        timeout: float | None = None,
        lease: float = 0.0,
        request_id: str = "",
    ) -> Outcome | OutcomeHandle:
        """Adds one contribution to the gradients of the next :meth:`optimizer_step`.

        Args:
            total_rows: rows of the whole step, over all its contributions; ``None``: this call's rows.
            total_elements: counted elements of the whole step, where labels are ignored.
            accumulation_lease: seconds after which the daemon discards what is accumulated, if neither a further
                contribution nor the step has come; 0: never. What has been lost is told by ACCUMULATION_LOST.

        The other arguments are those of :meth:`train_step`.

        Raises:
            PenstockError: also ACCUMULATION_HELD, if another caller, or another program of this one, has contributions
                open; ACCUMULATION_LOST, if those of this program were discarded by others or by the end of their lease:
                discard, then contribute all of the step anew.
        """
        call = requests.Call.of(wait, timeout, lease, request_id)
        with self._stage(inputs, call, target) as messages:
            request = requests.forward_backward(
                self.name,
                *requests.without_target(messages, target),
                call,
                loss=loss,
                loss_options=loss_options,
                loss_output=loss_output,
                total_rows=total_rows,
                total_elements=total_elements,
                micro_batches=micro_batches,
                outputs=outputs,
                expected_state=expected_state,
                accumulation_lease=accumulation_lease,
            )
            response = self._connection.unary(
                "WorkService/ForwardBackward", request, work_pb2.ForwardBackwardResponse, call.deadline, LONGEST_WAIT
            )
        handle = self._handle(response.outcome, response.outputs if outputs else None)
        return self._finish(handle, call) if wait else handle

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
        request_id: str = "",
    ) -> Forward:
        """Runs the model in training mode and keeps its graph, for a loss that the caller computes.

        Args:
            input_gradients: ``True`` keeps what :meth:`backward` needs to answer d loss / d input.

        Returns:
            Two handles, also with ``wait``. The graph belongs to the present step and is freed when that ends.

        Raises:
            PenstockError: also GRAPH_LIMIT, if too many graphs are open.
        """
        call = requests.Call.of(wait, timeout, lease, request_id)
        with self._stage(inputs, call) as messages:
            request = requests.forward(
                self.name,
                messages,
                call,
                outputs=outputs,
                micro_batches=micro_batches,
                input_gradients=input_gradients,
            )
            response = self._connection.unary(
                "WorkService/Forward", request, work_pb2.ForwardResponse, call.deadline, LONGEST_WAIT
            )
        result = Forward(ValueHandle(self._connection, response.outputs), GraphHandle(self._connection, response.graph))
        if wait:
            result.outputs.wait_until(call.deadline)
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
        accumulation_lease: float = ...,
        wait: Literal[True] = ...,
        timeout: float | None = ...,
        lease: float = ...,
        request_id: str = ...,
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
        accumulation_lease: float = ...,
        wait: Literal[False],
        timeout: float | None = ...,
        lease: float = ...,
        request_id: str = ...,
    ) -> OutcomeHandle: ...

    def backward(
        self,
        graph: GraphHandle,
        gradients: Inputs,
        *,
        retain_graph: bool = False,
        input_gradients: bool = False,
        expected_state: str = "",
        accumulation_lease: float = 0.0,
        wait: bool = True,
        timeout: float | None = None,
        lease: float = 0.0,
        request_id: str = "",
    ) -> Outcome | OutcomeHandle:
        """Adds the contribution of a forward, given d loss / d output for each output, scaled by the caller.

        Args:
            gradients: by output name, each of its output's shape and type.
            retain_graph: ``True`` lets the graph serve again; ``False`` uses it up.
            input_gradients: ``True`` answers d loss / d input too, as ``Outcome.input_gradients``; the forward must
                have asked for them. An input that has none is left out.
            accumulation_lease: as in :meth:`forward_backward`.

        Raises:
            PenstockError: also GRAPH_CONSUMED and GRAPH_STALE.
        """
        values = named(gradients, self.signature.outputs, "outputs")
        call = requests.Call.of(wait, timeout, lease, request_id)
        with staged(self._connection, self.name, values, call.deadline, call.request_id) as messages:
            request = requests.backward(
                self.name,
                graph.name,
                messages,
                call,
                retain_graph=retain_graph,
                input_gradients=input_gradients,
                expected_state=expected_state,
                accumulation_lease=accumulation_lease,
            )
            response = self._connection.unary(
                "WorkService/Backward", request, work_pb2.BackwardResponse, call.deadline, LONGEST_WAIT
            )
        handle = self._handle(response.outcome, None, response.input_gradients if input_gradients else None)
        return self._finish(handle, call) if wait else handle

    @overload
    def optimizer_step(
        self,
        *,
        discard: bool = ...,
        force: bool = ...,
        learning_rate: float | None = ...,
        clip_norm: float | None = ...,
        expected_state: str = ...,
        wait: Literal[True] = ...,
        timeout: float | None = ...,
        lease: float = ...,
        request_id: str = ...,
    ) -> Outcome: ...

    @overload
    def optimizer_step(
        self,
        *,
        discard: bool = ...,
        force: bool = ...,
        learning_rate: float | None = ...,
        clip_norm: float | None = ...,
        expected_state: str = ...,
        wait: Literal[False],
        timeout: float | None = ...,
        lease: float = ...,
        request_id: str = ...,
    ) -> OutcomeHandle: ...

    def optimizer_step(
        self,
        *,
        discard: bool = False,
        force: bool = False,
        learning_rate: float | None = None,
        clip_norm: float | None = None,
        expected_state: str = "",
        wait: bool = True,
        timeout: float | None = None,
        lease: float = 0.0,
        request_id: str = "",
    ) -> Outcome | OutcomeHandle:
        """Applies the contributions to the weights, or forgets them.

        Args:
            discard: ``True`` forgets them: those of this program, or what another program of this caller has left.
            force: forgets those of any caller, too.
            learning_rate, clip_norm: as in :meth:`train_step`.

        Raises:
            PenstockError: also ACCUMULATION_EMPTY; STEP_ROLLED_BACK and PIPELINE_BROKEN as :meth:`train_step`.
        """
        call = requests.Call.of(wait, timeout, lease, request_id)
        request = requests.optimizer_step(
            self.name,
            call,
            discard=discard,
            force=force,
            learning_rate=learning_rate,
            clip_norm=clip_norm,
            expected_state=expected_state,
        )
        response = self._connection.unary(
            "WorkService/OptimizerStep", request, work_pb2.OptimizerStepResponse, call.deadline, LONGEST_WAIT
        )
        handle = self._handle(response.outcome, None)
        return self._finish(handle, call) if wait else handle

    # --- inside -------------------------------------------------------------------------------------------------------

    def _stage(
        self, inputs: Inputs, call: requests.Call, target: InputValue = None
    ) -> AbstractContextManager[list[tensor_pb2.Input]]:
        """Inputs, and the target last if there is one."""
        values = named(inputs, self.signature.inputs, "inputs")
        requests.with_target(values, self.signature, target)
        return staged(self._connection, self.name, values, call.deadline, call.request_id)

    def _start_step(
        self, inputs: Inputs, target: InputValue, call: requests.Call, **arguments: Unpack[requests.StepOptions]
    ) -> OutcomeHandle:
        """The first part of :meth:`train_step`: when it returns, the daemon has accepted the call."""
        with self._stage(inputs, call, target) as messages:
            request = requests.train_step(
                self.name, *requests.without_target(messages, target), call, **arguments
            )
            response = self._connection.unary(
                "WorkService/TrainStep", request, work_pb2.TrainStepResponse, call.deadline, LONGEST_WAIT
            )
        outputs = response.outputs if arguments.get("outputs") else None
        return self._handle(response.outcome, outputs)

    def _handle(
        self,
        outcome: handle_pb2.Result,
        outputs: handle_pb2.Result | None,
        input_gradients: handle_pb2.Result | None = None,
    ) -> OutcomeHandle:
        kept = None if outputs is None else ValueHandle(self._connection, outputs)
        gradients = None if input_gradients is None else ValueHandle(self._connection, input_gradients)
        return OutcomeHandle(self._connection, outcome, kept, gradients)

    def _finish(self, handle: OutcomeHandle, call: requests.Call) -> Outcome:
        """What a call that changes state did; the handle is given back, unless its outcome is still to come."""
        try:
            result = handle.result_until(call.deadline)
        except DeadlineError:
            raise DeadlineError.pending(handle.name, call.deadline.seconds, call.request_id) from None
        except PenstockError as error:
            if not error.in_doubt:
                self._connection.release_later([handle.name])
            raise
        self._connection.release_later([handle.name])
        return result
