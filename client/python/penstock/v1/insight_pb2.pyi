from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PipelineStatistics(_message.Message):
    __slots__ = ["handle_bytes", "handles", "handles_created", "ideal_bubble", "infer_queue_depth", "loss", "measured_bubble", "predicted_bubble", "samples", "stages", "step", "time", "train_queue_depth"]
    HANDLES_CREATED_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    HANDLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    IDEAL_BUBBLE_FIELD_NUMBER: _ClassVar[int]
    INFER_QUEUE_DEPTH_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    MEASURED_BUBBLE_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_BUBBLE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    TRAIN_QUEUE_DEPTH_FIELD_NUMBER: _ClassVar[int]
    handle_bytes: int
    handles: int
    handles_created: int
    ideal_bubble: float
    infer_queue_depth: int
    loss: float
    measured_bubble: float
    predicted_bubble: float
    samples: int
    stages: _containers.RepeatedCompositeFieldContainer[StageStatistics]
    step: int
    time: _timestamp_pb2.Timestamp
    train_queue_depth: int
    def __init__(self, time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., stages: _Optional[_Iterable[_Union[StageStatistics, _Mapping]]] = ..., step: _Optional[int] = ..., loss: _Optional[float] = ..., measured_bubble: _Optional[float] = ..., predicted_bubble: _Optional[float] = ..., ideal_bubble: _Optional[float] = ..., samples: _Optional[int] = ..., train_queue_depth: _Optional[int] = ..., infer_queue_depth: _Optional[int] = ..., handles: _Optional[int] = ..., handle_bytes: _Optional[int] = ..., handles_created: _Optional[int] = ...) -> None: ...

class StageStatistics(_message.Message):
    __slots__ = ["device", "layers", "peak_activation_bytes", "stage", "state", "state_seconds"]
    class StateSecondsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    PEAK_ACTIVATION_BYTES_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    device: str
    layers: _containers.RepeatedScalarFieldContainer[str]
    peak_activation_bytes: int
    stage: int
    state: str
    state_seconds: _containers.ScalarMap[str, float]
    def __init__(self, stage: _Optional[int] = ..., device: _Optional[str] = ..., state: _Optional[str] = ..., state_seconds: _Optional[_Mapping[str, float]] = ..., layers: _Optional[_Iterable[str]] = ..., peak_activation_bytes: _Optional[int] = ...) -> None: ...

class WatchStatisticsRequest(_message.Message):
    __slots__ = ["interval", "max_updates", "pipeline"]
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    MAX_UPDATES_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    interval: _duration_pb2.Duration
    max_updates: int
    pipeline: str
    def __init__(self, pipeline: _Optional[str] = ..., interval: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., max_updates: _Optional[int] = ...) -> None: ...
