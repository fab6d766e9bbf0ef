"""Models: upload and look-up."""

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import grpc

from fractune_core.access import transfer_s
from fractune_core.errors import BadModel, BadRequest, NotFound, QuotaExceeded
from fractune_core.files.model_files import SCRIPT_REFUSED, is_script
from fractune_core.names import Collection, check_file_name
from fractune_core.pb import fractune_pb2 as pb, fractune_pb2_grpc as rpc
from fractune_server.authenticator import Caller, caller, ended_after
from fractune_server.store.store import StoredModel
from fractune_server.transport.context import CallContext, TenantView

_MESSAGE_BYTES = 1 << 20


class BundleService(rpc.BundleServiceServicer):
    def __init__(self, context: CallContext) -> None:
        self._context = context

    def DownloadBundle(
        self, request: pb.DownloadBundleRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.DownloadBundleResponse]:
        for chunk in self._context.view().files.bundle(Collection.BUNDLES.parse(request.name)):
            for start in range(0, len(chunk), _MESSAGE_BYTES):
                yield pb.DownloadBundleResponse(data=chunk[start : start + _MESSAGE_BYTES])


Request = TypeVar("Request")
_SILENCE_S = 5.0


def arriving(requests: Iterator[Request], context: Any, size_bytes: int) -> Iterator[Request]:
    """The requests, within the time that `size_bytes` may take. Then it raises QuotaExceeded; silence ends the call."""
    allowed_s = transfer_s(size_bytes)
    deadline = time.monotonic() + allowed_s
    with ended_after(allowed_s + _SILENCE_S, context):
        for request in requests:
            if time.monotonic() > deadline:
                raise QuotaExceeded(
                    f"{size_bytes} bytes may take {allowed_s:.0f} s, and they took longer; send them again"
                )
            yield request


_SHA256 = re.compile(r"[0-9a-f]{64}")


class _Arriving(NamedTuple):
    tenant: str
    token: str
    sha256: str
    size: int
    """in bytes"""


class ModelService(rpc.ModelServiceServicer):
    def __init__(self, context: CallContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._under_way: Counter[_Arriving] = Counter()
        """uploads in progress"""

    def UploadModel(self, request_iterator: Iterator[pb.UploadModelRequest], context: Any) -> pb.Model:
        # The size is unknown before the header, so the header may take no longer than an empty upload.
        first = next(arriving(request_iterator, context, 0), None)
        if first is None or first.WhichOneof("part") != "header":
            raise BadRequest("an upload must begin with its header")
        header = first.header
        if not _SHA256.fullmatch(header.sha256):
            raise BadRequest(f"sha256 is '{header.sha256}'; write 64 hex digits in lower case")
        check_file_name(header.display_name, "display_name")
        if header.size_bytes < 0:
            raise BadRequest(f"size_bytes is {header.size_bytes}; write the size of the file")
        if not header.size_bytes:
            raise BadModel("the model file is empty; copy or export it again")
        if not 0 <= header.offset_bytes <= header.size_bytes:
            raise BadRequest(f"offset_bytes is {header.offset_bytes}; the file has bytes 0 to {header.size_bytes}")
        try:
            return _encode(self._context.view().own.models.get(header.sha256))
        except NotFound:
            return _encode(self._receive(header, request_iterator, context))

    def GetModel(self, request: pb.GetModelRequest, context: grpc.ServicerContext) -> pb.Model:
        return _encode(self._context.view().models.get(Collection.MODELS.parse(request.name)))

    def GetUpload(self, request: pb.GetUploadRequest, context: grpc.ServicerContext) -> pb.Upload:
        sha256 = Collection.MODELS.parse(request.name)
        if not _SHA256.fullmatch(sha256):
            raise BadRequest(f"name is '{request.name}'; write models/ and 64 hex digits in lower case")
        return pb.Upload(
            name=request.name, received_bytes=self._context.view().files.parts.received(caller().token_id, sha256)
        )

    def _receive(self, header: pb.ModelHeader, requests: Iterator[pb.UploadModelRequest], context: Any) -> StoredModel:
        size, limit = header.size_bytes, self._context.upload_limit_bytes
        if size > limit:
            raise QuotaExceeded(
                f"the model has {size} bytes, and this server accepts at most {limit}; "
                "its operator can raise the limit by --upload-limit"
            )
        sender, sha256, offset = caller(), header.sha256, header.offset_bytes
        view = self._context.view().own
        with (
            self._room_for(view, sha256, size, sender),
            view.files.parts.open(sender.token_id, sha256, offset=offset, size=size) as part,
        ):
            for data in _data(arriving(requests, context, size - offset), header):
                if not part.write(data):
                    break
            view.files.add_model(sha256, part)
            found = StoredModel(sha256, header.display_name, size, sender.token_id, sender.tenant)
            view.models.add(found)
        return found

    @contextmanager
    def _room_for(self, view: TenantView, sha256: str, size: int, sender: Caller) -> Iterator[None]:
        """Reserve the bytes in the quotas of the token and the tenant while they arrive. Raises QuotaExceeded."""
        upload = _Arriving(sender.tenant, sender.token_id, sha256, size)
        with self._lock:
            self._check_room(view, upload, sender.quotas.stored_bytes)
            self._under_way[upload] += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way[upload] -= 1
                if not self._under_way[upload]:
                    del self._under_way[upload]

    def _check_room(self, view: TenantView, upload: _Arriving, quota: int | None) -> None:
        """Stored models count, uploads in progress with their whole size, and cut uploads with the bytes so far."""
        for owner, stored_left, limit in view.usage.room(upload.token, quota):
            senders = view.usage.tokens() if owner.token is None else [upload.token]
            others = {(token, name): size for token in senders for name, size in view.files.parts.kept(token).items()}
            others |= {(each.token, each.sha256): each.size for each in self._under_way if each.token in senders}
            # A stored model counts once: a call that was cut may linger after a later call has completed the upload.
            parts = sum(
                length
                for (_, other), length in others.items()
                if other != upload.sha256 and not _is_stored(view, other)
            )
            left = max(stored_left - parts, 0)
            if upload.size > left:
                also = f", with {parts} in incomplete uploads" if parts else ""
                raise QuotaExceeded(
                    f"the model has {upload.size} bytes, and {owner} has {left} of {limit} left{also}; "
                    "ask the server's operator for more"
                )


def _is_stored(view: TenantView, sha256: str) -> bool:
    try:
        view.models.get(sha256)
    except NotFound:
        return False
    return True


def _data(requests: Iterator[pb.UploadModelRequest], header: pb.ModelHeader) -> Iterator[bytes]:
    """The bytes after the header. Raises BadRequest for a wrong number of bytes, BadModel for TVMScript."""
    size = header.size_bytes
    left = size - header.offset_bytes
    for request in requests:
        if request.WhichOneof("part") != "data":
            raise BadRequest("after its header an upload must carry only data")
        if left == size and is_script(request.data):  # a script in smaller parts is refused when it is read
            raise BadModel(f"{header.display_name}: {SCRIPT_REFUSED}")
        left -= len(request.data)
        if left < 0:
            raise BadRequest(f"the upload is longer than the {size} bytes in its header; upload it again")
        yield request.data
    if left:
        raise BadRequest(f"the upload ended {left} bytes before the {size} bytes in its header; upload it again")


def _encode(model: StoredModel) -> pb.Model:
    return pb.Model(
        name=Collection.MODELS.of(model.sha256), display_name=model.display_name, size_bytes=model.size_bytes
    )
