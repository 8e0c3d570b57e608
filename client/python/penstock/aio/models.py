"""Exported programs that the daemon has, for asyncio; see :mod:`penstock.models`."""

from __future__ import annotations

import asyncio
import os
import pathlib
from collections.abc import Iterator

from penstock.aio.connection import Connection
from penstock.models import ModelUpload, Progress, full_name
from penstock.v1 import model_pb2


class Models:
    """The model root of a daemon; see :class:`penstock.models.Models`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def upload(
        self, path: str | os.PathLike[str], model_id: str | None = None, *, progress: Progress | None = None
    ) -> model_pb2.Model:
        """Brings a file; see :meth:`penstock.models.Models.upload`. Its digest is computed on a thread."""
        source = pathlib.Path(path)
        upload = await asyncio.to_thread(ModelUpload, source, model_id or source.name, progress)
        answer = await self._connection.upload(
            "ModelService/UploadModel", model_pb2.UploadModelResponse, _FileUpload(upload)
        )
        return answer.model

    async def get(self, model_id: str) -> model_pb2.Model:
        """What is known of a model."""
        return await self._connection.unary(
            "ModelService/GetModel", model_pb2.GetModelRequest(name=full_name(model_id)), model_pb2.Model
        )

    async def list(self) -> list[model_pb2.Model]:
        """Every ``.pt2`` file of the model root by name; those that can't be used have ``error`` set."""
        found: list[model_pb2.Model] = []
        request = model_pb2.ListModelsRequest(page_size=1000)
        while True:
            response = await self._connection.unary("ModelService/ListModels", request, model_pb2.ListModelsResponse)
            found.extend(response.models)
            request.page_token = response.next_page_token
            if not request.page_token:
                return found

    async def delete(self, model_id: str) -> None:
        """Removes a file; see :meth:`penstock.models.Models.delete`."""
        request = model_pb2.DeleteModelRequest(name=full_name(model_id))
        await self._connection.unary("ModelService/DeleteModel", request, model_pb2.DeleteModelResponse)


class _FileUpload:
    def __init__(self, upload: ModelUpload) -> None:
        self._upload = upload

    def start(self) -> model_pb2.UploadModelRequest:
        return self._upload.start()

    def chunks(self, first: int, offset: int) -> Iterator[tuple[int, model_pb2.UploadModelRequest]]:
        return self._upload.chunks(offset)

    def credit(self, answer: model_pb2.UploadModelResponse) -> tuple[int, tuple[int, int]] | None:
        return None if answer.HasField("model") else (answer.credit.bytes, (0, answer.credit.next_offset))
