from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BackUpJournalRequest(_message.Message):
    __slots__ = ["folder", "named_checkpoints"]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    NAMED_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    folder: str
    named_checkpoints: bool
    def __init__(self, folder: _Optional[str] = ..., named_checkpoints: bool = ...) -> None: ...

class BackUpJournalResponse(_message.Message):
    __slots__ = ["folder", "left_out", "pipelines"]
    class CopiedPipeline(_message.Message):
        __slots__ = ["checkpoints", "name", "sequence"]
        CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
        NAME_FIELD_NUMBER: _ClassVar[int]
        SEQUENCE_FIELD_NUMBER: _ClassVar[int]
        checkpoints: int
        name: str
        sequence: int
        def __init__(self, name: _Optional[str] = ..., sequence: _Optional[int] = ..., checkpoints: _Optional[int] = ...) -> None: ...
    class LeftOut(_message.Message):
        __slots__ = ["name", "reason"]
        NAME_FIELD_NUMBER: _ClassVar[int]
        REASON_FIELD_NUMBER: _ClassVar[int]
        name: str
        reason: str
        def __init__(self, name: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    PIPELINES_FIELD_NUMBER: _ClassVar[int]
    folder: str
    left_out: _containers.RepeatedCompositeFieldContainer[BackUpJournalResponse.LeftOut]
    pipelines: _containers.RepeatedCompositeFieldContainer[BackUpJournalResponse.CopiedPipeline]
    def __init__(self, folder: _Optional[str] = ..., pipelines: _Optional[_Iterable[_Union[BackUpJournalResponse.CopiedPipeline, _Mapping]]] = ..., left_out: _Optional[_Iterable[_Union[BackUpJournalResponse.LeftOut, _Mapping]]] = ...) -> None: ...

class CompactJournalRequest(_message.Message):
    __slots__ = ["pipeline"]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    pipeline: str
    def __init__(self, pipeline: _Optional[str] = ...) -> None: ...

class CompactJournalResponse(_message.Message):
    __slots__ = ["bytes", "calls", "checkpoint"]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    calls: int
    checkpoint: str
    def __init__(self, calls: _Optional[int] = ..., bytes: _Optional[int] = ..., checkpoint: _Optional[str] = ...) -> None: ...

class GetHistoryRequest(_message.Message):
    __slots__ = ["page_size", "page_token", "pipeline"]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    pipeline: str
    def __init__(self, pipeline: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class GetHistoryResponse(_message.Message):
    __slots__ = ["next_page_token", "steps"]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    next_page_token: str
    steps: _containers.RepeatedCompositeFieldContainer[HistoryStep]
    def __init__(self, steps: _Optional[_Iterable[_Union[HistoryStep, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class HistoryStep(_message.Message):
    __slots__ = ["applied", "gradient_norm", "learning_rate", "loss", "run_seconds", "sequence", "step", "time"]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_NORM_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    RUN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    applied: bool
    gradient_norm: float
    learning_rate: float
    loss: float
    run_seconds: float
    sequence: int
    step: int
    time: _timestamp_pb2.Timestamp
    def __init__(self, step: _Optional[int] = ..., sequence: _Optional[int] = ..., time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., loss: _Optional[float] = ..., gradient_norm: _Optional[float] = ..., learning_rate: _Optional[float] = ..., applied: bool = ..., run_seconds: _Optional[float] = ...) -> None: ...

class JournalCall(_message.Message):
    __slots__ = ["accept_time", "caller", "cut", "error_reason", "forward_sequence", "input_bytes", "inputs", "method", "request_id", "run_seconds", "sequence", "settle_time", "state"]
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    ACCEPT_TIME_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    ERROR_REASON_FIELD_NUMBER: _ClassVar[int]
    FORWARD_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    INPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SETTLE_TIME_FIELD_NUMBER: _ClassVar[int]
    STATE_ACCEPTED: JournalCall.State
    STATE_CANCELLED: JournalCall.State
    STATE_DONE: JournalCall.State
    STATE_FAILED: JournalCall.State
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_UNSPECIFIED: JournalCall.State
    accept_time: _timestamp_pb2.Timestamp
    caller: str
    cut: bool
    error_reason: str
    forward_sequence: int
    input_bytes: int
    inputs: int
    method: str
    request_id: str
    run_seconds: float
    sequence: int
    settle_time: _timestamp_pb2.Timestamp
    state: JournalCall.State
    def __init__(self, sequence: _Optional[int] = ..., caller: _Optional[str] = ..., method: _Optional[str] = ..., request_id: _Optional[str] = ..., state: _Optional[_Union[JournalCall.State, str]] = ..., cut: bool = ..., accept_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., settle_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., inputs: _Optional[int] = ..., input_bytes: _Optional[int] = ..., run_seconds: _Optional[float] = ..., error_reason: _Optional[str] = ..., forward_sequence: _Optional[int] = ...) -> None: ...

class ListJournalCallsRequest(_message.Message):
    __slots__ = ["newest_first", "page_size", "page_token", "pipeline"]
    NEWEST_FIRST_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    newest_first: bool
    page_size: int
    page_token: str
    pipeline: str
    def __init__(self, pipeline: _Optional[str] = ..., newest_first: bool = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListJournalCallsResponse(_message.Message):
    __slots__ = ["calls", "next_page_token"]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[JournalCall]
    next_page_token: str
    def __init__(self, calls: _Optional[_Iterable[_Union[JournalCall, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class VerifyJournalRequest(_message.Message):
    __slots__ = ["pipeline"]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    pipeline: str
    def __init__(self, pipeline: _Optional[str] = ...) -> None: ...

class VerifyJournalResponse(_message.Message):
    __slots__ = ["calls", "damage", "input_bytes", "inputs", "outcomes"]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    DAMAGE_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    INPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    calls: int
    damage: str
    input_bytes: int
    inputs: int
    outcomes: int
    def __init__(self, calls: _Optional[int] = ..., inputs: _Optional[int] = ..., input_bytes: _Optional[int] = ..., outcomes: _Optional[int] = ..., damage: _Optional[str] = ...) -> None: ...
