from penstock.v1 import journal_pb2 as _journal_pb2
from penstock.v1 import role_pb2 as _role_pb2
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor
