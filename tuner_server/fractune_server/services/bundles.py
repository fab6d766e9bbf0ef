"""Bundles: download."""

from __future__ import annotations

from collections.abc import Iterator

import grpc

from fractune_core.names import Collection
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.pb import fractune_pb2_grpc as rpc
from fractune_server.transport.context import ServerContext

_MESSAGE_BYTES = 1 << 20


class BundleService(rpc.BundleServiceServicer):
    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def DownloadBundle(
        self, request: pb.DownloadBundleRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.DownloadBundleResponse]:
        for chunk in self._context.files.bundle(Collection.BUNDLES.parse(request.name)):
            for start in range(0, len(chunk), _MESSAGE_BYTES):
                yield pb.DownloadBundleResponse(data=chunk[start : start + _MESSAGE_BYTES])
