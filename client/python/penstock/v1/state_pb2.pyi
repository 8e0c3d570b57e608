from google.protobuf import timestamp_pb2 as _timestamp_pb2
from penstock.v1 import handle_pb2 as _handle_pb2
from penstock.v1 import pipeline_pb2 as _pipeline_pb2
from penstock.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

CHECKPOINT_STATE_COMPLETE: CheckpointState
CHECKPOINT_STATE_DAMAGED: CheckpointState
CHECKPOINT_STATE_FAILED: CheckpointState
CHECKPOINT_STATE_UNSPECIFIED: CheckpointState
CHECKPOINT_STATE_WRITING: CheckpointState
DESCRIPTOR: _descriptor.FileDescriptor

class Checkpoint(_message.Message):
    __slots__ = ["automatic", "byte_size", "create_time", "digest", "has_specification", "model", "name", "pipeline_exists", "program_digest", "rotating", "state", "step"]
    AUTOMATIC_FIELD_NUMBER: _ClassVar[int]
    BYTE_SIZE_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    HAS_SPECIFICATION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_EXISTS_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ROTATING_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    automatic: bool
    byte_size: int
    create_time: _timestamp_pb2.Timestamp
    digest: str
    has_specification: bool
    model: str
    name: str
    pipeline_exists: bool
    program_digest: str
    rotating: bool
    state: CheckpointState
    step: int
    def __init__(self, name: _Optional[str] = ..., step: _Optional[int] = ..., byte_size: _Optional[int] = ..., digest: _Optional[str] = ..., state: _Optional[_Union[CheckpointState, str]] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., model: _Optional[str] = ..., program_digest: _Optional[str] = ..., pipeline_exists: bool = ..., has_specification: bool = ..., rotating: bool = ..., automatic: bool = ...) -> None: ...

class CheckpointSpecification(_message.Message):
    __slots__ = ["balance", "schedule", "spec"]
    BALANCE_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    balance: _containers.RepeatedScalarFieldContainer[int]
    schedule: _pipeline_pb2.ScheduleSpec
    spec: _pipeline_pb2.PipelineSpec
    def __init__(self, spec: _Optional[_Union[_pipeline_pb2.PipelineSpec, _Mapping]] = ..., schedule: _Optional[_Union[_pipeline_pb2.ScheduleSpec, _Mapping]] = ..., balance: _Optional[_Iterable[int]] = ...) -> None: ...

class CopyCheckpointRequest(_message.Message):
    __slots__ = ["checkpoint_id", "destination", "request_id", "source"]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    checkpoint_id: str
    destination: str
    request_id: str
    source: str
    def __init__(self, source: _Optional[str] = ..., destination: _Optional[str] = ..., checkpoint_id: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class DeleteCheckpointRequest(_message.Message):
    __slots__ = ["name", "pipeline", "request_id"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    pipeline: str
    request_id: str
    def __init__(self, name: _Optional[str] = ..., pipeline: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class DeleteCheckpointResponse(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class ListCheckpointsRequest(_message.Message):
    __slots__ = ["automatic", "page_size", "page_token", "parent"]
    AUTOMATIC_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    automatic: bool
    page_size: int
    page_token: str
    parent: str
    def __init__(self, parent: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., automatic: bool = ...) -> None: ...

class ListCheckpointsResponse(_message.Message):
    __slots__ = ["checkpoints", "next_page_token"]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    checkpoints: _containers.RepeatedCompositeFieldContainer[Checkpoint]
    next_page_token: str
    def __init__(self, checkpoints: _Optional[_Iterable[_Union[Checkpoint, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class PublishCheckpointRequest(_message.Message):
    __slots__ = ["checkpoint_id", "pipeline", "request_id"]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    checkpoint_id: str
    pipeline: str
    request_id: str
    def __init__(self, pipeline: _Optional[str] = ..., checkpoint_id: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class ReadParametersRequest(_message.Message):
    __slots__ = ["checkpoint", "chunk_size", "gradients", "include_optimizer_state", "names", "pipeline"]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    CHUNK_SIZE_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_OPTIMIZER_STATE_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    checkpoint: str
    chunk_size: int
    gradients: bool
    include_optimizer_state: bool
    names: _containers.RepeatedScalarFieldContainer[str]
    pipeline: str
    def __init__(self, pipeline: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ..., include_optimizer_state: bool = ..., chunk_size: _Optional[int] = ..., gradients: bool = ..., checkpoint: _Optional[str] = ...) -> None: ...

class ReadParametersResponse(_message.Message):
    __slots__ = ["chunk", "start"]
    class Start(_message.Message):
        __slots__ = ["step", "tensors"]
        STEP_FIELD_NUMBER: _ClassVar[int]
        TENSORS_FIELD_NUMBER: _ClassVar[int]
        step: int
        tensors: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.TensorHeader]
        def __init__(self, step: _Optional[int] = ..., tensors: _Optional[_Iterable[_Union[_tensor_pb2.TensorHeader, _Mapping]]] = ...) -> None: ...
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    chunk: _handle_pb2.TensorChunk
    start: ReadParametersResponse.Start
    def __init__(self, start: _Optional[_Union[ReadParametersResponse.Start, _Mapping]] = ..., chunk: _Optional[_Union[_handle_pb2.TensorChunk, _Mapping]] = ...) -> None: ...

class RestoreCheckpointRequest(_message.Message):
    __slots__ = ["force", "name", "pipeline", "request_id"]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    force: bool
    name: str
    pipeline: str
    request_id: str
    def __init__(self, name: _Optional[str] = ..., force: bool = ..., request_id: _Optional[str] = ..., pipeline: _Optional[str] = ...) -> None: ...

class RestoreCheckpointResponse(_message.Message):
    __slots__ = ["state_token", "step"]
    STATE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    state_token: str
    step: int
    def __init__(self, step: _Optional[int] = ..., state_token: _Optional[str] = ...) -> None: ...

class SaveCheckpointRequest(_message.Message):
    __slots__ = ["checkpoint_id", "keep", "pipeline", "replace", "request_id"]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    checkpoint_id: str
    keep: int
    pipeline: str
    replace: bool
    request_id: str
    def __init__(self, pipeline: _Optional[str] = ..., checkpoint_id: _Optional[str] = ..., request_id: _Optional[str] = ..., replace: bool = ..., keep: _Optional[int] = ...) -> None: ...

class WriteParametersRequest(_message.Message):
    __slots__ = ["force", "handles", "pipeline", "request_id", "step"]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    force: bool
    handles: _containers.RepeatedScalarFieldContainer[str]
    pipeline: str
    request_id: str
    step: int
    def __init__(self, pipeline: _Optional[str] = ..., handles: _Optional[_Iterable[str]] = ..., step: _Optional[int] = ..., force: bool = ..., request_id: _Optional[str] = ...) -> None: ...

class WriteParametersResponse(_message.Message):
    __slots__ = ["state_token", "step"]
    STATE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    state_token: str
    step: int
    def __init__(self, step: _Optional[int] = ..., state_token: _Optional[str] = ...) -> None: ...

class CheckpointState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
