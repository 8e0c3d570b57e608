"""The daemon as seen by a program: pipelines and facts about the server."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from penstock.aio.attempts import pause
from penstock.aio.checkpoints import Checkpoint
from penstock.aio.connection import Connection
from penstock.aio.handles import ValueHandle
from penstock.aio.models import Models
from penstock.aio.pipelines import Pipeline
from penstock.aio.showing import while_looking
from penstock.channels import Traceparent
from penstock.creation import (
    PATIENCE_SECONDS,
    POLL_SECONDS,
    Progress,
    create_request,
    not_ready,
    plan_request,
    planning_deadline,
    shown,
)
from penstock.credentials import CredentialFiles
from penstock.deadline import Deadline
from penstock.errors import DeadlineError, PenstockError
from penstock.inputs import Inputs, InputValue
from penstock.log_levels import log_level_name, log_level_request
from penstock.specifications import pipeline_spec
from penstock.v1 import admin_pb2, handle_pb2, pipeline_pb2, state_pb2

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from penstock.spec_arguments import SpecArguments


class Client:
    """A connection to one daemon. The synchronous client may be used from any thread; asyncio's is made and used inside
    one event loop. Used in a ``with`` block (asyncio: ``async with``), it is closed at the end.

    Attributes:
        models: exported programs that the daemon has: upload, list, delete.

    Args:
        address: ``host``, ``host:port`` or ``unix:PATH`` of the daemon's API; without a port, 8470.
        caller: who calls; it owns the handles it makes. ``None``: the daemon's ``local``. Of no account where the daemon
            asks for a certificate or a token.
        timeout: seconds that the daemon may take to answer a call that has no time of its own, waiting not included.
        retry_for: seconds for which a call that has no time of its own is repeated, with the same request id, while the
            daemon is UNAVAILABLE; 0: no call is ever repeated.
        traceparent: of the W3C ("00-<trace id>-<span id>-<flags>"), sent with each call, so that the daemon's spans
            belong to that trace; or a function that is asked before each call and may return ``None``. ``None``: the
            variable ``TRACEPARENT``, if it is set.
        tls_ca: file of the certificates as PEM that sign the daemon's; ``None`` here and below: the variable
            ``PENSTOCK_TLS_CA`` (and so on), if it is set. With any of the four the connection is TLS; without this one,
            gRPC's own authorities count.
        tls_cert: file of the client's certificate as PEM, by which the daemon knows the caller.
        tls_key: file of its private key.
        token_file: file of a bearer token, by which the daemon knows the caller; read for each call.
        work_stream: whether inference and training of all pipelines share one stream instead of being calls of their
            own, which costs less of each.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:8470",
        caller: str | None = None,
        *,
        timeout: float = 60.0,
        retry_for: float = 10.0,
        traceparent: Traceparent = None,
        tls_ca: str | None = None,
        tls_cert: str | None = None,
        tls_key: str | None = None,
        token_file: str | None = None,
        work_stream: bool = False,
    ) -> None:
        files = CredentialFiles(tls_ca, tls_cert, tls_key, token_file)
        self._connection = Connection(address, caller, timeout, retry_for, traceparent, files, work_stream)
        self.models = Models(self._connection)

    async def close(self) -> None:
        """Ends the connection. Accepted training goes on; handles live until their leases end."""
        await self._connection.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def server_info(self) -> admin_pb2.ServerInfo:
        """Version, epoch, devices, limits, and the names of layers, models, schedules, optimizers and losses."""
        return await self._connection.unary(
            "AdminService/GetServerInfo", admin_pb2.GetServerInfoRequest(), admin_pb2.ServerInfo
        )

    async def drain(self, *, for_upgrade: bool = False, abort: bool = False) -> admin_pb2.DrainState:
        """Starts a drain, which ends the daemon as SIGTERM does, and returns at once; a second call returns how far it is.

        Args:
            for_upgrade: each journal is emptied before the end, so that the next start makes no call again. A pipeline
                that can't be saved whole is an error before anything begins.
            abort: ends a drain instead: the daemon serves on. DRAIN_FINAL once that is not possible any more.
        """
        return await self._connection.unary(
            "AdminService/Drain",
            admin_pb2.DrainRequest(for_upgrade=for_upgrade, abort=abort),
            admin_pb2.DrainState,
        )

    async def set_log_level(self, level: str = "") -> tuple[str, str]:
        """Which lines the daemon's process writes to its log from now on, until it ends. Needs the role admin.

        Args:
            level: ``"debug"``, ``"info"``, ``"warning"`` or ``"error"``: lines of less are not written. Empty: nothing
                changes.

        Returns:
            The level before, and now.

        Raises:
            ValueError: there is no such level.
        """
        response = await self._connection.unary(
            "AdminService/SetLogLevel", log_level_request(level), admin_pb2.SetLogLevelResponse
        )
        return log_level_name(response.before), log_level_name(response.now)

    async def handle(self, name: str) -> ValueHandle:
        """A handle of tensors and values by its full name: of this caller, such as one that another caller shared.

        Raises:
            ValueError: it holds a graph or an outcome.
            PenstockError: HANDLE_NOT_FOUND, HANDLE_RELEASED, HANDLE_EXPIRED or EPOCH_MISMATCH.
        """
        message = await self._connection.unary(
            "HandleService/GetHandle", handle_pb2.GetHandleRequest(name=name), handle_pb2.Handle
        )
        if message.kind != handle_pb2.HANDLE_KIND_VALUE:
            raise ValueError(f"name: must be of a handle of values, got {name}")
        return ValueHandle(self._connection, handle_pb2.Result(handle=message))

    async def create_pipeline(
        self,
        name: str,
        *,
        from_checkpoint: str = "",
        exist_ok: bool = False,
        sample: Inputs = None,
        sample_target: InputValue = None,
        progress: bool | Progress = False,
        timeout: float | None = None,
        **arguments: Unpack[SpecArguments],
    ) -> Pipeline:
        """Makes a pipeline and waits until it is ready.

        Args:
            name: ``[a-z]([a-z0-9_-]{0,61}[a-z0-9])?``.
            from_checkpoint: the full name of a checkpoint, of a living or a deleted pipeline (:meth:`checkpoints`): the
                pipeline starts with its step, weights and optimizer state. What is not given of the other arguments is
                the checkpoint's, with the cut and schedule that were planned then. Of another optimizer, a parameter
                keeps its state where all of it fits by name, shape and type, else it starts anew.
            exist_ok: a pipeline of this name with an equal specification is returned as it is; one with another is
                PIPELINE_EXISTS, naming what differs.
            model: a reference model (``"mlp"``, ``"gpt"``, ``"resnet"``; ``server_info().models`` has all), a list of
                :class:`Layer`, or an exported program: its id (``"mine.pt2"``), what :meth:`Models.upload` answered, or
                :class:`Program` to cut between any two operators. ``None``: ``"gpt"``, or the checkpoint's.
            options: of a reference model, for example ``{"blocks": 8, "width": 256, "heads": 4, "sequence": 128}``.
            stages: how many stages the daemon cuts by cost; 0: one per device, or as the layers' devices say.
            balance: instead of ``stages``: layers per stage.
            ranks: with ``balance``: the process of each stage, ``[0, 0, 1]``. A daemon that is alone runs rank 0 only.
            starts: instead of ``balance``: names of the layers (``"layer1_0"``) or modules (``"layer1.0"``) at which
                the stages after the first begin.
            cut_cost: what a cut weighs: measured ``"time"`` (also if empty), or ``"size"``: stashed activations and
                ``parameter_scale`` times the parameters (``None``: 2).
            cut_method: ``"exact"`` (also if empty), the least possible bottleneck, or ``"block_partition"``, as
                torchgpipe cuts.
            devices: one per stage; a device may stand several times; empty: all of the daemon.
            ties: parameters of equal shape that are one: ``[("embedding.weight", "head.weight")]``.
            layer_devices: the device of a layer by its name, as a plan lists them, or of all layers of a module of an
                exported program: ``{"layers.0": "cpu:0", "head": "cpu:1"}``. Neighbours on one device are one stage.
            deferred_batch_norm: running statistics follow mini-batches instead of micro-batches.
            tuple_as_one_argument: a layer gets several values as one tuple instead of as its arguments.
            dtype: of parameters: ``"fp32"`` (also if empty), ``"fp64"``, ``"bf16"``, ``"fp16"``.
            autocast: ``"bf16"`` or ``"fp16"``: operators choose their precision; empty: off.
            schedule: ``"1f1b"``, ``"zb-h1"``, ...; ``server_info().schedules`` has all. What is left out of this and
                the next arguments is the planner's choice, which takes what it predicts to be the fastest; but with a
                balance, ``devices`` or a layer's device it is ``"1f1b"``, 1 micro-batch and ``"except_last"``.
            micro_batches: into how many a mini-batch is cut. Another number rounds sums differently; no other choice
                changes a bit of any result.
            checkpoint: which activations are recomputed: ``"always"``, ``"except_last"``, ``"never"`` or
                ``"skip_adjacent"``: all but where a backward directly follows its forward.
            chunks: stages on each device, of schedules that place several.
            lag: of schedule ``"lag"``: how many micro-batches weight gradients may stay behind.
            live_limit: of schedule ``"auto"``: how many micro-batches a device may hold.
            mini_batch_rows: of the mini-batches that the planner plans for (32).
            actions: instead of ``schedule``, ``micro_batches`` and ``chunks``: what every device does in one training
                step, in order, as text or CSV with a row per device: ``"0F0,0F1,0B0,0B1"``. F is a
                forward, B a backward, I and W its halves. CSV that PyTorch's pipelining wrote is taken too.
            optimizer: ``"adamw"`` (also if empty), ``"adam"``, ``"nadam"`` (options beta1, beta2, epsilon;
                momentum_decay), ``"sgd"`` (momentum, nesterov), ``"rmsprop"`` (alpha, epsilon, momentum, centered),
                ``"adagrad"`` (lr_decay, initial_accumulator_value, epsilon) or ``"lion"`` (beta1, beta2); all have
                learning_rate and weight_decay, and PyTorch's defaults.
            clip_norm: the largest norm of all gradients together; 0 does not clip.
            learning_rate_schedule: ``"constant"`` (also if empty); ``"warmup_cosine"``, ``"linear"`` or
                ``"polynomial"`` (with power) over total_steps, to final_ratio of the peak rate; or ``"step"``: every
                step_size steps the rate is multiplied by gamma. Before, it rises for warmup_steps.
            groups: parameters with options of their own, or frozen: see :class:`ParameterGroup`.
            loss: the default of training calls: ``"cross_entropy"`` (options ignore_index, class_dimension,
                label_smoothing), ``"mean_squared_error"``, ``"binary_cross_entropy"`` (options logits, pos_weight), or
                ``"scalar_output"``: the model gives it.
            loss_output: the output that it looks at, by name or position; empty: the first.
            class_weights: of ``"cross_entropy"``: what a label of each class weighs in the mean.
            seed: of weights and dropout.
            bubble_filling: whether inference runs in the gaps of training steps (also if ``None``); ``False``: between
                them.
            inference_share: what inference that found no gap may take from the time of training, 0 to 1; ``None``:
                0.02.
            inference_max_wait: seconds that it waits before; ``None``: as long as it would take alone.
            dynamic_batching: whether requests of inference that wait together run as one, row behind row. Rows must not
                depend on one another; results are then equal to a rounding, not bit for bit. ``None``: if one of the next
                three is given.
            batch_rows: of all requests of a batch at most; ``None``: 64.
            batch_micro_batch_rows: that a batch is split into for the stages; ``None``: batch_rows over the number of
                lanes.
            batch_delay: seconds that a request waits for others while the stages could take it; ``None``: on one lane, after
                a batch, a quarter of its time at most.
            planning_seconds: what the planner may take to measure and to choose; then it takes the best that it has
                found. 0: nothing is measured, for a large model that shall serve at once. ``None``: 20.
            sample: a batch of your own to measure plans with, as :meth:`Pipeline.infer` takes inputs; a few rows, at most
                2 MiB: they are used in turn. For costs that depend on values, and models whose inputs no signature
                tells. ``None``: made-up values.
            sample_target: its target, for the loss; ``None``: a made-up one.
            progress: ``True`` shows on stderr how far it is; a function is called with each
                ``pipeline_pb2.CreateProgress`` that comes, on this thread (asyncio: in the event loop).
            timeout: seconds for all of it: making and waiting; the plan does not depend on it. ``None``: 100 beside the
                planner's. When they are over, the daemon goes on: :meth:`pipeline` finds what it makes.

        Raises:
            PenstockError: PIPELINE_EXISTS, SPEC_INVALID, PLAN_DOES_NOT_FIT, or why it FAILED; of a checkpoint also
                CHECKPOINT_NOT_FOUND, CHECKPOINT_CORRUPT, CHECKPOINT_SPEC_MISSING, MODEL_NOT_FOUND, MODEL_MISMATCH.
            DeadlineError: it is not ready in time.
        """
        if arguments.get("model") is None:
            arguments["model"] = None if from_checkpoint else "gpt"
        spec = pipeline_spec(**arguments)
        return await self.create_pipeline_from(
            name,
            spec,
            from_checkpoint=from_checkpoint,
            exist_ok=exist_ok,
            sample=sample,
            sample_target=sample_target,
            progress=progress,
            timeout=timeout,
        )

    async def create_pipeline_from(
        self,
        name: str,
        spec: pipeline_pb2.PipelineSpec,
        *,
        from_checkpoint: str = "",
        exist_ok: bool = False,
        sample: Inputs = None,
        sample_target: InputValue = None,
        progress: bool | Progress = False,
        timeout: float | None = None,
    ) -> Pipeline:
        """As :meth:`create_pipeline`, from a whole specification (see :func:`pipeline_spec`). With ``from_checkpoint``,
        what is set in it goes over the checkpoint's."""
        deadline = planning_deadline(spec, timeout)
        request = create_request(
            name,
            spec,
            from_checkpoint=from_checkpoint,
            exist_ok=exist_ok,
            sample=sample,
            sample_target=sample_target,
        )
        with shown(name, progress) as show:
            if show is None:
                message = await self._create(request, deadline)
            else:
                message = await self._create_and_show(request, deadline, show)
        pipeline = Pipeline(self._connection, message)
        while pipeline.message.state == pipeline_pb2.PIPELINE_STATE_CREATING:
            if deadline.left() <= 0:
                raise not_ready(pipeline.name, deadline.seconds)
            await pause(min(POLL_SECONDS, deadline.left()))
            try:
                await pipeline.refresh_until(deadline)
            except DeadlineError as error:
                raise not_ready(pipeline.name, deadline.seconds) from error
        if pipeline.message.state == pipeline_pb2.PIPELINE_STATE_FAILED:
            raise PenstockError.from_status(pipeline.message.error)
        return pipeline

    async def plan_pipeline(
        self, name: str, spec: pipeline_pb2.PipelineSpec, *, timeout: float | None = None
    ) -> pipeline_pb2.Plan:
        """What the daemon would make of a specification; creates nothing. ``timeout`` as in :meth:`plan`."""
        deadline = planning_deadline(spec, timeout)
        return (await self._create(create_request(name, spec, validate_only=True), deadline)).plan

    async def plan(
        self,
        spec: pipeline_pb2.PipelineSpec,
        *,
        kinds: Sequence[str] = (),
        max_chunks: int = 0,
        micro_batches: Sequence[int] = (),
        mini_batch_rows: int = 0,
        sample: Inputs = None,
        sample_target: InputValue = None,
        timeout: float | None = None,
    ) -> pipeline_pb2.PlanPipelineResponse:
        """What the planner can choose from: at most 20 ``candidates``, best first, each with its predicted step, bubble
        and memory, and what was ``refused`` with why. ``plan`` is all of the first one. Creates nothing.

        Put ``schedule`` and ``balance`` of a candidate into a specification to have exactly that one::

            found = client.plan(penstock.pipeline_spec(model="gpt"), kinds=["1f1b", "zb-h1"])
            spec.schedule.CopyFrom(found.candidates[1].schedule)
            spec.cut.balance[:] = found.candidates[1].balance

        Args:
            spec: see :func:`pipeline_spec`; what it leaves open is searched.
            kinds: schedules to choose from; empty: all.
            max_chunks: the most stages on each device; 0: 4.
            micro_batches: numbers to choose from; empty: powers of two.
            mini_batch_rows: of the mini-batch that they cut; 0: as the specification says.
            sample, sample_target: as of :meth:`create_pipeline`.
            timeout: seconds; when they are over, the daemon gives the search up. ``None``: 100 beside the planner's own
                (``planning_seconds``); when those are over, the best so far is the answer, and ``complete`` is false.

        Raises:
            PenstockError: SPEC_INVALID; NO_PLAN if nothing is possible, with the reason of the most promising one;
                QUEUE_FULL or CALLER_QUOTA, with ``retry_delay``, where too many wait for plans.
            DeadlineError: there is no answer in time.
        """
        deadline = planning_deadline(spec, timeout)
        request = plan_request(
            spec, kinds, max_chunks, micro_batches, mini_batch_rows, sample, sample_target
        )
        return await self._connection.unary(
            "PipelineService/PlanPipeline", request, pipeline_pb2.PlanPipelineResponse, deadline, deadline.left()
        )

    async def _create(
        self, request: pipeline_pb2.CreatePipelineRequest, deadline: Deadline
    ) -> pipeline_pb2.Pipeline:
        wait = deadline.left()  # an answer may take all of it
        return await self._connection.unary(
            "PipelineService/CreatePipeline", request, pipeline_pb2.Pipeline, deadline, wait
        )

    async def _create_and_show(
        self, request: pipeline_pb2.CreatePipelineRequest, deadline: Deadline, show: Progress
    ) -> pipeline_pb2.Pipeline:
        made = pipeline_pb2.GetPipelineRequest(name=f"pipelines/{request.pipeline_id}")

        async def create() -> pipeline_pb2.Pipeline:
            return await self._create(request, deadline)

        async def look() -> None:
            if (now := await self._progress_of(made)) is not None:
                show(now)

        return await while_looking(create, look, deadline)

    async def _progress_of(self, request: pipeline_pb2.GetPipelineRequest) -> pipeline_pb2.CreateProgress | None:
        try:
            now = await self._connection.unary(
                "PipelineService/GetPipeline", request, pipeline_pb2.Pipeline, Deadline(PATIENCE_SECONDS)
            )
        except PenstockError:
            return None  # it is not there yet, or no more
        return now.progress if now.HasField("progress") else None

    async def pipeline(self, name: str) -> Pipeline:
        """A pipeline that exists, by its short or full name.

        Raises:
            PenstockError: PIPELINE_NOT_FOUND.
        """
        request = pipeline_pb2.GetPipelineRequest(name=name if "/" in name else f"pipelines/{name}")
        message = await self._connection.unary("PipelineService/GetPipeline", request, pipeline_pb2.Pipeline)
        return Pipeline(self._connection, message)

    async def list_pipelines(self) -> list[Pipeline]:
        """All pipelines."""
        found: list[Pipeline] = []
        request = pipeline_pb2.ListPipelinesRequest(page_size=1000)
        while True:
            response = await self._connection.unary(
                "PipelineService/ListPipelines", request, pipeline_pb2.ListPipelinesResponse
            )
            found.extend(Pipeline(self._connection, message) for message in response.pipelines)
            request.page_token = response.next_page_token
            if not request.page_token:
                return found

    async def checkpoints(self, pipeline: str = "-", *, automatic: bool = False) -> list[Checkpoint]:
        """The checkpoints of all pipelines, living and deleted, by pipeline and name; or those of one, by its short or
        full name.

        Args:
            automatic: those that the daemon made for its journal, too.

        Raises:
            PenstockError: PIPELINE_NOT_FOUND for a pipeline that neither lives nor has left checkpoints.
        """
        found: list[Checkpoint] = []
        parent = pipeline if "/" in pipeline else f"pipelines/{pipeline}"
        request = state_pb2.ListCheckpointsRequest(parent=parent, page_size=1000, automatic=automatic)
        while True:
            response = await self._connection.unary(
                "StateService/ListCheckpoints", request, state_pb2.ListCheckpointsResponse
            )
            found.extend(Checkpoint(self._connection, message) for message in response.checkpoints)
            request.page_token = response.next_page_token
            if not request.page_token:
                return found

    async def delete_pipeline(self, name: str, *, force: bool = False, purge: bool = False) -> None:
        """See :meth:`Pipeline.delete`."""
        full_name = name if "/" in name else f"pipelines/{name}"
        await Pipeline(self._connection, pipeline_pb2.Pipeline(name=full_name)).delete(force=force, purge=purge)
