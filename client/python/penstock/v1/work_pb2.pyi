from google.protobuf import duration_pb2 as _duration_pb2
from google.rpc import status_pb2 as _status_pb2
from penstock.v1 import handle_pb2 as _handle_pb2
from penstock.v1 import pipeline_pb2 as _pipeline_pb2
from penstock.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BackwardRequest(_message.Message):
    __slots__ = ["accumulation_lease", "after_request_id", "expected_state", "gradients", "graph", "input_gradients", "pipeline", "reply", "request_id", "retain_graph"]
    ACCUMULATION_LEASE_FIELD_NUMBER: _ClassVar[int]
    AFTER_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_STATE_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    INPUT_GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RETAIN_GRAPH_FIELD_NUMBER: _ClassVar[int]
    accumulation_lease: _duration_pb2.Duration
    after_request_id: str
    expected_state: str
    gradients: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Input]
    graph: str
    input_gradients: bool
    pipeline: str
    reply: ReplyOptions
    request_id: str
    retain_graph: bool
    def __init__(self, pipeline: _Optional[str] = ..., graph: _Optional[str] = ..., gradients: _Optional[_Iterable[_Union[_tensor_pb2.Input, _Mapping]]] = ..., retain_graph: bool = ..., request_id: _Optional[str] = ..., expected_state: _Optional[str] = ..., reply: _Optional[_Union[ReplyOptions, _Mapping]] = ..., input_gradients: bool = ..., after_request_id: _Optional[str] = ..., accumulation_lease: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class BackwardResponse(_message.Message):
    __slots__ = ["input_gradients", "outcome", "request_id"]
    INPUT_GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    input_gradients: _handle_pb2.Result
    outcome: _handle_pb2.Result
    request_id: str
    def __init__(self, request_id: _Optional[str] = ..., outcome: _Optional[_Union[_handle_pb2.Result, _Mapping]] = ..., input_gradients: _Optional[_Union[_handle_pb2.Result, _Mapping]] = ...) -> None: ...

class EvaluateRequest(_message.Message):
    __slots__ = ["inputs", "loss", "metrics", "micro_batches", "pipeline", "priority", "reply", "request_id", "target", "weights"]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCHES_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    inputs: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Input]
    loss: _pipeline_pb2.LossSpec
    metrics: _containers.RepeatedScalarFieldContainer[str]
    micro_batches: int
    pipeline: str
    priority: int
    reply: ReplyOptions
    request_id: str
    target: _tensor_pb2.Input
    weights: _tensor_pb2.Input
    def __init__(self, pipeline: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[_tensor_pb2.Input, _Mapping]]] = ..., target: _Optional[_Union[_tensor_pb2.Input, _Mapping]] = ..., loss: _Optional[_Union[_pipeline_pb2.LossSpec, _Mapping]] = ..., micro_batches: _Optional[int] = ..., metrics: _Optional[_Iterable[str]] = ..., request_id: _Optional[str] = ..., reply: _Optional[_Union[ReplyOptions, _Mapping]] = ..., priority: _Optional[int] = ..., weights: _Optional[_Union[_tensor_pb2.Input, _Mapping]] = ...) -> None: ...

class EvaluateResponse(_message.Message):
    __slots__ = ["outcome", "request_id"]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    outcome: _handle_pb2.Result
    request_id: str
    def __init__(self, request_id: _Optional[str] = ..., outcome: _Optional[_Union[_handle_pb2.Result, _Mapping]] = ...) -> None: ...

class ForwardBackwardRequest(_message.Message):
    __slots__ = ["accumulation_lease", "after_request_id", "expected_state", "inputs", "loss", "micro_batches", "outputs", "pipeline", "reply", "request_id", "target", "total_elements", "total_rows", "weights"]
    ACCUMULATION_LEASE_FIELD_NUMBER: _ClassVar[int]
    AFTER_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_STATE_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCHES_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    TOTAL_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_ROWS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    accumulation_lease: _duration_pb2.Duration
    after_request_id: str
    expected_state: str
    inputs: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Input]
    loss: _pipeline_pb2.LossSpec
    micro_batches: int
    outputs: _containers.RepeatedScalarFieldContainer[str]
    pipeline: str
    reply: ReplyOptions
    request_id: str
    target: _tensor_pb2.Input
    total_elements: float
    total_rows: int
    weights: _tensor_pb2.Input
    def __init__(self, pipeline: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[_tensor_pb2.Input, _Mapping]]] = ..., target: _Optional[_Union[_tensor_pb2.Input, _Mapping]] = ..., loss: _Optional[_Union[_pipeline_pb2.LossSpec, _Mapping]] = ..., total_rows: _Optional[int] = ..., total_elements: _Optional[float] = ..., micro_batches: _Optional[int] = ..., outputs: _Optional[_Iterable[str]] = ..., request_id: _Optional[str] = ..., expected_state: _Optional[str] = ..., reply: _Optional[_Union[ReplyOptions, _Mapping]] = ..., after_request_id: _Optional[str] = ..., accumulation_lease: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., weights: _Optional[_Union[_tensor_pb2.Input, _Mapping]] = ...) -> None: ...

class ForwardBackwardResponse(_message.Message):
    __slots__ = ["outcome", "outputs", "request_id"]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    outcome: _handle_pb2.Result
    outputs: _handle_pb2.Result
    request_id: str
    def __init__(self, request_id: _Optional[str] = ..., outcome: _Optional[_Union[_handle_pb2.Result, _Mapping]] = ..., outputs: _Optional[_Union[_handle_pb2.Result, _Mapping]] = ...) -> None: ...

class ForwardRequest(_message.Message):
    __slots__ = ["after_request_id", "input_gradients", "inputs", "micro_batches", "mode", "outputs", "pipeline", "reply", "request_id"]
    class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    AFTER_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    INPUT_GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCHES_FIELD_NUMBER: _ClassVar[int]
    MODE_EVAL: ForwardRequest.Mode
    MODE_FIELD_NUMBER: _ClassVar[int]
    MODE_TRAIN: ForwardRequest.Mode
    MODE_UNSPECIFIED: ForwardRequest.Mode
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    after_request_id: str
    input_gradients: bool
    inputs: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Input]
    micro_batches: int
    mode: ForwardRequest.Mode
    outputs: _containers.RepeatedScalarFieldContainer[str]
    pipeline: str
    reply: ReplyOptions
    request_id: str
    def __init__(self, pipeline: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[_tensor_pb2.Input, _Mapping]]] = ..., mode: _Optional[_Union[ForwardRequest.Mode, str]] = ..., micro_batches: _Optional[int] = ..., request_id: _Optional[str] = ..., reply: _Optional[_Union[ReplyOptions, _Mapping]] = ..., outputs: _Optional[_Iterable[str]] = ..., input_gradients: bool = ..., after_request_id: _Optional[str] = ...) -> None: ...

class ForwardResponse(_message.Message):
    __slots__ = ["graph", "outputs", "request_id"]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    graph: _handle_pb2.Result
    outputs: _handle_pb2.Result
    request_id: str
    def __init__(self, request_id: _Optional[str] = ..., outputs: _Optional[_Union[_handle_pb2.Result, _Mapping]] = ..., graph: _Optional[_Union[_handle_pb2.Result, _Mapping]] = ...) -> None: ...

class InferRequest(_message.Message):
    __slots__ = ["inputs", "micro_batches", "outputs", "pipeline", "priority", "reply", "request_id"]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCHES_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    inputs: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Input]
    micro_batches: int
    outputs: _containers.RepeatedScalarFieldContainer[str]
    pipeline: str
    priority: int
    reply: ReplyOptions
    request_id: str
    def __init__(self, pipeline: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[_tensor_pb2.Input, _Mapping]]] = ..., outputs: _Optional[_Iterable[str]] = ..., micro_batches: _Optional[int] = ..., request_id: _Optional[str] = ..., reply: _Optional[_Union[ReplyOptions, _Mapping]] = ..., priority: _Optional[int] = ...) -> None: ...

class InferResponse(_message.Message):
    __slots__ = ["outputs", "request_id"]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    outputs: _handle_pb2.Result
    request_id: str
    def __init__(self, request_id: _Optional[str] = ..., outputs: _Optional[_Union[_handle_pb2.Result, _Mapping]] = ...) -> None: ...

class OptimizerStepRequest(_message.Message):
    __slots__ = ["action", "after_request_id", "clip_norm", "expected_state", "force", "learning_rate", "pipeline", "reply", "request_id"]
    class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    ACTION_APPLY: OptimizerStepRequest.Action
    ACTION_DISCARD: OptimizerStepRequest.Action
    ACTION_FIELD_NUMBER: _ClassVar[int]
    ACTION_UNSPECIFIED: OptimizerStepRequest.Action
    AFTER_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CLIP_NORM_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_STATE_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    action: OptimizerStepRequest.Action
    after_request_id: str
    clip_norm: float
    expected_state: str
    force: bool
    learning_rate: float
    pipeline: str
    reply: ReplyOptions
    request_id: str
    def __init__(self, pipeline: _Optional[str] = ..., action: _Optional[_Union[OptimizerStepRequest.Action, str]] = ..., learning_rate: _Optional[float] = ..., clip_norm: _Optional[float] = ..., request_id: _Optional[str] = ..., expected_state: _Optional[str] = ..., reply: _Optional[_Union[ReplyOptions, _Mapping]] = ..., after_request_id: _Optional[str] = ..., force: bool = ...) -> None: ...

class OptimizerStepResponse(_message.Message):
    __slots__ = ["outcome", "request_id"]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    outcome: _handle_pb2.Result
    request_id: str
    def __init__(self, request_id: _Optional[str] = ..., outcome: _Optional[_Union[_handle_pb2.Result, _Mapping]] = ...) -> None: ...

class ReplyOptions(_message.Message):
    __slots__ = ["inline_bytes", "lease", "wait_for", "work_timeout"]
    INLINE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    WAIT_FOR_FIELD_NUMBER: _ClassVar[int]
    WORK_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    inline_bytes: int
    lease: _duration_pb2.Duration
    wait_for: _duration_pb2.Duration
    work_timeout: _duration_pb2.Duration
    def __init__(self, wait_for: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., inline_bytes: _Optional[int] = ..., lease: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., work_timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class StreamWorkOpened(_message.Message):
    __slots__ = ["epoch", "puts", "requests"]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PUTS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    puts: int
    requests: int
    def __init__(self, epoch: _Optional[int] = ..., requests: _Optional[int] = ..., puts: _Optional[int] = ...) -> None: ...

class StreamWorkRequest(_message.Message):
    __slots__ = ["backward", "cancel", "chunk", "evaluate", "forward", "forward_backward", "infer", "optimizer_step", "put", "tag", "train_step"]
    BACKWARD_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_FIELD_NUMBER: _ClassVar[int]
    FORWARD_BACKWARD_FIELD_NUMBER: _ClassVar[int]
    FORWARD_FIELD_NUMBER: _ClassVar[int]
    INFER_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_STEP_FIELD_NUMBER: _ClassVar[int]
    PUT_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    TRAIN_STEP_FIELD_NUMBER: _ClassVar[int]
    backward: BackwardRequest
    cancel: WorkCancel
    chunk: _handle_pb2.TensorChunk
    evaluate: EvaluateRequest
    forward: ForwardRequest
    forward_backward: ForwardBackwardRequest
    infer: InferRequest
    optimizer_step: OptimizerStepRequest
    put: _handle_pb2.PutStart
    tag: int
    train_step: TrainStepRequest
    def __init__(self, tag: _Optional[int] = ..., infer: _Optional[_Union[InferRequest, _Mapping]] = ..., evaluate: _Optional[_Union[EvaluateRequest, _Mapping]] = ..., forward: _Optional[_Union[ForwardRequest, _Mapping]] = ..., backward: _Optional[_Union[BackwardRequest, _Mapping]] = ..., forward_backward: _Optional[_Union[ForwardBackwardRequest, _Mapping]] = ..., optimizer_step: _Optional[_Union[OptimizerStepRequest, _Mapping]] = ..., train_step: _Optional[_Union[TrainStepRequest, _Mapping]] = ..., put: _Optional[_Union[_handle_pb2.PutStart, _Mapping]] = ..., chunk: _Optional[_Union[_handle_pb2.TensorChunk, _Mapping]] = ..., cancel: _Optional[_Union[WorkCancel, _Mapping]] = ...) -> None: ...

class StreamWorkResponse(_message.Message):
    __slots__ = ["backward", "error", "evaluate", "forward", "forward_backward", "infer", "opened", "optimizer_step", "put", "tag", "train_step"]
    BACKWARD_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_FIELD_NUMBER: _ClassVar[int]
    FORWARD_BACKWARD_FIELD_NUMBER: _ClassVar[int]
    FORWARD_FIELD_NUMBER: _ClassVar[int]
    INFER_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_STEP_FIELD_NUMBER: _ClassVar[int]
    PUT_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    TRAIN_STEP_FIELD_NUMBER: _ClassVar[int]
    backward: BackwardResponse
    error: _status_pb2.Status
    evaluate: EvaluateResponse
    forward: ForwardResponse
    forward_backward: ForwardBackwardResponse
    infer: InferResponse
    opened: StreamWorkOpened
    optimizer_step: OptimizerStepResponse
    put: _handle_pb2.Handle
    tag: int
    train_step: TrainStepResponse
    def __init__(self, tag: _Optional[int] = ..., infer: _Optional[_Union[InferResponse, _Mapping]] = ..., evaluate: _Optional[_Union[EvaluateResponse, _Mapping]] = ..., forward: _Optional[_Union[ForwardResponse, _Mapping]] = ..., backward: _Optional[_Union[BackwardResponse, _Mapping]] = ..., forward_backward: _Optional[_Union[ForwardBackwardResponse, _Mapping]] = ..., optimizer_step: _Optional[_Union[OptimizerStepResponse, _Mapping]] = ..., train_step: _Optional[_Union[TrainStepResponse, _Mapping]] = ..., put: _Optional[_Union[_handle_pb2.Handle, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., opened: _Optional[_Union[StreamWorkOpened, _Mapping]] = ...) -> None: ...

class TrainStepRequest(_message.Message):
    __slots__ = ["after_request_id", "clip_norm", "expected_state", "inputs", "learning_rate", "loss", "micro_batches", "outputs", "pipeline", "reply", "request_id", "target", "weights"]
    AFTER_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CLIP_NORM_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_STATE_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCHES_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    after_request_id: str
    clip_norm: float
    expected_state: str
    inputs: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Input]
    learning_rate: float
    loss: _pipeline_pb2.LossSpec
    micro_batches: int
    outputs: _containers.RepeatedScalarFieldContainer[str]
    pipeline: str
    reply: ReplyOptions
    request_id: str
    target: _tensor_pb2.Input
    weights: _tensor_pb2.Input
    def __init__(self, pipeline: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[_tensor_pb2.Input, _Mapping]]] = ..., target: _Optional[_Union[_tensor_pb2.Input, _Mapping]] = ..., loss: _Optional[_Union[_pipeline_pb2.LossSpec, _Mapping]] = ..., micro_batches: _Optional[int] = ..., outputs: _Optional[_Iterable[str]] = ..., learning_rate: _Optional[float] = ..., clip_norm: _Optional[float] = ..., request_id: _Optional[str] = ..., expected_state: _Optional[str] = ..., reply: _Optional[_Union[ReplyOptions, _Mapping]] = ..., after_request_id: _Optional[str] = ..., weights: _Optional[_Union[_tensor_pb2.Input, _Mapping]] = ...) -> None: ...

class TrainStepResponse(_message.Message):
    __slots__ = ["outcome", "outputs", "request_id"]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    outcome: _handle_pb2.Result
    outputs: _handle_pb2.Result
    request_id: str
    def __init__(self, request_id: _Optional[str] = ..., outcome: _Optional[_Union[_handle_pb2.Result, _Mapping]] = ..., outputs: _Optional[_Union[_handle_pb2.Result, _Mapping]] = ...) -> None: ...

class WorkCancel(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...
