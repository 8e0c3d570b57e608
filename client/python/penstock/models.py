# Written by client/python/tools/unasync.py from penstock/aio/models.py; change that file instead.
"""Exported programs that the daemon has: upload, list, delete."""

from __future__ import annotations

import os
import pathlib

from penstock.connection import Connection
from penstock.off_loop import off_loop
from penstock.model_files import ModelUpload, Progress, full_name
from penstock.v1 import model_pb2


class Models:
    """The model root of a daemon: see :attr:`Client.models`. The synchronous client's may be called from any thread.

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
            progress: called with the bytes that have been sent, and all of them; the last time when the daemon has them.

        Raises:
            PenstockError: MODEL_EXISTS if another file has the name; NAME_INVALID; MODEL_TOO_LARGE; STORAGE_FULL;
                SPEC_INVALID naming what is wrong with the file, unsupported operators all at once.
        """
        source = pathlib.Path(path)
        upload = off_loop(ModelUpload, source, model_id or source.name, progress)  # it computes a digest
        answer = self._connection.upload("ModelService/UploadModel", model_pb2.UploadModelResponse, upload)
        return answer.model

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
