"""Models: upload and look-up."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from fractune_core.errors import BadRequest, NotFound, QuotaExceeded
from fractune_core.names import Collection
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.pb import fractune_pb2_grpc as rpc
from fractune_server.access.gate import Caller, caller
from fractune_server.services.arriving import arriving
from fractune_server.store.models import StoredModel
from fractune_server.transport.context import ServerContext

_SHA256 = re.compile(r"[0-9a-f]{64}")


class ModelService(rpc.ModelServiceServicer):
    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._under_way: Counter[str] = Counter()
        """bytes of uploads that have begun, by token"""

    def UploadModel(self, request_iterator: Iterator[pb.UploadModelRequest], context: Any) -> pb.Model:
        # Until the header says how large it is, nothing is waited for longer than for nothing.
        first = next(arriving(request_iterator, context, 0), None)
        if first is None or first.WhichOneof("part") != "header":
            raise BadRequest("an upload begins with its header")
        header = first.header
        if not _SHA256.fullmatch(header.sha256):
            raise BadRequest(f"sha256 is '{header.sha256}'; write 64 hex digits in lower case")
        if header.size_bytes < 0:
            raise BadRequest(f"size_bytes is {header.size_bytes}; write the size of the file")
        try:
            return _encode(self._context.store.models.get(header.sha256))
        except NotFound:
            return _encode(self._receive(header, request_iterator, context))

    def GetModel(self, request: pb.GetModelRequest, context: grpc.ServicerContext) -> pb.Model:
        return _encode(self._context.store.models.get(Collection.MODELS.parse(request.name)))

    def _receive(self, header: pb.ModelHeader, requests: Iterator[pb.UploadModelRequest], context: Any) -> StoredModel:
        size, limit = header.size_bytes, self._context.upload_limit_bytes
        if size > limit:
            raise QuotaExceeded(
                f"the model has {size} bytes, and this server takes {limit} at most; "
                "its operator can raise that by --upload-limit"
            )
        sender = caller()
        with self._room_for(size, sender):
            data = _data(arriving(requests, context, size), size)
            found = StoredModel(
                header.sha256, header.display_name, self._context.files.add_model(header.sha256, data), sender.token_id
            )
            self._context.store.models.add(found)
        return found

    @contextmanager
    def _room_for(self, size: int, sender: Caller) -> Iterator[None]:
        """The bytes are set aside from the token's quota while they arrive. Raises QuotaExceeded."""
        quota, token = sender.quotas.upload_bytes, sender.token_id
        with self._lock:
            if quota is not None:
                used = self._context.store.tokens.usage(token).upload_bytes + self._under_way[token]
                if used + size > quota:
                    raise QuotaExceeded(
                        f"the model has {size} bytes, and token {token} has {max(quota - used, 0)} of {quota} left; "
                        "ask the server's operator for more"
                    )
            self._under_way[token] += size
        try:
            yield
        finally:
            with self._lock:
                self._under_way[token] -= size
                if not self._under_way[token]:
                    del self._under_way[token]


def _data(requests: Iterator[pb.UploadModelRequest], size: int) -> Iterator[bytes]:
    left = size
    for request in requests:
        if request.WhichOneof("part") != "data":
            raise BadRequest("after its header an upload carries nothing but data")
        left -= len(request.data)
        if left < 0:
            raise BadRequest(f"the upload is longer than the {size} bytes that its header says; upload it again")
        yield request.data
    if left:
        raise BadRequest(f"the upload ended {left} bytes before the {size} that its header says; upload it again")


def _encode(model: StoredModel) -> pb.Model:
    return pb.Model(
        name=Collection.MODELS.of(model.sha256), display_name=model.display_name, size_bytes=model.size_bytes
    )
