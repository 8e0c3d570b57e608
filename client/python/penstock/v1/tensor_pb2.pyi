from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DATA_TYPE_BF16: DataType
DATA_TYPE_BOOL: DataType
DATA_TYPE_FP16: DataType
DATA_TYPE_FP32: DataType
DATA_TYPE_FP64: DataType
DATA_TYPE_INT16: DataType
DATA_TYPE_INT32: DataType
DATA_TYPE_INT64: DataType
DATA_TYPE_INT8: DataType
DATA_TYPE_UINT16: DataType
DATA_TYPE_UINT32: DataType
DATA_TYPE_UINT64: DataType
DATA_TYPE_UINT8: DataType
DATA_TYPE_UNSPECIFIED: DataType
DESCRIPTOR: _descriptor.FileDescriptor

class HandleTensor(_message.Message):
    __slots__ = ["handle", "put", "tensor"]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    PUT_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    handle: str
    put: int
    tensor: str
    def __init__(self, handle: _Optional[str] = ..., tensor: _Optional[str] = ..., put: _Optional[int] = ...) -> None: ...

class Input(_message.Message):
    __slots__ = ["handle", "name", "tensor", "value", "whole"]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    handle: HandleTensor
    name: str
    tensor: Tensor
    value: Value
    whole: bool
    def __init__(self, name: _Optional[str] = ..., tensor: _Optional[_Union[Tensor, _Mapping]] = ..., handle: _Optional[_Union[HandleTensor, _Mapping]] = ..., value: _Optional[_Union[Value, _Mapping]] = ..., whole: bool = ...) -> None: ...

class NamedValue(_message.Message):
    __slots__ = ["name", "value"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: Value
    def __init__(self, name: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ["data", "header"]
    DATA_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    header: TensorHeader
    def __init__(self, header: _Optional[_Union[TensorHeader, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class TensorHeader(_message.Message):
    __slots__ = ["byte_size", "name", "shape", "type"]
    BYTE_SIZE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    byte_size: int
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    type: DataType
    def __init__(self, name: _Optional[str] = ..., type: _Optional[_Union[DataType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., byte_size: _Optional[int] = ...) -> None: ...

class TensorSignature(_message.Message):
    __slots__ = ["any", "name", "shape", "type"]
    ANY_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    any: bool
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    type: DataType
    def __init__(self, name: _Optional[str] = ..., type: _Optional[_Union[DataType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., any: bool = ...) -> None: ...

class Value(_message.Message):
    __slots__ = ["bool_value", "dict", "double_value", "handle", "int_value", "list", "string_value", "tensor", "tuple"]
    BOOL_VALUE_FIELD_NUMBER: _ClassVar[int]
    DICT_FIELD_NUMBER: _ClassVar[int]
    DOUBLE_VALUE_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    INT_VALUE_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    STRING_VALUE_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    TUPLE_FIELD_NUMBER: _ClassVar[int]
    bool_value: bool
    dict: ValueDict
    double_value: float
    handle: HandleTensor
    int_value: int
    list: ValueList
    string_value: str
    tensor: Tensor
    tuple: ValueList
    def __init__(self, bool_value: bool = ..., int_value: _Optional[int] = ..., double_value: _Optional[float] = ..., string_value: _Optional[str] = ..., list: _Optional[_Union[ValueList, _Mapping]] = ..., tuple: _Optional[_Union[ValueList, _Mapping]] = ..., dict: _Optional[_Union[ValueDict, _Mapping]] = ..., tensor: _Optional[_Union[Tensor, _Mapping]] = ..., handle: _Optional[_Union[HandleTensor, _Mapping]] = ...) -> None: ...

class ValueDict(_message.Message):
    __slots__ = ["entries"]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[NamedValue]
    def __init__(self, entries: _Optional[_Iterable[_Union[NamedValue, _Mapping]]] = ...) -> None: ...

class ValueList(_message.Message):
    __slots__ = ["items"]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Value]
    def __init__(self, items: _Optional[_Iterable[_Union[Value, _Mapping]]] = ...) -> None: ...

class DataType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
