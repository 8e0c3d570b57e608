"""Exported programs that the daemon has: upload, list, delete."""

from __future__ import annotations

import hashlib
import os
import pathlib
from collections.abc import Callable, Iterator

from penstock.checksum import crc32c
from penstock.connection import Connection
from penstock.handles import CHUNK_BYTES
from penstock.uploads import Flow, ended_early
from penstock.v1 import model_pb2

Progress = Callable[[int, int], None]  # bytes that have been sent, and all


class Models:
    """The model root of a daemon: see :attr:`Client.models`. Methods may be called from any thread.

    Every call raises :class:`PenstockError` FEATURE_DISABLED where the daemon has no ``--model-root``, and
    :meth:`upload` and :meth:`delete` where it was started without ``--allow-model-upload``.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def upload(
        self, path: str | os.PathLike[str], model_id: str | None = None, *, progress: Progress | None = None
    ) -> model_pb2.Model:
        """Brings a file that :func:`penstock.export`, or ``torch.export.save``, has written. The answer can be the
        ``model`` of a pipeline. A file that is there already is not sent again; a connection that breaks goes on where
        it was.

        Args:
            model_id: its name there; ``None``: the file's.
            progress: called with the bytes that have been sent, and all of them.

        Raises:
            PenstockError: MODEL_EXISTS if another file has the name; NAME_INVALID; MODEL_TOO_LARGE; STORAGE_FULL;
                SPEC_INVALID naming what is wrong with the file, unsupported operators all at once.
        """
        source = pathlib.Path(path)
        upload = ModelUpload(source, model_id or source.name, progress)

        def attempt() -> model_pb2.Model:
            flow = Flow()
            answers = self._connection.duplex(
                "ModelService/UploadModel", self._requests(upload, flow), model_pb2.UploadModelResponse
            )
            try:
                for answer in answers:
                    if answer.HasField("model"):
                        return answer.model
                    flow.add(answer.credit.bytes, (0, answer.credit.next_offset))
            finally:
                flow.end()
            raise ended_early()

        return self._connection.retry(attempt, "ModelService/UploadModel")

    @staticmethod
    def _requests(upload: ModelUpload, flow: Flow) -> Iterator[model_pb2.UploadModelRequest]:
        yield upload.start()
        position = flow.position()
        if position is None:
            return
        for size, request in upload.chunks(position[1]):
            if not flow.take(size):
                return
            yield request

    def get(self, model_id: str) -> model_pb2.Model:
        """What is known of a model: inputs and outputs, operators, layers, and which pipelines were made from it.

        Raises:
            PenstockError: MODEL_NOT_FOUND.
        """
        return self._connection.unary(
            "ModelService/GetModel", model_pb2.GetModelRequest(name=full_name(model_id)), model_pb2.Model
        )

    def list(self) -> list[model_pb2.Model]:
        """Every ``.pt2`` file of the model root by name; those that can't be used have ``error`` set."""
        found: list[model_pb2.Model] = []
        request = model_pb2.ListModelsRequest(page_size=1000)
        while True:
            response = self._connection.unary("ModelService/ListModels", request, model_pb2.ListModelsResponse)
            found.extend(response.models)
            request.page_token = response.next_page_token
            if not request.page_token:
                return found

    def delete(self, model_id: str) -> None:
        """Removes a file.

        Raises:
            PenstockError: MODEL_NOT_FOUND; MODEL_IN_USE while a pipeline lives that was made from it.
        """
        request = model_pb2.DeleteModelRequest(name=full_name(model_id))
        self._connection.unary("ModelService/DeleteModel", request, model_pb2.DeleteModelResponse)


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

    def chunks(self, offset: int) -> Iterator[tuple[int, model_pb2.UploadModelRequest]]:
        """The rest of the file, from an offset on: sizes and requests."""
        with self._path.open("rb") as file:
            file.seek(offset)
            while data := file.read(CHUNK_BYTES):
                chunk = model_pb2.ModelChunk(offset=offset, data=data, crc32c=crc32c(data))
                yield len(data), model_pb2.UploadModelRequest(chunk=chunk)
                offset += len(data)
                self._progress(offset, self._size)


def _sha256(path: pathlib.Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()


def full_name(model_id: str) -> str:
    return model_id if model_id.startswith("models/") else f"models/{model_id}"
