from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.rpc import status_pb2 as _status_pb2
from penstock.v1 import pipeline_pb2 as _pipeline_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DeleteModelRequest(_message.Message):
    __slots__ = ["name"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteModelResponse(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ["name"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ["page_size", "page_token"]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ["models", "next_page_token"]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    next_page_token: str
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ["buffer_bytes", "byte_size", "create_time", "digest", "dimensions", "error", "evaluation_graph", "layers", "name", "nodes", "operators", "parameter_bytes", "parameters", "pipelines", "signature", "tied_names", "training_graph"]
    class TiedNamesEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    BUFFER_BYTES_FIELD_NUMBER: _ClassVar[int]
    BYTE_SIZE_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_GRAPH_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    OPERATORS_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_BYTES_FIELD_NUMBER: _ClassVar[int]
    PIPELINES_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    TIED_NAMES_FIELD_NUMBER: _ClassVar[int]
    TRAINING_GRAPH_FIELD_NUMBER: _ClassVar[int]
    buffer_bytes: int
    byte_size: int
    create_time: _timestamp_pb2.Timestamp
    digest: str
    dimensions: _containers.RepeatedCompositeFieldContainer[ModelDimension]
    error: _status_pb2.Status
    evaluation_graph: bool
    layers: _containers.RepeatedCompositeFieldContainer[ModelLayer]
    name: str
    nodes: int
    operators: _containers.RepeatedCompositeFieldContainer[ModelOperator]
    parameter_bytes: int
    parameters: int
    pipelines: _containers.RepeatedScalarFieldContainer[str]
    signature: _pipeline_pb2.ModelSignature
    tied_names: _containers.ScalarMap[str, str]
    training_graph: bool
    def __init__(self, name: _Optional[str] = ..., byte_size: _Optional[int] = ..., digest: _Optional[str] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., signature: _Optional[_Union[_pipeline_pb2.ModelSignature, _Mapping]] = ..., dimensions: _Optional[_Iterable[_Union[ModelDimension, _Mapping]]] = ..., parameters: _Optional[int] = ..., parameter_bytes: _Optional[int] = ..., buffer_bytes: _Optional[int] = ..., nodes: _Optional[int] = ..., operators: _Optional[_Iterable[_Union[ModelOperator, _Mapping]]] = ..., layers: _Optional[_Iterable[_Union[ModelLayer, _Mapping]]] = ..., evaluation_graph: bool = ..., training_graph: bool = ..., pipelines: _Optional[_Iterable[str]] = ..., tied_names: _Optional[_Mapping[str, str]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class ModelChunk(_message.Message):
    __slots__ = ["crc32c", "data", "offset"]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    crc32c: int
    data: bytes
    offset: int
    def __init__(self, offset: _Optional[int] = ..., data: _Optional[bytes] = ..., crc32c: _Optional[int] = ...) -> None: ...

class ModelDimension(_message.Message):
    __slots__ = ["inputs", "least", "most", "name"]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    LEAST_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    inputs: _containers.RepeatedScalarFieldContainer[str]
    least: int
    most: int
    name: str
    def __init__(self, name: _Optional[str] = ..., least: _Optional[int] = ..., most: _Optional[int] = ..., inputs: _Optional[_Iterable[str]] = ...) -> None: ...

class ModelLayer(_message.Message):
    __slots__ = ["module", "name", "parameters"]
    MODULE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    module: str
    name: str
    parameters: int
    def __init__(self, name: _Optional[str] = ..., module: _Optional[str] = ..., parameters: _Optional[int] = ...) -> None: ...

class ModelOperator(_message.Message):
    __slots__ = ["calls", "name"]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    calls: int
    name: str
    def __init__(self, name: _Optional[str] = ..., calls: _Optional[int] = ...) -> None: ...

class UploadModelCredit(_message.Message):
    __slots__ = ["bytes", "next_offset"]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    next_offset: int
    def __init__(self, bytes: _Optional[int] = ..., next_offset: _Optional[int] = ...) -> None: ...

class UploadModelRequest(_message.Message):
    __slots__ = ["chunk", "start"]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    chunk: ModelChunk
    start: UploadModelStart
    def __init__(self, start: _Optional[_Union[UploadModelStart, _Mapping]] = ..., chunk: _Optional[_Union[ModelChunk, _Mapping]] = ...) -> None: ...

class UploadModelResponse(_message.Message):
    __slots__ = ["credit", "model"]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    credit: UploadModelCredit
    model: Model
    def __init__(self, credit: _Optional[_Union[UploadModelCredit, _Mapping]] = ..., model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class UploadModelStart(_message.Message):
    __slots__ = ["byte_size", "digest", "model_id"]
    BYTE_SIZE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    byte_size: int
    digest: str
    model_id: str
    def __init__(self, model_id: _Optional[str] = ..., byte_size: _Optional[int] = ..., digest: _Optional[str] = ...) -> None: ...
