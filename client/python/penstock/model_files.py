"""Files of exported programs on their way to the daemon."""

from __future__ import annotations

import hashlib
import pathlib
from collections.abc import Callable, Iterator

from penstock.checksum import crc32c
from penstock.chunks import CHUNK_BYTES
from penstock.v1 import model_pb2

Progress = Callable[[int, int], None]  # bytes that have been sent, and all


class ModelUpload:
    """A file on its way to the daemon. Does no calls itself.

    Raises:
        FileNotFoundError, PermissionError: the file can't be read.
    """

    def __init__(self, path: pathlib.Path, model_id: str, progress: Progress | None) -> None:
        self._path = path
        self._id = model_id
        self._progress = progress or (lambda sent, all: None)
        self._size = path.stat().st_size
        self._digest = _sha256(path)

    def start(self) -> model_pb2.UploadModelRequest:
        return model_pb2.UploadModelRequest(
            start=model_pb2.UploadModelStart(model_id=self._id, byte_size=self._size, digest=f"sha256:{self._digest}")
        )

    def chunks(self, first: int, offset: int) -> Iterator[tuple[int, model_pb2.UploadModelRequest]]:
        """The rest of the file, from an offset on: sizes and requests.

        Raises:
            OSError: it has become shorter.
        """
        with self._path.open("rb") as file:
            file.seek(offset)
            while data := file.read(CHUNK_BYTES):
                chunk = model_pb2.ModelChunk(offset=offset, data=data, crc32c=crc32c(data))
                yield len(data), model_pb2.UploadModelRequest(chunk=chunk)
                offset += len(data)
                if offset < self._size:
                    self._progress(offset, self._size)
        if offset < self._size:  # the daemon would wait for the rest
            raise OSError(f"{self._path}: was {self._size} bytes long, and is {offset} now")

    def credit(self, answer: model_pb2.UploadModelResponse) -> tuple[int, tuple[int, int]] | None:
        """Bytes that may be sent, and where to go on; ``None``: the answer is the last one, the daemon has the file."""
        if answer.HasField("model"):
            self._progress(self._size, self._size)
            return None
        return answer.credit.bytes, (0, answer.credit.next_offset)


def _sha256(path: pathlib.Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()


def full_name(model_id: str) -> str:
    return model_id if model_id.startswith("models/") else f"models/{model_id}"
