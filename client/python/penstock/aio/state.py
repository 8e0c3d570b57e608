"""Weights and optimizer state of a pipeline: as PyTorch knows them, from it and back, and as files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from penstock import safetensors, tensors
from penstock.aio import uploads
from penstock.aio.handles import ValueHandle
from penstock.aio.off_loop import off_loop
from penstock.aio.reading import tied_names
from penstock.aio.resources import PipelineResource
from penstock.creation import planning_deadline, update_request
from penstock.deadline import LONGEST_WAIT, Deadline
from penstock.distributed import write_distributed
from penstock.inputs import Inputs, InputValue
from penstock.parameters import (
    OPTIMIZER_PREFIX,
    Parameters,
    daemons_slots,
    parts_of,
    slots_of,
    with_tied_names,
    without_tied_names,
    write_request,
)
from penstock.requests import new_request_id
from penstock.specifications import OptimizerSettings, changed_optimizer, pipeline_spec
from penstock.tensors import as_array, as_tensor
from penstock.v1 import pipeline_pb2, state_pb2

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

    from penstock.spec_arguments import SpecArguments


class PipelineState(PipelineResource):
    """Weights in and out. Names are those of the module's own ``state_dict()``, if an exported program made the
    pipeline."""

    async def state_dict(self, *, timeout: float | None = None) -> dict[str, torch.Tensor]:
        """Parameters and buffers as PyTorch's tensors, for ``module.load_state_dict()`` of the module that was
        exported. A parameter that has several names there has them here. All are of one step.

        Args:
            timeout: seconds for all of the call; ``None``: as long as it takes.

        Raises:
            ImportError: PyTorch is not installed; :meth:`state_arrays` needs it not.
            DeadlineError: it took more than ``timeout`` seconds.
        """
        return {name: as_tensor(array) for name, array in (await self._state(Deadline(timeout))).items()}

    async def state_arrays(self, *, timeout: float | None = None) -> Parameters:
        """The same as arrays. ``step`` tells after which step.

        Raises:
            ImportError: one is of bfloat16, and ``ml_dtypes`` is not installed.
        """
        return tensors.shown(await self._state(Deadline(timeout)))

    async def gradients(self, names: Sequence[str] = (), *, timeout: float | None = None) -> Parameters:
        """What this caller has accumulated by :meth:`forward_backward` and :meth:`backward`, as :meth:`optimizer_step`
        would take it: by the names of the parameters, not clipped, that of a parameter with several names or uses
        summed, under each of its names. Read after all calls of training that were accepted before. A parameter without
        a gradient is left out, as PyTorch has ``None``.

        With it any optimizer of your own can make the step::

            outcome = pipeline.forward_backward(inputs, target)
            gradients = pipeline.gradients()
            for name, parameter in module.named_parameters():
                parameter.grad = torch.from_numpy(gradients[name]) if name in gradients else None
            optimizer.step()
            pipeline.load_from(module, step=outcome.step + 1, force=True)  # discards what was accumulated

        Args:
            names: only of these parameters; empty: of all.
            timeout: seconds for all of the call; ``None``: as long as it takes.

        Raises:
            PenstockError: ACCUMULATION_EMPTY; ACCUMULATION_HELD: another caller holds what is accumulated;
                ACCUMULATION_LOST: that of this program was discarded by others or by the end of its lease;
                PARAMETER_NOT_FOUND.
            ImportError: one is of bfloat16, and ``ml_dtypes`` is not installed.
            DeadlineError: it took more than ``timeout`` seconds.
        """
        deadline = Deadline(timeout)
        gradients = await self._read_parameters(names, False, deadline, gradients=True)
        return tensors.shown(with_tied_names(gradients, await self._tied_names(deadline)))

    async def load_state_dict(
        self,
        state: Mapping[str, Any],
        *,
        strict: bool = True,
        step: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Puts parameters and buffers into the pipeline: tensors of PyTorch, or arrays, by name. All or nothing; open
        contributions are an error. Optimizer state stays.

        Args:
            strict: every parameter and buffer of the pipeline must be given, and nothing else, as in PyTorch.
            step: finished optimizer steps from now on, which learning-rate schedules follow; ``None``: as it was.
            timeout: seconds for all of the call; ``None``: as long as it takes.

        Raises:
            ValueError: names are missing or unknown, or two names of one parameter have different values.
            PenstockError: PARAMETER_NOT_FOUND, TENSOR_SIGNATURE for a wrong shape or type, ACCUMULATION_OPEN.
            DeadlineError: it took more than ``timeout`` seconds; ``request_id`` is set if it may yet be done.
        """
        deadline = Deadline(timeout)
        names = await self.read_names(deadline) if strict else None
        arrays = without_tied_names(state, await self._tied_names(deadline), names)
        await self._write_parameters(arrays, step, False, deadline)

    async def optimizer_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """The optimizer's state by parameter and slot, as PyTorch calls them: ``exp_avg``, ``exp_avg_sq``, ``step``;
        ``momentum_buffer``; ``square_avg``. See :meth:`load_into` for a whole ``torch.optim`` optimizer."""
        state: dict[str, dict[str, torch.Tensor]] = {}
        for name, slot, array in slots_of(await self._read_parameters((), True)):
            state.setdefault(name, {})[slot] = as_tensor(array)
        return state

    async def load_optimizer_state(self, state: Mapping[str, Mapping[str, Any]], *, step: int | None = None) -> None:
        """The way back of :meth:`optimizer_state`; parameters that are left out keep theirs.

        Raises:
            ValueError: a slot is unknown.
            PenstockError: as :meth:`load_state_dict`.
        """
        await self.write_parameters(daemons_slots(state), step=step)

    async def load_into(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> int:
        """Puts the weights into the module that was exported, and the optimizer's state into one of PyTorch over its
        parameters, so that training can go on there.

        Returns:
            The step that both are of.
        """
        parameters = await self._read_parameters((), optimizer is not None)
        weights = {name: array for name, array in parameters.items() if not name.startswith(OPTIMIZER_PREFIX)}
        tied = with_tied_names(weights, await self._tied_names())
        module.load_state_dict({name: as_tensor(array) for name, array in tied.items()})
        if optimizer is not None:
            by_name = dict(module.named_parameters())
            for name, slot, array in slots_of(parameters):
                if name in by_name:
                    optimizer.state[by_name[name]][slot] = as_tensor(array)
        return parameters.step

    async def load_from(
        self,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        step: int | None = None,
        force: bool = False,
    ) -> None:
        """The way back: weights of the module, and the state of a PyTorch optimizer over its parameters.

        Args:
            step: finished optimizer steps from now on, which learning-rate schedules and dropout follow; ``None``: as
                it was.
            force: discards open contributions, which are an error otherwise.
        """
        arrays = without_tied_names(module.state_dict(), await self._tied_names(), None)
        if optimizer is not None:
            state = {
                name: optimizer.state[parameter]
                for name, parameter in module.named_parameters()
                if parameter in optimizer.state
            }
            arrays |= daemons_slots(state)
        await self.write_parameters(arrays, step=step, force=force)

    async def update_optimizer(
        self, *, expected_state: str = "", timeout: float | None = None, **settings: Unpack[OptimizerSettings]
    ) -> pipeline_pb2.Pipeline:
        """Gives the optimizer other settings, in the order of training calls; what is not named stays as it is::

            pipeline.update_optimizer(optimizer_options={"learning_rate": 1e-4}, groups=[])  # nothing is frozen any more

        Its state stays, and open graphs become stale. The settings are those of :meth:`Client.create_pipeline`.

        Args:
            optimizer_options: those that change.
            learning_rate_schedule: a whole schedule, with its warmup_steps and so on.
            groups: all of them, in the place of those that there are.
            expected_state: the ``state_token`` of the last outcome; a stale one is refused (STATE_MISMATCH).
            timeout: seconds for all of the call; ``None``: as long as it takes.

        Returns:
            The pipeline as it is then; its ``spec.optimizer`` has the settings.

        Raises:
            ValueError: parts of a schedule without its name.
            PenstockError: SPEC_INVALID, also for options that keep other state, such as a momentum where there was none;
                ACCUMULATION_OPEN; STATE_MISMATCH.
            DeadlineError: it took more than ``timeout`` seconds.
        """
        deadline = Deadline(timeout)
        now = await self.refresh_until(deadline)
        request = pipeline_pb2.UpdateOptimizerRequest(
            name=self.name,
            optimizer=changed_optimizer(now.spec.optimizer, settings),
            request_id=new_request_id(),
            expected_state=expected_state,
        )
        self.message = await self._connection.unary(
            "PipelineService/UpdateOptimizer", request, pipeline_pb2.Pipeline, deadline, LONGEST_WAIT
        )
        return self.message

    async def replan(
        self,
        *,
        sample: Inputs = None,
        sample_target: InputValue = None,
        if_unchanged: bool = False,
        timeout: float | None = None,
        **arguments: Unpack[SpecArguments],
    ) -> pipeline_pb2.Pipeline:
        """Changes how the pipeline runs, while it serves: another cut, schedule, devices or batching, with the same
        weights, optimizer state and step, bit for bit::

            pipeline.replan(stages=4, schedule="zb-h1")
            pipeline.replan(batch_rows=32)

        It is planned and built beside what stands, and takes its place between two calls of the training order. No call
        fails by it. What bears on the plan and is not named stays as it was planned; where something of it is named, the
        planner chooses the rest anew, but the number of micro-batches.

        Args:
            sample, sample_target: as of :meth:`Client.create_pipeline`.
            if_unchanged: refuse (ETAG_MISMATCH) if somebody has changed the pipeline since it was last looked at here.
            timeout: seconds for all of the call; ``None``: 100 beside the planner's. When they are over, the daemon goes
                on.
            arguments: those of :meth:`Client.create_pipeline` about cut, devices, schedule, batching and the filling of
                bubbles; no others. ``dynamic_batching=False``: each request of inference runs by itself from then on.

        Returns:
            The pipeline as it is then, with its ``plan``.

        Raises:
            PenstockError: SPEC_INVALID, also for what can't be changed so; PLAN_DOES_NOT_FIT; HOST_MEMORY where both do
                not fit at once; PIPELINE_NOT_READY while another update goes on; ACCUMULATION_OPEN; GRAPH_OPEN;
                ETAG_MISMATCH; FEATURE_DISABLED for stages on several ranks.
            DeadlineError: it took more than ``timeout`` seconds.
        """
        arguments.setdefault("model", None)
        spec = pipeline_spec(**arguments)
        deadline = planning_deadline(spec, timeout)
        off = arguments.get("dynamic_batching") is False
        request = update_request(self.message, spec, off, sample, sample_target, if_unchanged)
        self.message = await self._connection.unary(
            "PipelineService/UpdatePipeline", request, pipeline_pb2.Pipeline, deadline, deadline.left()
        )
        return self.message

    # --- files --------------------------------------------------------------------------------------------------------

    async def save_safetensors(self, path: str | os.PathLike[str], *, include_optimizer_state: bool = False) -> int:
        """Writes parameters and buffers, with the optimizer's state too if asked (``optimizer/NAME/SLOT``), to a file
        of this machine, with the names of the original module.

        Returns:
            The step that they are of.
        """
        parameters = await self._read_parameters((), include_optimizer_state)
        metadata = {"format": "pt", "penstock_step": str(parameters.step)}
        await off_loop(safetensors.write_safetensors, path, with_tied_names(parameters, await self._tied_names()), metadata)
        return parameters.step

    async def save_distributed(
        self, path: str | os.PathLike[str], *, include_optimizer_state: bool = False
    ) -> int:
        """Writes the same to a new folder of this machine, in the format of PyTorch's distributed checkpoints::

            pipeline.save_distributed("gpt-dcp")
            weights = {"model": module.state_dict()}
            torch.distributed.checkpoint.load(weights, checkpoint_id="gpt-dcp", no_dist=True)
            module.load_state_dict(weights["model"])

        The optimizer's state stands under ``"optimizer"``, ``"state"``, NAME and PyTorch's name of the slot, the step
        under ``"step"``.

        Returns:
            The step that they are of.

        Raises:
            ImportError: PyTorch is not installed.
            FileExistsError: there is something of that name.
        """
        parameters = await self._read_parameters((), include_optimizer_state)
        await off_loop(write_distributed, path, with_tied_names(parameters, await self._tied_names()))
        return parameters.step

    async def load_safetensors(
        self, path: str | os.PathLike[str], *, strict: bool = True, step: int | None = None
    ) -> None:
        """Puts the content of such a file into the pipeline, all or nothing; see :meth:`load_state_dict`."""
        state = await off_loop(safetensors.arrays_of, path)
        slots = {name: array for name, array in state.items() if name.startswith(OPTIMIZER_PREFIX)}
        weights = {name: array for name, array in state.items() if not name.startswith(OPTIMIZER_PREFIX)}
        names = await self.read_names() if strict else None
        await self.write_parameters(without_tied_names(weights, await self._tied_names(), names) | slots, step=step)

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _state(self, deadline: Deadline) -> Parameters:
        return with_tied_names(await self._read_parameters(deadline=deadline), await self._tied_names(deadline))

    async def read_names(self, deadline: Deadline | None = None) -> list[str]:
        """Names of parameters and buffers, in model order; moves none of their bytes."""
        method = "StateService/ReadParameters"
        request = state_pb2.ReadParametersRequest(pipeline=self.name)

        async def attempt() -> list[str]:
            stream = self._connection.stream(method, request, state_pb2.ReadParametersResponse, deadline)
            async with aclosing(stream) as answers:
                return [header.name for header in (await anext(answers)).start.tensors]

        return await self._connection.retry(attempt, method, deadline)

    async def write_parameters(
        self,
        arrays: Mapping[str, Any],
        *,
        step: int | None = None,
        force: bool = False,
        timeout: float | None = None,
    ) -> int:
        """Replaces parameters, buffers and optimizer state by the names that :meth:`read_parameters` gives them; what
        is not named stays. All or nothing, in the order of training calls.

        Args:
            step: finished optimizer steps from now on; ``None``: as it was.
            force: discards open contributions, which are an error otherwise.
            timeout: seconds for all of the call, uploads included; ``None``: as long as it takes.

        Returns:
            The step.

        Raises:
            PenstockError: PARAMETER_NOT_FOUND, TENSOR_SIGNATURE, ACCUMULATION_OPEN.
            DeadlineError: it took more than ``timeout`` seconds; ``request_id`` is set if it may yet be done.
        """
        return await self._write_parameters(arrays, step, force, Deadline(timeout))

    async def _write_parameters(
        self, arrays: Mapping[str, Any], step: int | None, force: bool, deadline: Deadline
    ) -> int:
        handles: list[ValueHandle] = []
        try:
            for part in parts_of({name: as_array(value) for name, value in arrays.items()}):
                handles.append(await uploads.put(self._connection, self.name, part, deadline=deadline))
            request = write_request(self.name, [handle.name for handle in handles], step, force)
            answer = await self._connection.unary(
                "StateService/WriteParameters", request, state_pb2.WriteParametersResponse, deadline, LONGEST_WAIT
            )
            return answer.step
        finally:
            self._connection.release_later(handle.name for handle in handles)

    async def _tied_names(self, deadline: Deadline | None = None) -> Mapping[str, str]:
        return await tied_names(self._connection, self.message.spec.model.program, deadline)
