from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.rpc import status_pb2 as _status_pb2
from penstock.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor
HANDLE_KIND_GRAPH: HandleKind
HANDLE_KIND_OUTCOME: HandleKind
HANDLE_KIND_UNSPECIFIED: HandleKind
HANDLE_KIND_VALUE: HandleKind
HANDLE_STATE_CANCELLED: HandleState
HANDLE_STATE_EXPIRED: HandleState
HANDLE_STATE_FAILED: HandleState
HANDLE_STATE_PENDING: HandleState
HANDLE_STATE_READY: HandleState
HANDLE_STATE_RELEASED: HandleState
HANDLE_STATE_UNSPECIFIED: HandleState

class CancelHandlesRequest(_message.Message):
    __slots__ = ["names"]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class CancelHandlesResponse(_message.Message):
    __slots__ = ["answers"]
    class Effect(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    class Answer(_message.Message):
        __slots__ = ["effect", "error", "name"]
        EFFECT_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        NAME_FIELD_NUMBER: _ClassVar[int]
        effect: CancelHandlesResponse.Effect
        error: _status_pb2.Status
        name: str
        def __init__(self, name: _Optional[str] = ..., effect: _Optional[_Union[CancelHandlesResponse.Effect, str]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    EFFECT_CANCELLED: CancelHandlesResponse.Effect
    EFFECT_CANCELLING: CancelHandlesResponse.Effect
    EFFECT_NOT_CANCELLABLE: CancelHandlesResponse.Effect
    EFFECT_UNSPECIFIED: CancelHandlesResponse.Effect
    answers: _containers.RepeatedCompositeFieldContainer[CancelHandlesResponse.Answer]
    def __init__(self, answers: _Optional[_Iterable[_Union[CancelHandlesResponse.Answer, _Mapping]]] = ...) -> None: ...

class FetchHandleRequest(_message.Message):
    __slots__ = ["chunk_size", "limit", "name", "offset", "tensor", "wait_for"]
    CHUNK_SIZE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    WAIT_FOR_FIELD_NUMBER: _ClassVar[int]
    chunk_size: int
    limit: int
    name: str
    offset: int
    tensor: str
    wait_for: _duration_pb2.Duration
    def __init__(self, name: _Optional[str] = ..., tensor: _Optional[str] = ..., offset: _Optional[int] = ..., limit: _Optional[int] = ..., chunk_size: _Optional[int] = ..., wait_for: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class FetchHandleResponse(_message.Message):
    __slots__ = ["chunk", "handle", "value"]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    chunk: TensorChunk
    handle: Handle
    value: _tensor_pb2.NamedValue
    def __init__(self, handle: _Optional[_Union[Handle, _Mapping]] = ..., chunk: _Optional[_Union[TensorChunk, _Mapping]] = ..., value: _Optional[_Union[_tensor_pb2.NamedValue, _Mapping]] = ...) -> None: ...

class GetHandleRequest(_message.Message):
    __slots__ = ["name"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class Handle(_message.Message):
    __slots__ = ["byte_size", "create_time", "error", "expire_time", "kind", "method", "name", "outcome", "owner", "results_omitted", "state", "tensors", "values"]
    BYTE_SIZE_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    RESULTS_OMITTED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    byte_size: int
    create_time: _timestamp_pb2.Timestamp
    error: _status_pb2.Status
    expire_time: _timestamp_pb2.Timestamp
    kind: HandleKind
    method: str
    name: str
    outcome: Outcome
    owner: str
    results_omitted: bool
    state: HandleState
    tensors: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.TensorHeader]
    values: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[HandleKind, str]] = ..., state: _Optional[_Union[HandleState, str]] = ..., tensors: _Optional[_Iterable[_Union[_tensor_pb2.TensorHeader, _Mapping]]] = ..., outcome: _Optional[_Union[Outcome, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., byte_size: _Optional[int] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., expire_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., method: _Optional[str] = ..., values: _Optional[_Iterable[str]] = ..., results_omitted: bool = ..., owner: _Optional[str] = ...) -> None: ...

class HandleAnswer(_message.Message):
    __slots__ = ["error", "handle", "name"]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    error: _status_pb2.Status
    handle: Handle
    name: str
    def __init__(self, name: _Optional[str] = ..., handle: _Optional[_Union[Handle, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class ListHandlesRequest(_message.Message):
    __slots__ = ["owner", "page_size", "page_token", "parent"]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    owner: str
    page_size: int
    page_token: str
    parent: str
    def __init__(self, parent: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., owner: _Optional[str] = ...) -> None: ...

class ListHandlesResponse(_message.Message):
    __slots__ = ["handles", "next_page_token"]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    handles: _containers.RepeatedCompositeFieldContainer[Handle]
    next_page_token: str
    def __init__(self, handles: _Optional[_Iterable[_Union[Handle, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ["applied", "counted_elements", "gradient_norm", "learning_rate", "loss", "measured_bubble", "metric_elements", "metrics", "micro_batches", "rows", "seconds", "sequence", "state_token", "step"]
    class MetricsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    COUNTED_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_NORM_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    MEASURED_BUBBLE_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    METRIC_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCHES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    STATE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    applied: bool
    counted_elements: float
    gradient_norm: float
    learning_rate: float
    loss: float
    measured_bubble: float
    metric_elements: int
    metrics: _containers.ScalarMap[str, float]
    micro_batches: int
    rows: int
    seconds: float
    sequence: int
    state_token: str
    step: int
    def __init__(self, step: _Optional[int] = ..., sequence: _Optional[int] = ..., state_token: _Optional[str] = ..., loss: _Optional[float] = ..., gradient_norm: _Optional[float] = ..., applied: bool = ..., learning_rate: _Optional[float] = ..., rows: _Optional[int] = ..., micro_batches: _Optional[int] = ..., seconds: _Optional[float] = ..., measured_bubble: _Optional[float] = ..., counted_elements: _Optional[float] = ..., metrics: _Optional[_Mapping[str, float]] = ..., metric_elements: _Optional[int] = ...) -> None: ...

class PutCredit(_message.Message):
    __slots__ = ["bytes", "next_offset", "next_tensor"]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_TENSOR_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    next_offset: int
    next_tensor: int
    def __init__(self, bytes: _Optional[int] = ..., next_tensor: _Optional[int] = ..., next_offset: _Optional[int] = ...) -> None: ...

class PutStart(_message.Message):
    __slots__ = ["lease", "pipeline", "request_id", "tensors"]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    lease: _duration_pb2.Duration
    pipeline: str
    request_id: str
    tensors: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.TensorHeader]
    def __init__(self, pipeline: _Optional[str] = ..., tensors: _Optional[_Iterable[_Union[_tensor_pb2.TensorHeader, _Mapping]]] = ..., request_id: _Optional[str] = ..., lease: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class PutTensorsRequest(_message.Message):
    __slots__ = ["chunk", "start"]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    chunk: TensorChunk
    start: PutStart
    def __init__(self, start: _Optional[_Union[PutStart, _Mapping]] = ..., chunk: _Optional[_Union[TensorChunk, _Mapping]] = ...) -> None: ...

class PutTensorsResponse(_message.Message):
    __slots__ = ["credit", "handle"]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    credit: PutCredit
    handle: Handle
    def __init__(self, credit: _Optional[_Union[PutCredit, _Mapping]] = ..., handle: _Optional[_Union[Handle, _Mapping]] = ...) -> None: ...

class ReleaseHandlesRequest(_message.Message):
    __slots__ = ["names", "owner"]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    owner: str
    def __init__(self, names: _Optional[_Iterable[str]] = ..., owner: _Optional[str] = ...) -> None: ...

class ReleaseHandlesResponse(_message.Message):
    __slots__ = ["handles"]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    handles: _containers.RepeatedCompositeFieldContainer[HandleAnswer]
    def __init__(self, handles: _Optional[_Iterable[_Union[HandleAnswer, _Mapping]]] = ...) -> None: ...

class RenewHandlesRequest(_message.Message):
    __slots__ = ["lease", "names", "parent"]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    lease: _duration_pb2.Duration
    names: _containers.RepeatedScalarFieldContainer[str]
    parent: str
    def __init__(self, names: _Optional[_Iterable[str]] = ..., parent: _Optional[str] = ..., lease: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class RenewHandlesResponse(_message.Message):
    __slots__ = ["handles"]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    handles: _containers.RepeatedCompositeFieldContainer[HandleAnswer]
    def __init__(self, handles: _Optional[_Iterable[_Union[HandleAnswer, _Mapping]]] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ["handle", "tensors", "values"]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    handle: Handle
    tensors: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Tensor]
    values: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.NamedValue]
    def __init__(self, handle: _Optional[_Union[Handle, _Mapping]] = ..., tensors: _Optional[_Iterable[_Union[_tensor_pb2.Tensor, _Mapping]]] = ..., values: _Optional[_Iterable[_Union[_tensor_pb2.NamedValue, _Mapping]]] = ...) -> None: ...

class ShareHandleRequest(_message.Message):
    __slots__ = ["lease", "name", "recipient", "request_id"]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    RECIPIENT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    lease: _duration_pb2.Duration
    name: str
    recipient: str
    request_id: str
    def __init__(self, name: _Optional[str] = ..., recipient: _Optional[str] = ..., request_id: _Optional[str] = ..., lease: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class TensorChunk(_message.Message):
    __slots__ = ["crc32c", "data", "offset", "tensor"]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    crc32c: int
    data: bytes
    offset: int
    tensor: int
    def __init__(self, tensor: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., crc32c: _Optional[int] = ...) -> None: ...

class WaitHandlesRequest(_message.Message):
    __slots__ = ["mode", "names", "wait_for"]
    class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    MODE_ALL: WaitHandlesRequest.Mode
    MODE_ANY: WaitHandlesRequest.Mode
    MODE_FIELD_NUMBER: _ClassVar[int]
    MODE_UNSPECIFIED: WaitHandlesRequest.Mode
    NAMES_FIELD_NUMBER: _ClassVar[int]
    WAIT_FOR_FIELD_NUMBER: _ClassVar[int]
    mode: WaitHandlesRequest.Mode
    names: _containers.RepeatedScalarFieldContainer[str]
    wait_for: _duration_pb2.Duration
    def __init__(self, names: _Optional[_Iterable[str]] = ..., mode: _Optional[_Union[WaitHandlesRequest.Mode, str]] = ..., wait_for: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class WaitHandlesResponse(_message.Message):
    __slots__ = ["handles"]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    handles: _containers.RepeatedCompositeFieldContainer[HandleAnswer]
    def __init__(self, handles: _Optional[_Iterable[_Union[HandleAnswer, _Mapping]]] = ...) -> None: ...

class HandleState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class HandleKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
