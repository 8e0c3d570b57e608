from penstock.v1 import pipeline_pb2 as _pipeline_pb2
from penstock.v1 import role_pb2 as _role_pb2
from penstock.v1 import state_pb2 as _state_pb2
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor
