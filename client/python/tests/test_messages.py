"""The generated messages are those of the .proto files."""

from __future__ import annotations

import importlib
import pathlib
import shutil
import subprocess

import pytest
from google.protobuf import descriptor_pb2

PROTOS = pathlib.Path(__file__).resolve().parents[3] / "proto"


@pytest.mark.skipif(shutil.which("protoc") is None, reason="protoc is missing")
def test_no_message_has_drifted(tmp_path: pathlib.Path) -> None:
    files = sorted(str(path.relative_to(PROTOS)) for path in (PROTOS / "penstock" / "v1").glob("*.proto"))
    result = tmp_path / "set.pb"
    subprocess.run(
        ["protoc", f"--proto_path={PROTOS}", f"--descriptor_set_out={result}", *files], check=True, cwd=PROTOS
    )
    wanted = descriptor_pb2.FileDescriptorSet.FromString(result.read_bytes())
    for file in wanted.file:
        module = importlib.import_module(file.name.replace("/", ".").replace(".proto", "_pb2"))
        built = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        for message in (file, built):
            message.ClearField("source_code_info")
            _without_json_names(message)
        assert built == file, f"{file.name} has changed: run client/python/generate_messages.sh"
    modules = {path.name for path in pathlib.Path(module.__file__ or "").parent.glob("*_pb2.py")}
    assert modules == {pathlib.Path(name).name.replace(".proto", "_pb2.py") for name in files}


def _without_json_names(file: descriptor_pb2.FileDescriptorProto) -> None:
    """protoc adds them to descriptor sets, and not to Python modules."""
    for extension in file.extension:
        extension.ClearField("json_name")
    messages = list(file.message_type)
    while messages:
        message = messages.pop()
        messages.extend(message.nested_type)
        for field in message.field:
            field.ClearField("json_name")
