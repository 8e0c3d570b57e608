# Written by client/python/tools/unasync.py from penstock/aio/work.py; change that file instead.
"""The work of a pipeline: inference and training."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock import requests
from penstock.handles import EvaluationHandle, GraphHandle, Handle, Outcome, OutcomeHandle, ValueHandle
from penstock.state import PipelineState
from penstock.uploads import staged
from penstock.creation import refusal, unready
from penstock.deadline import LONGEST_WAIT
from penstock.errors import DeadlineError, PenstockError
from penstock.inputs import Inputs, InputValue, named
from penstock.results import Evaluation
from penstock.v1 import handle_pb2, pipeline_pb2, tensor_pb2, work_pb2

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Forward(NamedTuple):
    """What :meth:`Pipeline.forward` gives: the outputs, and the graph for :meth:`Pipeline.backward`."""

    outputs: ValueHandle
    graph: GraphHandle


class PipelineWork(PipelineState):
    """What a pipeline does. Calls that change state run in the order of acceptance.

    Every call waits for what the work gives, and releases its handle. Its sister ``submit_...`` takes the same arguments
    and returns the handle when the daemon has accepted the call: it can be waited for, or be an input of a further call.

    Every call takes:
        timeout: seconds for all of the call: upload, waiting and download; ``None`` as long as it takes. Then a
            :class:`DeadlineError` is raised; training goes on, and inference that nobody waits for is cancelled. Until
            then a call that gets no answer is repeated under its request id, so that nothing is applied twice.
        request_id: a UUID; a second call with the same one, and the same other arguments, gets the first one's answer.
            Empty: a new one.
        lease: seconds that results are kept without renewal; 0 is the daemon's default.
        inputs: one array, handle or (handle, tensor) if the model has one input, else a mapping by name. The first
            dimension is the batch, rows; all inputs have as many rows, but those that are :class:`Whole`. Values of
            another kind are ``None``, texts, dictionaries, lists with one of these or a handle in them, or in
            :class:`Plain`. Lists of numbers and arrays of float64 take the type of the model where that is safe
            (:mod:`penstock.casting`). Large arrays are uploaded first.

    And every call raises :class:`PenstockError` for what the daemon refuses or what fails.
    """

    # --- inference ----------------------------------------------------------------------------------------------------

    def infer(self, inputs: Inputs, **arguments: Unpack[requests.InferArguments]) -> dict[str, Any]:
        """Runs the model without keeping a graph, on the weights of the last finished step, without dropout.

        Args:
            outputs: names of wanted outputs; empty: all.
            micro_batches: into how many the rows are cut; ``None`` as the pipeline says.
            priority: among inference calls that wait, higher ones go first.

        Returns:
            By output name, arrays of as many rows as the inputs, also if these have none. What is no tensor is a list with
            its value of each micro-batch; a list that the model gives is as several outputs.
        """
        call, own = requests.split(requests.InferArguments, True, arguments)
        handle = self._infer(inputs, call, own)
        try:
            return handle.fetch_until(call.deadline)
        finally:
            self._connection.release_later([handle.name])

    def submit_infer(self, inputs: Inputs, **arguments: Unpack[requests.InferArguments]) -> ValueHandle:
        """As :meth:`infer`, but returns when the daemon has accepted the call."""
        return self._infer(inputs, *requests.split(requests.InferArguments, False, arguments))

    def evaluate(
        self, inputs: Inputs, target: InputValue = None, **arguments: Unpack[requests.EvaluateArguments]
    ) -> Evaluation:
        """The loss and metrics of a mini-batch, computed by the daemon as :meth:`infer` runs: beside training, on the
        weights of one finished step, with running statistics and without dropout. Nothing changes, and no outputs come
        here. See :func:`penstock.evaluate` for many mini-batches.

        Args:
            target, weights, loss: as in :meth:`train_step`.
            metrics: names: cross-entropy has ``"accuracy"`` and ``"top_5_accuracy"`` (or another number), binary
                cross-entropy ``"accuracy"``, mean squared error ``"mean_absolute_error"``. Labels that the loss ignores
                are not counted; what an element weighs does not matter to them.
            micro_batches: into how many the rows are cut; ``None`` as the pipeline says.
            priority: among inference calls that wait, higher ones go first.

        Raises:
            PenstockError: also FIELD_INVALID for a metric that the loss does not have.
        """
        call, own = requests.split(requests.EvaluateArguments, True, arguments)
        handle = self._evaluate(inputs, target, call, own)
        try:
            return handle.result_until(call.deadline)
        finally:
            self._connection.release_later([handle.name])

    def submit_evaluate(
        self, inputs: Inputs, target: InputValue = None, **arguments: Unpack[requests.EvaluateArguments]
    ) -> EvaluationHandle:
        """As :meth:`evaluate`, but returns when the daemon has accepted the call."""
        return self._evaluate(inputs, target, *requests.split(requests.EvaluateArguments, False, arguments))

    # --- training -----------------------------------------------------------------------------------------------------

    def train_step(
        self, inputs: Inputs, target: InputValue = None, **arguments: Unpack[requests.TrainArguments]
    ) -> Outcome:
        """Forward, loss, backward and optimizer step, atomic.

        Args:
            target: what the loss compares with; cross-entropy: class indices, INT64 ``[rows, ...]``; ``None`` for
                ``"scalar_output"``, where the model itself gives the loss, and where the inputs are a mapping that has
                it as ``"labels"``, which is no input of the model.
            weights: of the target's elements, in its first dimensions: ``[rows]``, or more of them, each of the target's
                size or 1; the loss is the sum of the weighted losses over the sum of the weights; ``None``: all weigh 1.
            loss: as in :meth:`Client.create_pipeline`, with its options, output and class weights; ``None`` as the
                pipeline says.
            learning_rate, clip_norm: instead of the pipeline's, for this step; a ``clip_norm`` of 0 does not clip.
            outputs: names of model outputs to keep; they come as ``Outcome.outputs``.
            expected_state: the ``state_token`` of the last outcome; a stale one is refused (STATE_MISMATCH).
            after: the request id of a call of this caller on this pipeline, after which this one is accepted although
                both are under way.

        Raises:
            PenstockError: also ACCUMULATION_OPEN, if contributions wait for :meth:`optimizer_step`; STEP_ROLLED_BACK:
                the step failed, was undone on every stage, and may be taken again; PIPELINE_BROKEN: it could not be
                undone, and only :meth:`restore_checkpoint`, :meth:`load_from` of everything and :meth:`delete` help.
        """
        call, own = requests.split(requests.TrainArguments, True, arguments)
        return self._finish(self._train_step(inputs, target, call, own), call)

    def submit_train_step(
        self, inputs: Inputs, target: InputValue = None, **arguments: Unpack[requests.TrainArguments]
    ) -> OutcomeHandle:
        """As :meth:`train_step`, but returns when the daemon has accepted the call."""
        return self._train_step(inputs, target, *requests.split(requests.TrainArguments, False, arguments))

    def forward_backward(
        self, inputs: Inputs, target: InputValue = None, **arguments: Unpack[requests.ContributionArguments]
    ) -> Outcome:
        """Adds one contribution to the gradients of the next :meth:`optimizer_step`.

        Args:
            total_rows: rows of the whole step, over all its contributions; ``None``: this call's rows.
            total_elements: counted elements of the whole step, where labels are ignored, or the sum of what they weigh.
            accumulation_lease: seconds after which the daemon discards what is accumulated, if neither a further
                contribution nor the step has come; 0: never. What has been lost is told by ACCUMULATION_LOST.

        The other arguments are those of :meth:`train_step`.

        Raises:
            PenstockError: also ACCUMULATION_HELD, if another caller, or another program of this one, has contributions
                open; ACCUMULATION_LOST, if those of this program were discarded by others or by the end of their lease:
                discard, then contribute all of the step anew.
        """
        call, own = requests.split(requests.ContributionArguments, True, arguments)
        return self._finish(self._forward_backward(inputs, target, call, own), call)

    def submit_forward_backward(
        self, inputs: Inputs, target: InputValue = None, **arguments: Unpack[requests.ContributionArguments]
    ) -> OutcomeHandle:
        """As :meth:`forward_backward`, but returns when the daemon has accepted the call."""
        call, own = requests.split(requests.ContributionArguments, False, arguments)
        return self._forward_backward(inputs, target, call, own)

    def forward(self, inputs: Inputs, **arguments: Unpack[requests.ForwardArguments]) -> Forward:
        """Runs the model in training mode and keeps its graph, for a loss that the caller computes.

        Args:
            input_gradients: ``True`` keeps what :meth:`backward` needs to return d loss / d input.

        Returns:
            Two handles, the outputs ready. The graph belongs to the present step and is freed when that ends.

        Raises:
            PenstockError: also GRAPH_LIMIT, if too many graphs are open.
        """
        call, own = requests.split(requests.ForwardArguments, True, arguments)
        result = self._forward(inputs, call, own)
        self._wait(call, result.outputs, result.graph)
        return result

    def submit_forward(self, inputs: Inputs, **arguments: Unpack[requests.ForwardArguments]) -> Forward:
        """As :meth:`forward`, but returns when the daemon has accepted the call."""
        return self._forward(inputs, *requests.split(requests.ForwardArguments, False, arguments))

    def backward(
        self, graph: GraphHandle, gradients: Inputs, **arguments: Unpack[requests.BackwardArguments]
    ) -> Outcome:
        """Adds the contribution of a forward, given d loss / d output for each output, scaled by the caller.

        Args:
            gradients: by output name, each of its output's shape and type.
            retain_graph: ``True`` lets the graph serve again; ``False`` uses it up.
            input_gradients: ``True`` returns d loss / d input too, as ``Outcome.input_gradients``; the forward must
                have asked for them. An input that has none is left out.
            accumulation_lease: as in :meth:`forward_backward`.

        Raises:
            PenstockError: also GRAPH_CONSUMED and GRAPH_STALE.
        """
        call, own = requests.split(requests.BackwardArguments, True, arguments)
        return self._finish(self._backward(graph, gradients, call, own), call)

    def submit_backward(
        self, graph: GraphHandle, gradients: Inputs, **arguments: Unpack[requests.BackwardArguments]
    ) -> OutcomeHandle:
        """As :meth:`backward`, but returns when the daemon has accepted the call."""
        return self._backward(graph, gradients, *requests.split(requests.BackwardArguments, False, arguments))

    def optimizer_step(self, **arguments: Unpack[requests.StepArguments]) -> Outcome:
        """Applies the contributions to the weights, or forgets them.

        Args:
            discard: ``True`` forgets them: those of this program, or what another program of this caller has left.
            force: forgets those of any caller, too.
            learning_rate, clip_norm: as in :meth:`train_step`.

        Raises:
            PenstockError: also ACCUMULATION_EMPTY; STEP_ROLLED_BACK and PIPELINE_BROKEN as :meth:`train_step`.
        """
        call, own = requests.split(requests.StepArguments, True, arguments)
        return self._finish(self._optimizer_step(call, own), call)

    def submit_optimizer_step(self, **arguments: Unpack[requests.StepArguments]) -> OutcomeHandle:
        """As :meth:`optimizer_step`, but returns when the daemon has accepted the call."""
        return self._optimizer_step(*requests.split(requests.StepArguments, False, arguments))

    # --- inside -------------------------------------------------------------------------------------------------------

    def _signature(self, call: requests.Call) -> pipeline_pb2.ModelSignature:
        """Of a pipeline that was last seen in the making, in its deletion or waiting for its group, as it is now.

        Raises:
            PenstockError: PIPELINE_NOT_READY or PIPELINE_REFORMING, as the daemon has it, or what is wrong with its creation.
        """
        if unready(self.message):
            self.refresh_until(call.deadline)
        if unready(self.message):
            raise refusal(self.message)
        return self.signature

    def _staged(
        self, inputs: Inputs, of_loss: requests.LossInputs, call: requests.Call, loss: str | None = None
    ) -> AbstractContextManager[list[tensor_pb2.Input]]:
        values = named(inputs, self.signature.inputs, "inputs")
        of_loss.add_to(values, self.signature)
        signature = [*self.signature.inputs, *(self.signature.targets if loss is None else ())]
        return staged(self._connection, self.name, values, signature, call.deadline, call.request_id)

    def _infer(self, inputs: Inputs, call: requests.Call, own: dict[str, Any]) -> ValueHandle:
        self._signature(call)
        with self._staged(inputs, requests.LossInputs(), call) as messages:
            request = requests.infer(self.name, messages, call, **own)
            response = self._connection.unary(
                "WorkService/Infer", request, work_pb2.InferResponse, call.deadline, LONGEST_WAIT
            )
        return ValueHandle(self._connection, response.outputs)

    def _evaluate(
        self, inputs: Inputs, target: InputValue, call: requests.Call, own: dict[str, Any]
    ) -> EvaluationHandle:
        inputs, target = requests.with_labels(inputs, target, self._signature(call), own.get("loss"))
        of_loss, own = requests.LossInputs.of(target, own)
        with self._staged(inputs, of_loss, call, own.get("loss")) as messages:
            request = requests.evaluate(self.name, *of_loss.apart(messages), call, **own)
            response = self._connection.unary(
                "WorkService/Evaluate", request, work_pb2.EvaluateResponse, call.deadline, LONGEST_WAIT
            )
        return EvaluationHandle(self._connection, response.outcome)

    def _train_step(
        self, inputs: Inputs, target: InputValue, call: requests.Call, own: dict[str, Any]
    ) -> OutcomeHandle:
        """The first part of :meth:`train_step`: when it returns, the daemon has accepted the call."""
        inputs, target = requests.with_labels(inputs, target, self._signature(call), own.get("loss"))
        of_loss, own = requests.LossInputs.of(target, own)
        with self._staged(inputs, of_loss, call, own.get("loss")) as messages:
            request = requests.train_step(self.name, *of_loss.apart(messages), call, **own)
            response = self._connection.unary(
                "WorkService/TrainStep", request, work_pb2.TrainStepResponse, call.deadline, LONGEST_WAIT
            )
        return self._handle(response.outcome, response.outputs if own.get("outputs") else None)

    def _forward_backward(
        self, inputs: Inputs, target: InputValue, call: requests.Call, own: dict[str, Any]
    ) -> OutcomeHandle:
        inputs, target = requests.with_labels(inputs, target, self._signature(call), own.get("loss"))
        of_loss, own = requests.LossInputs.of(target, own)
        with self._staged(inputs, of_loss, call, own.get("loss")) as messages:
            request = requests.forward_backward(self.name, *of_loss.apart(messages), call, **own)
            response = self._connection.unary(
                "WorkService/ForwardBackward", request, work_pb2.ForwardBackwardResponse, call.deadline, LONGEST_WAIT
            )
        return self._handle(response.outcome, response.outputs if own.get("outputs") else None)

    def _forward(self, inputs: Inputs, call: requests.Call, own: dict[str, Any]) -> Forward:
        self._signature(call)
        with self._staged(inputs, requests.LossInputs(), call) as messages:
            request = requests.forward(self.name, messages, call, **own)
            response = self._connection.unary(
                "WorkService/Forward", request, work_pb2.ForwardResponse, call.deadline, LONGEST_WAIT
            )
        return Forward(ValueHandle(self._connection, response.outputs), GraphHandle(self._connection, response.graph))

    def _backward(
        self, graph: GraphHandle, gradients: Inputs, call: requests.Call, own: dict[str, Any]
    ) -> OutcomeHandle:
        signature = (self._signature(call)).outputs
        values = named(gradients, signature, "outputs")
        with staged(self._connection, self.name, values, signature, call.deadline, call.request_id) as messages:
            request = requests.backward(self.name, graph.name, messages, call, **own)
            response = self._connection.unary(
                "WorkService/Backward", request, work_pb2.BackwardResponse, call.deadline, LONGEST_WAIT
            )
        return self._handle(response.outcome, None, response.input_gradients if own.get("input_gradients") else None)

    def _optimizer_step(self, call: requests.Call, own: dict[str, Any]) -> OutcomeHandle:
        request = requests.optimizer_step(self.name, call, **own)
        response = self._connection.unary(
            "WorkService/OptimizerStep", request, work_pb2.OptimizerStepResponse, call.deadline, LONGEST_WAIT
        )
        return self._handle(response.outcome, None)

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
        self._wait(call, handle, *handle.kept())
        self._connection.release_later([handle.name])
        return handle.result_until(call.deadline)

    def _wait(self, call: requests.Call, first: Handle, *others: Handle) -> None:
        """Waits for the first handle of a call. All are given back if the work failed: not if its end is still to come."""
        try:
            first.wait_until(call.deadline)
        except DeadlineError:
            raise DeadlineError.pending(first.name, call.deadline.seconds, call.request_id) from None
        except PenstockError as error:
            if not error.in_doubt:
                self._connection.release_later([first.name, *(other.name for other in others)])
            raise
