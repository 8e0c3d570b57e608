from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ExportTraceRequest(_message.Message):
    __slots__ = ["first_step", "format", "last_step", "pipeline", "steps"]
    class Format(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    FORMAT_CHROME: ExportTraceRequest.Format
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    FORMAT_PERFETTO: ExportTraceRequest.Format
    FORMAT_UNSPECIFIED: ExportTraceRequest.Format
    LAST_STEP_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    first_step: int
    format: ExportTraceRequest.Format
    last_step: int
    pipeline: str
    steps: int
    def __init__(self, pipeline: _Optional[str] = ..., format: _Optional[_Union[ExportTraceRequest.Format, str]] = ..., steps: _Optional[int] = ..., first_step: _Optional[int] = ..., last_step: _Optional[int] = ...) -> None: ...

class ExportTraceResponse(_message.Message):
    __slots__ = ["data", "summary"]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    summary: TraceSummary
    def __init__(self, summary: _Optional[_Union[TraceSummary, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class GetScheduleRequest(_message.Message):
    __slots__ = ["micro_batches", "page_size", "page_token", "pipeline", "source", "step"]
    class Source(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    MICRO_BATCHES_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_MEASURED: GetScheduleRequest.Source
    SOURCE_PLANNED: GetScheduleRequest.Source
    SOURCE_UNSPECIFIED: GetScheduleRequest.Source
    STEP_FIELD_NUMBER: _ClassVar[int]
    micro_batches: int
    page_size: int
    page_token: str
    pipeline: str
    source: GetScheduleRequest.Source
    step: int
    def __init__(self, pipeline: _Optional[str] = ..., source: _Optional[_Union[GetScheduleRequest.Source, str]] = ..., step: _Optional[int] = ..., micro_batches: _Optional[int] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class GetScheduleResponse(_message.Message):
    __slots__ = ["actions", "deviations", "devices", "kind", "measured", "micro_batches", "next_page_token", "planned", "stages", "step"]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    DEVIATIONS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCHES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PLANNED_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    actions: _containers.RepeatedCompositeFieldContainer[ScheduledAction]
    deviations: _containers.RepeatedCompositeFieldContainer[ScheduleDeviation]
    devices: _containers.RepeatedScalarFieldContainer[str]
    kind: str
    measured: ScheduleTotals
    micro_batches: int
    next_page_token: str
    planned: ScheduleTotals
    stages: int
    step: int
    def __init__(self, actions: _Optional[_Iterable[_Union[ScheduledAction, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., kind: _Optional[str] = ..., stages: _Optional[int] = ..., micro_batches: _Optional[int] = ..., devices: _Optional[_Iterable[str]] = ..., step: _Optional[int] = ..., planned: _Optional[_Union[ScheduleTotals, _Mapping]] = ..., measured: _Optional[_Union[ScheduleTotals, _Mapping]] = ..., deviations: _Optional[_Iterable[_Union[ScheduleDeviation, _Mapping]]] = ...) -> None: ...

class LaneStatistics(_message.Message):
    __slots__ = ["device", "lane", "layers", "peak_activation_bytes", "state", "state_seconds"]
    class StateSecondsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    PEAK_ACTIVATION_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    device: str
    lane: int
    layers: _containers.RepeatedScalarFieldContainer[str]
    peak_activation_bytes: int
    state: str
    state_seconds: _containers.ScalarMap[str, float]
    def __init__(self, lane: _Optional[int] = ..., device: _Optional[str] = ..., state: _Optional[str] = ..., state_seconds: _Optional[_Mapping[str, float]] = ..., layers: _Optional[_Iterable[str]] = ..., peak_activation_bytes: _Optional[int] = ...) -> None: ...

class PipelineStatistics(_message.Message):
    __slots__ = ["handle_bytes", "handles", "handles_created", "ideal_bubble", "infer_queue_depth", "lanes", "loss", "measured_bubble", "predicted_bubble", "samples", "step", "time", "train_queue_depth"]
    HANDLES_CREATED_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    HANDLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    IDEAL_BUBBLE_FIELD_NUMBER: _ClassVar[int]
    INFER_QUEUE_DEPTH_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    MEASURED_BUBBLE_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_BUBBLE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    TRAIN_QUEUE_DEPTH_FIELD_NUMBER: _ClassVar[int]
    handle_bytes: int
    handles: int
    handles_created: int
    ideal_bubble: float
    infer_queue_depth: int
    lanes: _containers.RepeatedCompositeFieldContainer[LaneStatistics]
    loss: float
    measured_bubble: float
    predicted_bubble: float
    samples: int
    step: int
    time: _timestamp_pb2.Timestamp
    train_queue_depth: int
    def __init__(self, time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., lanes: _Optional[_Iterable[_Union[LaneStatistics, _Mapping]]] = ..., step: _Optional[int] = ..., loss: _Optional[float] = ..., measured_bubble: _Optional[float] = ..., predicted_bubble: _Optional[float] = ..., ideal_bubble: _Optional[float] = ..., samples: _Optional[int] = ..., train_queue_depth: _Optional[int] = ..., infer_queue_depth: _Optional[int] = ..., handles: _Optional[int] = ..., handle_bytes: _Optional[int] = ..., handles_created: _Optional[int] = ...) -> None: ...

class ScheduleDeviation(_message.Message):
    __slots__ = ["kind", "measured_seconds", "planned_seconds", "share", "where"]
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    KIND_DURATION: ScheduleDeviation.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    KIND_UNSPECIFIED: ScheduleDeviation.Kind
    KIND_WAIT: ScheduleDeviation.Kind
    MEASURED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PLANNED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    kind: ScheduleDeviation.Kind
    measured_seconds: float
    planned_seconds: float
    share: float
    where: ScheduledAction
    def __init__(self, kind: _Optional[_Union[ScheduleDeviation.Kind, str]] = ..., where: _Optional[_Union[ScheduledAction, _Mapping]] = ..., planned_seconds: _Optional[float] = ..., measured_seconds: _Optional[float] = ..., share: _Optional[float] = ...) -> None: ...

class ScheduleTotals(_message.Message):
    __slots__ = ["bubble", "makespan_seconds"]
    BUBBLE_FIELD_NUMBER: _ClassVar[int]
    MAKESPAN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    bubble: float
    makespan_seconds: float
    def __init__(self, makespan_seconds: _Optional[float] = ..., bubble: _Optional[float] = ...) -> None: ...

class ScheduledAction(_message.Message):
    __slots__ = ["action", "lane", "measured_end_nanos", "measured_start_nanos", "planned_end_nanos", "planned_start_nanos"]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    MEASURED_END_NANOS_FIELD_NUMBER: _ClassVar[int]
    MEASURED_START_NANOS_FIELD_NUMBER: _ClassVar[int]
    PLANNED_END_NANOS_FIELD_NUMBER: _ClassVar[int]
    PLANNED_START_NANOS_FIELD_NUMBER: _ClassVar[int]
    action: str
    lane: int
    measured_end_nanos: int
    measured_start_nanos: int
    planned_end_nanos: int
    planned_start_nanos: int
    def __init__(self, action: _Optional[str] = ..., lane: _Optional[int] = ..., planned_start_nanos: _Optional[int] = ..., planned_end_nanos: _Optional[int] = ..., measured_start_nanos: _Optional[int] = ..., measured_end_nanos: _Optional[int] = ...) -> None: ...

class TraceSummary(_message.Message):
    __slots__ = ["incomplete", "lanes", "lost_records", "records", "seconds", "steps"]
    INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    LOST_RECORDS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    incomplete: bool
    lanes: int
    lost_records: int
    records: int
    seconds: float
    steps: int
    def __init__(self, lanes: _Optional[int] = ..., steps: _Optional[int] = ..., records: _Optional[int] = ..., seconds: _Optional[float] = ..., incomplete: bool = ..., lost_records: _Optional[int] = ...) -> None: ...

class WatchStatisticsRequest(_message.Message):
    __slots__ = ["interval", "max_updates", "pipeline"]
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    MAX_UPDATES_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    interval: _duration_pb2.Duration
    max_updates: int
    pipeline: str
    def __init__(self, pipeline: _Optional[str] = ..., interval: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., max_updates: _Optional[int] = ...) -> None: ...
