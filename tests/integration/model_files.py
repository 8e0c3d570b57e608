"""Exported programs for tests: the files of tests/golden/exported, and what is made of them with a fault."""

from __future__ import annotations

import hashlib
import io
import json
import pathlib
import struct
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import grpc
import numpy as np
from penstock.checksum import crc32c
from penstock.errors import PenstockError
from penstock.v1 import model_pb2

from raw_calls import Raw

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "golden" / "exported"
CHUNK = 64 << 10

MODEL = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"


def golden(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


def digest_of(file: bytes) -> str:
    return "sha256:" + hashlib.sha256(file).hexdigest()


def reference(name: str) -> dict[str, np.ndarray]:
    """What eager PyTorch makes of a program, from its safetensors file."""
    file = golden(name)
    (size,) = struct.unpack("<Q", file[:8])
    types = {"F32": np.float32, "I64": np.int64, "BOOL": np.bool_}
    tensors = {}
    for key, entry in json.loads(file[8 : 8 + size]).items():
        begin, end = entry["data_offsets"]
        raw = file[8 + size + begin : 8 + size + end]
        tensors[key] = np.frombuffer(raw, types[entry["dtype"]]).reshape(entry["shape"])
    return tensors


# --- archives ---------------------------------------------------------------------------------------------------------


def records(file: bytes) -> dict[str, bytes]:
    """By name within the archive's folder."""
    with zipfile.ZipFile(io.BytesIO(file)) as archive:
        return {name.split("/", 1)[1]: archive.read(name) for name in archive.namelist()}


def packed(content: Mapping[str, bytes], compress: bool = False, folder: str = "model") -> bytes:
    out = io.BytesIO()
    method = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in content.items():
            archive.writestr(zipfile.ZipInfo(f"{folder}/{name}"), data, compress_type=method)
    return out.getvalue()


def replaced(name: str, record: str, before: str, after: str) -> bytes:
    """A golden file whose record says something else, once."""
    content = records(golden(name))
    text = content[record].decode()
    assert before in text, before
    content[record] = text.replace(before, after, 1).encode()
    return packed(content)


def edited(name: str, edit: Callable[[dict[str, bytes]], None]) -> bytes:
    content = records(golden(name))
    edit(content)
    return packed(content)


def flipped(file: bytes, position: int) -> bytes:
    damaged = bytearray(file)
    damaged[position] ^= 0x10
    return bytes(damaged)


def directory_of(file: bytes) -> int:
    """Where the archive's directory begins; records may hold archives, too."""
    end = file.rindex(b"PK\x05\x06")
    (position,) = struct.unpack("<I", file[end + 16 : end + 20])
    return int(position)


def lying_directory(file: bytes) -> bytes:
    """The archive's directory says that its first record is larger than the file."""
    entry = directory_of(file)
    return file[: entry + 20] + struct.pack("<II", 1 << 30, 1 << 30) + file[entry + 28 :]


# --- uploads ----------------------------------------------------------------------------------------------------------


def start_of(model_id: str, file: bytes, **changes: Any) -> model_pb2.UploadModelRequest:
    fields: dict[str, Any] = {"model_id": model_id, "byte_size": len(file), "digest": digest_of(file), **changes}
    return model_pb2.UploadModelRequest(start=model_pb2.UploadModelStart(**fields))


def chunk_of(file: bytes, begin: int, size: int = CHUNK, **changes: Any) -> model_pb2.UploadModelRequest:
    data = file[begin : begin + size]
    fields: dict[str, Any] = {"offset": begin, "data": data, "crc32c": crc32c(data), **changes}
    return model_pb2.UploadModelRequest(chunk=model_pb2.ModelChunk(**fields))


def messages(model_id: str, file: bytes, begin: int = 0) -> Iterator[model_pb2.UploadModelRequest]:
    yield start_of(model_id, file)
    for offset in range(begin, len(file), CHUNK):
        yield chunk_of(file, offset)


def send(raw: Raw, requests: Iterator[model_pb2.UploadModelRequest]) -> model_pb2.Model:
    """Sends all of it; the model that the daemon answers."""
    answers = list(raw.duplex("ModelService/UploadModel", requests, model_pb2.UploadModelResponse))
    assert answers and answers[-1].HasField("model"), answers
    return answers[-1].model


def upload(raw: Raw, model_id: str, file: bytes) -> model_pb2.Model:
    return send(raw, messages(model_id, file))


class OpenUpload:
    """An upload by hand: messages go when the test says so, answers are read one by one."""

    def __init__(self, address: str, caller: str | None = None) -> None:
        self._channel = grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        method = self._channel.stream_stream(
            "/penstock.v1.ModelService/UploadModel",
            request_serializer=model_pb2.UploadModelRequest.SerializeToString,
            response_deserializer=model_pb2.UploadModelResponse.FromString,
        )
        self._queue: list[model_pb2.UploadModelRequest | None] = []
        self._changed = threading.Condition()
        metadata = (("penstock-caller", caller),) if caller else ()
        self.call = method(self._requests(), metadata=metadata, timeout=60)

    def _requests(self) -> Iterator[model_pb2.UploadModelRequest]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue)
                message = self._queue.pop(0)
            if message is None:
                return
            yield message

    def put(self, message: model_pb2.UploadModelRequest | None) -> None:
        """``None`` closes the client's side."""
        with self._changed:
            self._queue.append(message)
            self._changed.notify()

    def answer(self) -> model_pb2.UploadModelResponse:
        try:
            return next(self.call)
        except grpc.RpcError as error:
            raise PenstockError.from_call(error) from None

    def cut(self) -> None:
        """Breaks the connection."""
        self.call.cancel()
        self.put(None)
        self._channel.close()
