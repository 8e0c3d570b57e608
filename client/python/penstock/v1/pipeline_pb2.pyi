from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.rpc import status_pb2 as _status_pb2
from penstock.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

BUBBLE_FILLING_OFF: BubbleFilling
BUBBLE_FILLING_ON: BubbleFilling
BUBBLE_FILLING_UNSPECIFIED: BubbleFilling
CHECKPOINT_MODE_ALWAYS: CheckpointMode
CHECKPOINT_MODE_EXCEPT_LAST: CheckpointMode
CHECKPOINT_MODE_NEVER: CheckpointMode
CHECKPOINT_MODE_SKIP_ADJACENT: CheckpointMode
CHECKPOINT_MODE_UNSPECIFIED: CheckpointMode
CUT_COST_SIZE: CutCost
CUT_COST_TIME: CutCost
CUT_COST_UNSPECIFIED: CutCost
CUT_METHOD_BLOCK_PARTITION: CutMethod
CUT_METHOD_EXACT: CutMethod
CUT_METHOD_UNSPECIFIED: CutMethod
DESCRIPTOR: _descriptor.FileDescriptor
PIPELINE_STATE_CREATING: PipelineState
PIPELINE_STATE_DELETING: PipelineState
PIPELINE_STATE_DRAINING: PipelineState
PIPELINE_STATE_FAILED: PipelineState
PIPELINE_STATE_READY: PipelineState
PIPELINE_STATE_REFORMING: PipelineState
PIPELINE_STATE_UNLOADED: PipelineState
PIPELINE_STATE_UNLOADING: PipelineState
PIPELINE_STATE_UNSPECIFIED: PipelineState
PROGRAM_CUTS_MODULES: ProgramCuts
PROGRAM_CUTS_NODES: ProgramCuts
PROGRAM_CUTS_UNSPECIFIED: ProgramCuts

class BubbleFillingSpec(_message.Message):
    __slots__ = ["inference_share", "max_wait_seconds", "mode"]
    INFERENCE_SHARE_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    inference_share: float
    max_wait_seconds: float
    mode: BubbleFilling
    def __init__(self, mode: _Optional[_Union[BubbleFilling, str]] = ..., inference_share: _Optional[float] = ..., max_wait_seconds: _Optional[float] = ...) -> None: ...

class CreatePipelineRequest(_message.Message):
    __slots__ = ["exist_ok", "from_checkpoint", "pipeline_id", "request_id", "sample", "spec", "validate_only"]
    EXIST_OK_FIELD_NUMBER: _ClassVar[int]
    FROM_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    exist_ok: bool
    from_checkpoint: str
    pipeline_id: str
    request_id: str
    sample: PlanningSample
    spec: PipelineSpec
    validate_only: bool
    def __init__(self, pipeline_id: _Optional[str] = ..., spec: _Optional[_Union[PipelineSpec, _Mapping]] = ..., validate_only: bool = ..., request_id: _Optional[str] = ..., from_checkpoint: _Optional[str] = ..., exist_ok: bool = ..., sample: _Optional[_Union[PlanningSample, _Mapping]] = ...) -> None: ...

class CreateProgress(_message.Message):
    __slots__ = ["budget_seconds", "done", "elapsed_seconds", "phase"]
    BUDGET_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    budget_seconds: float
    done: float
    elapsed_seconds: float
    phase: str
    def __init__(self, phase: _Optional[str] = ..., done: _Optional[float] = ..., elapsed_seconds: _Optional[float] = ..., budget_seconds: _Optional[float] = ...) -> None: ...

class Cut(_message.Message):
    __slots__ = ["balance", "cost", "method", "parameter_scale", "ranks", "stages", "starts"]
    BALANCE_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_SCALE_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    balance: _containers.RepeatedScalarFieldContainer[int]
    cost: CutCost
    method: CutMethod
    parameter_scale: float
    ranks: _containers.RepeatedScalarFieldContainer[int]
    stages: int
    starts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, balance: _Optional[_Iterable[int]] = ..., stages: _Optional[int] = ..., cost: _Optional[_Union[CutCost, str]] = ..., method: _Optional[_Union[CutMethod, str]] = ..., parameter_scale: _Optional[float] = ..., ranks: _Optional[_Iterable[int]] = ..., starts: _Optional[_Iterable[str]] = ...) -> None: ...

class DeletePipelineRequest(_message.Message):
    __slots__ = ["force", "name", "purge", "request_id"]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PURGE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    force: bool
    name: str
    purge: bool
    request_id: str
    def __init__(self, name: _Optional[str] = ..., force: bool = ..., purge: bool = ..., request_id: _Optional[str] = ...) -> None: ...

class DeletePipelineResponse(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class DynamicBatching(_message.Message):
    __slots__ = ["max_delay_seconds", "max_rows", "micro_batch_rows"]
    MAX_DELAY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MAX_ROWS_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_ROWS_FIELD_NUMBER: _ClassVar[int]
    max_delay_seconds: float
    max_rows: int
    micro_batch_rows: int
    def __init__(self, max_rows: _Optional[int] = ..., micro_batch_rows: _Optional[int] = ..., max_delay_seconds: _Optional[float] = ...) -> None: ...

class GetPipelineRequest(_message.Message):
    __slots__ = ["name"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class LayerPlan(_message.Message):
    __slots__ = ["backward_seconds", "cost", "forward_seconds", "input_gradient_seconds", "name", "output_bytes", "parameter_bytes", "stage", "stash_bytes", "weight_gradient_seconds"]
    BACKWARD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    FORWARD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    INPUT_GRADIENT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_BYTES_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    STASH_BYTES_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_GRADIENT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    backward_seconds: float
    cost: float
    forward_seconds: float
    input_gradient_seconds: float
    name: str
    output_bytes: int
    parameter_bytes: int
    stage: int
    stash_bytes: int
    weight_gradient_seconds: float
    def __init__(self, name: _Optional[str] = ..., stage: _Optional[int] = ..., forward_seconds: _Optional[float] = ..., backward_seconds: _Optional[float] = ..., stash_bytes: _Optional[int] = ..., output_bytes: _Optional[int] = ..., parameter_bytes: _Optional[int] = ..., cost: _Optional[float] = ..., input_gradient_seconds: _Optional[float] = ..., weight_gradient_seconds: _Optional[float] = ...) -> None: ...

class LayerSpec(_message.Message):
    __slots__ = ["device", "isolate", "kind", "layers", "name", "options"]
    class OptionsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Option
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Option, _Mapping]] = ...) -> None: ...
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    ISOLATE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    device: str
    isolate: _containers.RepeatedCompositeFieldContainer[SkipIsolation]
    kind: str
    layers: _containers.RepeatedCompositeFieldContainer[LayerSpec]
    name: str
    options: _containers.MessageMap[str, Option]
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., options: _Optional[_Mapping[str, Option]] = ..., device: _Optional[str] = ..., isolate: _Optional[_Iterable[_Union[SkipIsolation, _Mapping]]] = ..., layers: _Optional[_Iterable[_Union[LayerSpec, _Mapping]]] = ...) -> None: ...

class LearningRateSpec(_message.Message):
    __slots__ = ["final_ratio", "gamma", "name", "power", "step_size", "total_steps", "warmup_steps"]
    FINAL_RATIO_FIELD_NUMBER: _ClassVar[int]
    GAMMA_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    POWER_FIELD_NUMBER: _ClassVar[int]
    STEP_SIZE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    WARMUP_STEPS_FIELD_NUMBER: _ClassVar[int]
    final_ratio: float
    gamma: float
    name: str
    power: float
    step_size: int
    total_steps: int
    warmup_steps: int
    def __init__(self, name: _Optional[str] = ..., warmup_steps: _Optional[int] = ..., total_steps: _Optional[int] = ..., final_ratio: _Optional[float] = ..., step_size: _Optional[int] = ..., gamma: _Optional[float] = ..., power: _Optional[float] = ...) -> None: ...

class LinkPlan(_message.Message):
    __slots__ = ["bytes_per_second", "latency_seconds", "measured", "other_rank", "rank"]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    LATENCY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    OTHER_RANK_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    bytes_per_second: float
    latency_seconds: float
    measured: bool
    other_rank: int
    rank: int
    def __init__(self, rank: _Optional[int] = ..., other_rank: _Optional[int] = ..., measured: bool = ..., latency_seconds: _Optional[float] = ..., bytes_per_second: _Optional[float] = ...) -> None: ...

class ListPipelinesRequest(_message.Message):
    __slots__ = ["page_size", "page_token"]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListPipelinesResponse(_message.Message):
    __slots__ = ["next_page_token", "pipelines"]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PIPELINES_FIELD_NUMBER: _ClassVar[int]
    next_page_token: str
    pipelines: _containers.RepeatedCompositeFieldContainer[Pipeline]
    def __init__(self, pipelines: _Optional[_Iterable[_Union[Pipeline, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class LoadPipelineRequest(_message.Message):
    __slots__ = ["name", "request_id"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    request_id: str
    def __init__(self, name: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class LossSpec(_message.Message):
    __slots__ = ["class_weights", "name", "options", "output"]
    class OptionsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Option
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Option, _Mapping]] = ...) -> None: ...
    CLASS_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    class_weights: _containers.RepeatedScalarFieldContainer[float]
    name: str
    options: _containers.MessageMap[str, Option]
    output: str
    def __init__(self, name: _Optional[str] = ..., options: _Optional[_Mapping[str, Option]] = ..., output: _Optional[str] = ..., class_weights: _Optional[_Iterable[float]] = ...) -> None: ...

class ModelSignature(_message.Message):
    __slots__ = ["inputs", "outputs", "targets"]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    inputs: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.TensorSignature]
    outputs: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.TensorSignature]
    targets: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.TensorSignature]
    def __init__(self, inputs: _Optional[_Iterable[_Union[_tensor_pb2.TensorSignature, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[_tensor_pb2.TensorSignature, _Mapping]]] = ..., targets: _Optional[_Iterable[_Union[_tensor_pb2.TensorSignature, _Mapping]]] = ...) -> None: ...

class ModelSpec(_message.Message):
    __slots__ = ["autocast", "deferred_batch_norm", "dtype", "layer_devices", "layers", "name", "options", "program", "program_cuts", "program_digest", "ties", "tuple_as_one_argument"]
    class LayerDevicesEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class OptionsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Option
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Option, _Mapping]] = ...) -> None: ...
    AUTOCAST_FIELD_NUMBER: _ClassVar[int]
    DEFERRED_BATCH_NORM_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    LAYER_DEVICES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_CUTS_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    TIES_FIELD_NUMBER: _ClassVar[int]
    TUPLE_AS_ONE_ARGUMENT_FIELD_NUMBER: _ClassVar[int]
    autocast: str
    deferred_batch_norm: bool
    dtype: str
    layer_devices: _containers.ScalarMap[str, str]
    layers: _containers.RepeatedCompositeFieldContainer[LayerSpec]
    name: str
    options: _containers.MessageMap[str, Option]
    program: str
    program_cuts: ProgramCuts
    program_digest: str
    ties: _containers.RepeatedCompositeFieldContainer[TieSpec]
    tuple_as_one_argument: bool
    def __init__(self, name: _Optional[str] = ..., options: _Optional[_Mapping[str, Option]] = ..., layers: _Optional[_Iterable[_Union[LayerSpec, _Mapping]]] = ..., ties: _Optional[_Iterable[_Union[TieSpec, _Mapping]]] = ..., deferred_batch_norm: bool = ..., tuple_as_one_argument: bool = ..., dtype: _Optional[str] = ..., autocast: _Optional[str] = ..., program: _Optional[str] = ..., program_cuts: _Optional[_Union[ProgramCuts, str]] = ..., program_digest: _Optional[str] = ..., layer_devices: _Optional[_Mapping[str, str]] = ...) -> None: ...

class OptimizerSpec(_message.Message):
    __slots__ = ["clip_norm", "groups", "learning_rate_schedule", "name", "options"]
    class OptionsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Option
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Option, _Mapping]] = ...) -> None: ...
    CLIP_NORM_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    clip_norm: float
    groups: _containers.RepeatedCompositeFieldContainer[ParameterGroup]
    learning_rate_schedule: LearningRateSpec
    name: str
    options: _containers.MessageMap[str, Option]
    def __init__(self, name: _Optional[str] = ..., options: _Optional[_Mapping[str, Option]] = ..., clip_norm: _Optional[float] = ..., learning_rate_schedule: _Optional[_Union[LearningRateSpec, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[ParameterGroup, _Mapping]]] = ...) -> None: ...

class Option(_message.Message):
    __slots__ = ["bool_value", "double_value", "int_value", "string_value"]
    BOOL_VALUE_FIELD_NUMBER: _ClassVar[int]
    DOUBLE_VALUE_FIELD_NUMBER: _ClassVar[int]
    INT_VALUE_FIELD_NUMBER: _ClassVar[int]
    STRING_VALUE_FIELD_NUMBER: _ClassVar[int]
    bool_value: bool
    double_value: float
    int_value: int
    string_value: str
    def __init__(self, bool_value: bool = ..., int_value: _Optional[int] = ..., double_value: _Optional[float] = ..., string_value: _Optional[str] = ...) -> None: ...

class ParameterGroup(_message.Message):
    __slots__ = ["frozen", "options", "patterns"]
    class OptionsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Option
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Option, _Mapping]] = ...) -> None: ...
    FROZEN_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    PATTERNS_FIELD_NUMBER: _ClassVar[int]
    frozen: bool
    options: _containers.MessageMap[str, Option]
    patterns: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, patterns: _Optional[_Iterable[str]] = ..., options: _Optional[_Mapping[str, Option]] = ..., frozen: bool = ...) -> None: ...

class Pipeline(_message.Message):
    __slots__ = ["create_time", "epoch", "error", "etag", "name", "parameters", "plan", "progress", "published", "signature", "spec", "state", "state_token", "step"]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    create_time: _timestamp_pb2.Timestamp
    epoch: int
    error: _status_pb2.Status
    etag: str
    name: str
    parameters: int
    plan: Plan
    progress: CreateProgress
    published: PublishedCheckpoint
    signature: ModelSignature
    spec: PipelineSpec
    state: PipelineState
    state_token: str
    step: int
    def __init__(self, name: _Optional[str] = ..., spec: _Optional[_Union[PipelineSpec, _Mapping]] = ..., state: _Optional[_Union[PipelineState, str]] = ..., epoch: _Optional[int] = ..., step: _Optional[int] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ..., signature: _Optional[_Union[ModelSignature, _Mapping]] = ..., state_token: _Optional[str] = ..., parameters: _Optional[int] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., etag: _Optional[str] = ..., progress: _Optional[_Union[CreateProgress, _Mapping]] = ..., published: _Optional[_Union[PublishedCheckpoint, _Mapping]] = ...) -> None: ...

class PipelineSpec(_message.Message):
    __slots__ = ["bubble_filling", "cut", "devices", "dynamic_batching", "loss", "model", "optimizer", "planning_seconds", "schedule", "seed"]
    BUBBLE_FILLING_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    DYNAMIC_BATCHING_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    PLANNING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    bubble_filling: BubbleFillingSpec
    cut: Cut
    devices: _containers.RepeatedScalarFieldContainer[str]
    dynamic_batching: DynamicBatching
    loss: LossSpec
    model: ModelSpec
    optimizer: OptimizerSpec
    planning_seconds: float
    schedule: ScheduleSpec
    seed: int
    def __init__(self, model: _Optional[_Union[ModelSpec, _Mapping]] = ..., cut: _Optional[_Union[Cut, _Mapping]] = ..., devices: _Optional[_Iterable[str]] = ..., schedule: _Optional[_Union[ScheduleSpec, _Mapping]] = ..., optimizer: _Optional[_Union[OptimizerSpec, _Mapping]] = ..., loss: _Optional[_Union[LossSpec, _Mapping]] = ..., seed: _Optional[int] = ..., bubble_filling: _Optional[_Union[BubbleFillingSpec, _Mapping]] = ..., planning_seconds: _Optional[float] = ..., dynamic_batching: _Optional[_Union[DynamicBatching, _Mapping]] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ["checkpoint", "chunks", "ideal_bubble", "lag", "layers", "links", "live_limit", "makespan_seconds", "micro_batches", "predicted_bubble", "schedule", "skips", "stages", "transfers", "why"]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    IDEAL_BUBBLE_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    LIVE_LIMIT_FIELD_NUMBER: _ClassVar[int]
    MAKESPAN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCHES_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_BUBBLE_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    SKIPS_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    TRANSFERS_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    checkpoint: CheckpointMode
    chunks: int
    ideal_bubble: float
    lag: int
    layers: _containers.RepeatedCompositeFieldContainer[LayerPlan]
    links: _containers.RepeatedCompositeFieldContainer[LinkPlan]
    live_limit: int
    makespan_seconds: float
    micro_batches: int
    predicted_bubble: float
    schedule: str
    skips: _containers.RepeatedCompositeFieldContainer[SkipPlan]
    stages: _containers.RepeatedCompositeFieldContainer[StagePlan]
    transfers: _containers.RepeatedCompositeFieldContainer[TransferPlan]
    why: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, stages: _Optional[_Iterable[_Union[StagePlan, _Mapping]]] = ..., schedule: _Optional[str] = ..., micro_batches: _Optional[int] = ..., checkpoint: _Optional[_Union[CheckpointMode, str]] = ..., makespan_seconds: _Optional[float] = ..., predicted_bubble: _Optional[float] = ..., ideal_bubble: _Optional[float] = ..., layers: _Optional[_Iterable[_Union[LayerPlan, _Mapping]]] = ..., skips: _Optional[_Iterable[_Union[SkipPlan, _Mapping]]] = ..., why: _Optional[_Iterable[str]] = ..., chunks: _Optional[int] = ..., lag: _Optional[int] = ..., live_limit: _Optional[int] = ..., links: _Optional[_Iterable[_Union[LinkPlan, _Mapping]]] = ..., transfers: _Optional[_Iterable[_Union[TransferPlan, _Mapping]]] = ...) -> None: ...

class PlanCandidate(_message.Message):
    __slots__ = ["balance", "confirmed", "makespan_seconds", "memory", "messages", "micro_batch_rows", "predicted_bubble", "rehearsed_seconds", "schedule"]
    BALANCE_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    MAKESPAN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_ROWS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_BUBBLE_FIELD_NUMBER: _ClassVar[int]
    REHEARSED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    balance: _containers.RepeatedScalarFieldContainer[int]
    confirmed: bool
    makespan_seconds: float
    memory: _containers.RepeatedCompositeFieldContainer[PlannedMemory]
    messages: int
    micro_batch_rows: int
    predicted_bubble: float
    rehearsed_seconds: float
    schedule: ScheduleSpec
    def __init__(self, schedule: _Optional[_Union[ScheduleSpec, _Mapping]] = ..., balance: _Optional[_Iterable[int]] = ..., makespan_seconds: _Optional[float] = ..., predicted_bubble: _Optional[float] = ..., memory: _Optional[_Iterable[_Union[PlannedMemory, _Mapping]]] = ..., messages: _Optional[int] = ..., micro_batch_rows: _Optional[int] = ..., confirmed: bool = ..., rehearsed_seconds: _Optional[float] = ...) -> None: ...

class PlanPipelineRequest(_message.Message):
    __slots__ = ["limits", "sample", "spec"]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    limits: SearchLimits
    sample: PlanningSample
    spec: PipelineSpec
    def __init__(self, spec: _Optional[_Union[PipelineSpec, _Mapping]] = ..., limits: _Optional[_Union[SearchLimits, _Mapping]] = ..., sample: _Optional[_Union[PlanningSample, _Mapping]] = ...) -> None: ...

class PlanPipelineResponse(_message.Message):
    __slots__ = ["candidates", "complete", "considered", "plan", "refused"]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    CONSIDERED_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    candidates: _containers.RepeatedCompositeFieldContainer[PlanCandidate]
    complete: bool
    considered: int
    plan: Plan
    refused: _containers.RepeatedCompositeFieldContainer[RefusedCandidate]
    def __init__(self, candidates: _Optional[_Iterable[_Union[PlanCandidate, _Mapping]]] = ..., refused: _Optional[_Iterable[_Union[RefusedCandidate, _Mapping]]] = ..., considered: _Optional[int] = ..., complete: bool = ..., plan: _Optional[_Union[Plan, _Mapping]] = ...) -> None: ...

class PlannedMemory(_message.Message):
    __slots__ = ["bytes", "device", "lanes", "largest_class", "largest_class_bytes", "limit_bytes"]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    LARGEST_CLASS_BYTES_FIELD_NUMBER: _ClassVar[int]
    LARGEST_CLASS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    device: str
    lanes: _containers.RepeatedScalarFieldContainer[int]
    largest_class: str
    largest_class_bytes: int
    limit_bytes: int
    def __init__(self, device: _Optional[str] = ..., lanes: _Optional[_Iterable[int]] = ..., bytes: _Optional[int] = ..., limit_bytes: _Optional[int] = ..., largest_class: _Optional[str] = ..., largest_class_bytes: _Optional[int] = ...) -> None: ...

class PlanningSample(_message.Message):
    __slots__ = ["inputs", "target"]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    inputs: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Input]
    target: _tensor_pb2.Input
    def __init__(self, inputs: _Optional[_Iterable[_Union[_tensor_pb2.Input, _Mapping]]] = ..., target: _Optional[_Union[_tensor_pb2.Input, _Mapping]] = ...) -> None: ...

class PublishedCheckpoint(_message.Message):
    __slots__ = ["checkpoint", "error", "publish_time", "step", "version"]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_TIME_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    checkpoint: str
    error: _status_pb2.Status
    publish_time: _timestamp_pb2.Timestamp
    step: int
    version: str
    def __init__(self, checkpoint: _Optional[str] = ..., step: _Optional[int] = ..., version: _Optional[str] = ..., publish_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class RefusedCandidate(_message.Message):
    __slots__ = ["schedule", "why"]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    schedule: ScheduleSpec
    why: _status_pb2.Status
    def __init__(self, schedule: _Optional[_Union[ScheduleSpec, _Mapping]] = ..., why: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class ScheduleSpec(_message.Message):
    __slots__ = ["actions", "checkpoint", "chunks", "kind", "lag", "live_limit", "micro_batches", "mini_batch_rows"]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    LIVE_LIMIT_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCHES_FIELD_NUMBER: _ClassVar[int]
    MINI_BATCH_ROWS_FIELD_NUMBER: _ClassVar[int]
    actions: str
    checkpoint: CheckpointMode
    chunks: int
    kind: str
    lag: int
    live_limit: int
    micro_batches: int
    mini_batch_rows: int
    def __init__(self, kind: _Optional[str] = ..., micro_batches: _Optional[int] = ..., checkpoint: _Optional[_Union[CheckpointMode, str]] = ..., chunks: _Optional[int] = ..., lag: _Optional[int] = ..., live_limit: _Optional[int] = ..., mini_batch_rows: _Optional[int] = ..., actions: _Optional[str] = ...) -> None: ...

class SearchLimits(_message.Message):
    __slots__ = ["kinds", "max_chunks", "micro_batches", "mini_batch_rows"]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    MAX_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCHES_FIELD_NUMBER: _ClassVar[int]
    MINI_BATCH_ROWS_FIELD_NUMBER: _ClassVar[int]
    kinds: _containers.RepeatedScalarFieldContainer[str]
    max_chunks: int
    micro_batches: _containers.RepeatedScalarFieldContainer[int]
    mini_batch_rows: int
    def __init__(self, kinds: _Optional[_Iterable[str]] = ..., max_chunks: _Optional[int] = ..., micro_batches: _Optional[_Iterable[int]] = ..., mini_batch_rows: _Optional[int] = ...) -> None: ...

class SkipIsolation(_message.Message):
    __slots__ = ["only", "skip_namespace"]
    ONLY_FIELD_NUMBER: _ClassVar[int]
    SKIP_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    only: _containers.RepeatedScalarFieldContainer[str]
    skip_namespace: str
    def __init__(self, skip_namespace: _Optional[str] = ..., only: _Optional[_Iterable[str]] = ...) -> None: ...

class SkipPlan(_message.Message):
    __slots__ = ["bytes", "from_stage", "names", "to_stage"]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    FROM_STAGE_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    TO_STAGE_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    from_stage: int
    names: _containers.RepeatedScalarFieldContainer[str]
    to_stage: int
    def __init__(self, from_stage: _Optional[int] = ..., to_stage: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ..., bytes: _Optional[int] = ...) -> None: ...

class StagePlan(_message.Message):
    __slots__ = ["backward_seconds", "device", "first_layer", "forward_seconds", "input_gradient_seconds", "lane", "layers", "optimizer_bytes", "parameter_bytes", "peak_activation_bytes", "rank", "recompute_seconds", "stage", "weight_gradient_seconds"]
    BACKWARD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    FIRST_LAYER_FIELD_NUMBER: _ClassVar[int]
    FORWARD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    INPUT_GRADIENT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_BYTES_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_BYTES_FIELD_NUMBER: _ClassVar[int]
    PEAK_ACTIVATION_BYTES_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_GRADIENT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    backward_seconds: float
    device: str
    first_layer: int
    forward_seconds: float
    input_gradient_seconds: float
    lane: int
    layers: _containers.RepeatedScalarFieldContainer[str]
    optimizer_bytes: int
    parameter_bytes: int
    peak_activation_bytes: int
    rank: int
    recompute_seconds: float
    stage: int
    weight_gradient_seconds: float
    def __init__(self, stage: _Optional[int] = ..., device: _Optional[str] = ..., first_layer: _Optional[int] = ..., layers: _Optional[_Iterable[str]] = ..., forward_seconds: _Optional[float] = ..., backward_seconds: _Optional[float] = ..., recompute_seconds: _Optional[float] = ..., parameter_bytes: _Optional[int] = ..., optimizer_bytes: _Optional[int] = ..., peak_activation_bytes: _Optional[int] = ..., rank: _Optional[int] = ..., lane: _Optional[int] = ..., input_gradient_seconds: _Optional[float] = ..., weight_gradient_seconds: _Optional[float] = ...) -> None: ...

class TieSpec(_message.Message):
    __slots__ = ["parameters"]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    parameters: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, parameters: _Optional[_Iterable[str]] = ...) -> None: ...

class TransferPlan(_message.Message):
    __slots__ = ["bytes", "from_stage", "seconds", "to_stage"]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    FROM_STAGE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    TO_STAGE_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    from_stage: int
    seconds: float
    to_stage: int
    def __init__(self, from_stage: _Optional[int] = ..., to_stage: _Optional[int] = ..., bytes: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class UnloadPipelineRequest(_message.Message):
    __slots__ = ["name", "request_id"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    request_id: str
    def __init__(self, name: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class UpdateOptimizerRequest(_message.Message):
    __slots__ = ["expected_state", "name", "optimizer", "request_id"]
    EXPECTED_STATE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    expected_state: str
    name: str
    optimizer: OptimizerSpec
    request_id: str
    def __init__(self, name: _Optional[str] = ..., optimizer: _Optional[_Union[OptimizerSpec, _Mapping]] = ..., request_id: _Optional[str] = ..., expected_state: _Optional[str] = ...) -> None: ...

class UpdatePipelineRequest(_message.Message):
    __slots__ = ["etag", "name", "no_dynamic_batching", "request_id", "sample", "spec", "validate_only"]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NO_DYNAMIC_BATCHING_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    etag: str
    name: str
    no_dynamic_batching: bool
    request_id: str
    sample: PlanningSample
    spec: PipelineSpec
    validate_only: bool
    def __init__(self, name: _Optional[str] = ..., spec: _Optional[_Union[PipelineSpec, _Mapping]] = ..., no_dynamic_batching: bool = ..., request_id: _Optional[str] = ..., etag: _Optional[str] = ..., validate_only: bool = ..., sample: _Optional[_Union[PlanningSample, _Mapping]] = ...) -> None: ...

class ProgramCuts(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class CutCost(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class CutMethod(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class CheckpointMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class BubbleFilling(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class PipelineState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
