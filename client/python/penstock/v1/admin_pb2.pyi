from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor
DRAIN_PHASE_ANNOUNCE: DrainPhase
DRAIN_PHASE_CLOSE: DrainPhase
DRAIN_PHASE_FINISH: DrainPhase
DRAIN_PHASE_SAVE: DrainPhase
DRAIN_PHASE_UNSPECIFIED: DrainPhase
LOG_LEVEL_DEBUG: LogLevel
LOG_LEVEL_ERROR: LogLevel
LOG_LEVEL_INFO: LogLevel
LOG_LEVEL_UNSPECIFIED: LogLevel
LOG_LEVEL_WARNING: LogLevel
RANK_STATE_DRAINING: RankState
RANK_STATE_MEMBER: RankState
RANK_STATE_MISSING: RankState
RANK_STATE_UNSPECIFIED: RankState

class ClockOffset(_message.Message):
    __slots__ = ["seconds", "uncertainty_seconds"]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    UNCERTAINTY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    uncertainty_seconds: float
    def __init__(self, seconds: _Optional[float] = ..., uncertainty_seconds: _Optional[float] = ...) -> None: ...

class DeviceInfo(_message.Message):
    __slots__ = ["cores", "memory_limit_bytes", "name"]
    CORES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    cores: _containers.RepeatedScalarFieldContainer[int]
    memory_limit_bytes: int
    name: str
    def __init__(self, name: _Optional[str] = ..., cores: _Optional[_Iterable[int]] = ..., memory_limit_bytes: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ["abort", "for_upgrade"]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    FOR_UPGRADE_FIELD_NUMBER: _ClassVar[int]
    abort: bool
    for_upgrade: bool
    def __init__(self, for_upgrade: bool = ..., abort: bool = ...) -> None: ...

class DrainState(_message.Message):
    __slots__ = ["calls_left", "deadline", "final", "for_upgrade", "phase"]
    CALLS_LEFT_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    FOR_UPGRADE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    calls_left: int
    deadline: _timestamp_pb2.Timestamp
    final: bool
    for_upgrade: bool
    phase: DrainPhase
    def __init__(self, phase: _Optional[_Union[DrainPhase, str]] = ..., for_upgrade: bool = ..., final: bool = ..., calls_left: _Optional[int] = ..., deadline: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class GetServerInfoRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class GroupInfo(_message.Message):
    __slots__ = ["complete", "epoch", "generation", "links", "ranks", "reformings", "world_size"]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    REFORMINGS_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    complete: bool
    epoch: int
    generation: int
    links: _containers.RepeatedCompositeFieldContainer[RankLink]
    ranks: _containers.RepeatedCompositeFieldContainer[RankInfo]
    reformings: int
    world_size: int
    def __init__(self, world_size: _Optional[int] = ..., complete: bool = ..., epoch: _Optional[int] = ..., generation: _Optional[int] = ..., reformings: _Optional[int] = ..., ranks: _Optional[_Iterable[_Union[RankInfo, _Mapping]]] = ..., links: _Optional[_Iterable[_Union[RankLink, _Mapping]]] = ...) -> None: ...

class RankInfo(_message.Message):
    __slots__ = ["address", "carrier", "clock", "devices", "host", "problem", "rank", "since", "state"]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CARRIER_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    address: str
    carrier: str
    clock: ClockOffset
    devices: _containers.RepeatedCompositeFieldContainer[DeviceInfo]
    host: str
    problem: str
    rank: int
    since: _timestamp_pb2.Timestamp
    state: RankState
    def __init__(self, rank: _Optional[int] = ..., state: _Optional[_Union[RankState, str]] = ..., since: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., problem: _Optional[str] = ..., host: _Optional[str] = ..., address: _Optional[str] = ..., carrier: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[DeviceInfo, _Mapping]]] = ..., clock: _Optional[_Union[ClockOffset, _Mapping]] = ...) -> None: ...

class RankLink(_message.Message):
    __slots__ = ["bytes", "carrier", "from_rank", "messages", "to_rank"]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CARRIER_FIELD_NUMBER: _ClassVar[int]
    FROM_RANK_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TO_RANK_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    carrier: str
    from_rank: int
    messages: int
    to_rank: int
    def __init__(self, from_rank: _Optional[int] = ..., to_rank: _Optional[int] = ..., carrier: _Optional[str] = ..., messages: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class ServerInfo(_message.Message):
    __slots__ = ["api_address", "devices", "drain", "epoch", "features", "group", "handle_bytes", "handles", "layers", "limits", "losses", "metrics_address", "models", "optimizers", "schedules", "start_time", "state", "version", "versions"]
    class LimitsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class VersionsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    API_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    HANDLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    METRICS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZERS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    api_address: str
    devices: _containers.RepeatedCompositeFieldContainer[DeviceInfo]
    drain: DrainState
    epoch: int
    features: _containers.RepeatedScalarFieldContainer[str]
    group: GroupInfo
    handle_bytes: int
    handles: int
    layers: _containers.RepeatedScalarFieldContainer[str]
    limits: _containers.ScalarMap[str, int]
    losses: _containers.RepeatedScalarFieldContainer[str]
    metrics_address: str
    models: _containers.RepeatedScalarFieldContainer[str]
    optimizers: _containers.RepeatedScalarFieldContainer[str]
    schedules: _containers.RepeatedScalarFieldContainer[str]
    start_time: _timestamp_pb2.Timestamp
    state: str
    version: str
    versions: _containers.ScalarMap[str, str]
    def __init__(self, version: _Optional[str] = ..., epoch: _Optional[int] = ..., start_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., devices: _Optional[_Iterable[_Union[DeviceInfo, _Mapping]]] = ..., features: _Optional[_Iterable[str]] = ..., limits: _Optional[_Mapping[str, int]] = ..., versions: _Optional[_Mapping[str, str]] = ..., api_address: _Optional[str] = ..., metrics_address: _Optional[str] = ..., state: _Optional[str] = ..., handles: _Optional[int] = ..., handle_bytes: _Optional[int] = ..., layers: _Optional[_Iterable[str]] = ..., models: _Optional[_Iterable[str]] = ..., schedules: _Optional[_Iterable[str]] = ..., optimizers: _Optional[_Iterable[str]] = ..., losses: _Optional[_Iterable[str]] = ..., drain: _Optional[_Union[DrainState, _Mapping]] = ..., group: _Optional[_Union[GroupInfo, _Mapping]] = ...) -> None: ...

class SetLogLevelRequest(_message.Message):
    __slots__ = ["level"]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    level: LogLevel
    def __init__(self, level: _Optional[_Union[LogLevel, str]] = ...) -> None: ...

class SetLogLevelResponse(_message.Message):
    __slots__ = ["before", "now"]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    before: LogLevel
    now: LogLevel
    def __init__(self, before: _Optional[_Union[LogLevel, str]] = ..., now: _Optional[_Union[LogLevel, str]] = ...) -> None: ...

class DrainPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class LogLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class RankState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
