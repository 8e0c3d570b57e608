from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

CHANGES_STATE_FIELD_NUMBER: _ClassVar[int]
DESCRIPTOR: _descriptor.FileDescriptor
ROLE_ADMIN: Role
ROLE_FIELD_NUMBER: _ClassVar[int]
ROLE_INFER: Role
ROLE_TRAIN: Role
ROLE_UNSPECIFIED: Role
ROLE_VIEWER: Role
changes_state: _descriptor.FieldDescriptor
role: _descriptor.FieldDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
