"""Exported programs."""

from __future__ import annotations

from typing import Any

import grpc
from penstock.checksum import crc32c
from penstock.v1 import model_pb2

from fake_daemon.handles import CREDIT
from fake_daemon.server import Server


class Models(Server):
    def __init__(self) -> None:
        super().__init__()
        self.break_upload_at: int | None = None
        self.uploaded: dict[str, bytearray] = {}
        self.tied: dict[str, str] = {}

    def UploadModel(self, requests: Any, context: Any) -> Any:
        start = next(requests).start
        self.requests["UploadStart"].append(start)
        file = self.uploaded.setdefault(start.model_id, bytearray())
        credit = model_pb2.UploadModelCredit(bytes=CREDIT, next_offset=len(file))
        yield model_pb2.UploadModelResponse(credit=credit)
        while len(file) < start.byte_size:
            chunk = next(requests).chunk
            assert chunk.offset == len(file) and crc32c(chunk.data) == chunk.crc32c
            file.extend(chunk.data)
            if self.break_upload_at is not None and len(file) >= self.break_upload_at:
                self.break_upload_at = None
                context.abort(grpc.StatusCode.UNAVAILABLE, "gone for a moment")
            yield model_pb2.UploadModelResponse(credit=model_pb2.UploadModelCredit(bytes=len(chunk.data)))
        name = f"models/{start.model_id}"
        yield model_pb2.UploadModelResponse(model=model_pb2.Model(name=name, digest=start.digest))

    def GetModel(self, request: Any, context: Any) -> Any:
        return model_pb2.Model(name=request.name, tied_names=self.tied)

    def ListModels(self, request: Any, context: Any) -> Any:
        first = request.page_token == ""
        model = model_pb2.Model(name="models/a.pt2" if first else "models/b.pt2")
        return model_pb2.ListModelsResponse(models=[model], next_page_token="more" if first else "")

    def DeleteModel(self, request: Any, context: Any) -> Any:
        return model_pb2.DeleteModelResponse()
