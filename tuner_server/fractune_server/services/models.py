"""Models: upload and look-up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import grpc

from fractune_core.errors import BadRequest, NotFound
from fractune_core.names import Collection
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.pb import fractune_pb2_grpc as rpc
from fractune_server.store.models import StoredModel
from fractune_server.transport.context import ServerContext

_SHA256 = re.compile(r"[0-9a-f]{64}")


class ModelService(rpc.ModelServiceServicer):
    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def UploadModel(self, request_iterator: Iterator[pb.UploadModelRequest], context: Any) -> pb.Model:
        first = next(request_iterator, None)
        if first is None or first.WhichOneof("part") != "header":
            raise BadRequest("an upload begins with its header")
        header = first.header
        if not _SHA256.fullmatch(header.sha256):
            raise BadRequest(f"sha256 is '{header.sha256}'; write 64 hex digits in lower case")
        try:
            return _encode(self._context.store.models.get(header.sha256))
        except NotFound:
            size = self._context.files.add_model(header.sha256, _data(request_iterator))
        model = StoredModel(header.sha256, header.display_name, size)
        self._context.store.models.add(model)
        return _encode(model)

    def GetModel(self, request: pb.GetModelRequest, context: grpc.ServicerContext) -> pb.Model:
        return _encode(self._context.store.models.get(Collection.MODELS.parse(request.name)))


def _data(requests: Iterator[pb.UploadModelRequest]) -> Iterator[bytes]:
    for request in requests:
        if request.WhichOneof("part") != "data":
            raise BadRequest("after its header an upload carries nothing but data")
        yield request.data


def _encode(model: StoredModel) -> pb.Model:
    return pb.Model(
        name=Collection.MODELS.of(model.sha256), display_name=model.display_name, size_bytes=model.size_bytes
    )
