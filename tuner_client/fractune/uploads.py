"""Sending a model file: what the server has of it already is not sent again, neither after a cut nor the next time."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fractune_core.errors import BadModel, NotFound, ServerUnreachable
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.pb import fractune_pb2_grpc as rpc
from fractune_core.transfers import transfer_s

CHUNK_BYTES = 1 << 20
PATIENCE_S = 60.0
"""how long an upload that was cut is tried again while the server gets nothing more of it"""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0


class Call(Protocol):
    """A call of the contract, which raises our errors."""

    def __call__(self, method: Callable[..., Any], request: object, timeout_s: float | None = None) -> Any: ...


def send_model(call: Call, models: rpc.ModelServiceStub, path: Path) -> pb.Model:
    """The model on the server, which gets what it lacks of the file.

    An upload that is cut goes on by itself, as long as the server gets more of it within PATIENCE_S. Raises BadModel
    when the file cannot be read, and what the server answered.
    """
    upload = _Upload(call, models, path)
    pause_s, stuck_since = _FIRST_PAUSE_S, None
    while True:
        before = upload.received
        try:
            return upload.bring()
        except ServerUnreachable as error:
            if type(error) is not ServerUnreachable or not upload.begun:  # the server's own word, or no server at all
                raise
            if upload.received > before:
                pause_s, stuck_since = _FIRST_PAUSE_S, None
            stuck_since = stuck_since or time.monotonic()
            if time.monotonic() - stuck_since > PATIENCE_S:
                raise upload.given_up(error) from error
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


@dataclass
class _Upload:
    call: Call
    models: rpc.ModelServiceStub
    path: Path
    begun: bool = False
    received: int = 0
    """bytes that the server had when it was asked last"""

    def __post_init__(self) -> None:
        self.sha256, self.size = _digest(self.path)
        self.name = f"models/{self.sha256}"

    def bring(self) -> pb.Model:
        """The model on the server; what is missing there is sent."""
        with contextlib.suppress(NotFound):
            found: pb.Model = self.call(self.models.GetModel, pb.GetModelRequest(name=self.name))
            return found
        answer: pb.Upload = self.call(self.models.GetUpload, pb.GetUploadRequest(name=self.name))
        self.received = min(answer.received_bytes, self.size)
        self.begun = True
        sent: pb.Model = self.call(self.models.UploadModel, self._parts(), transfer_s(self.size - self.received))
        return sent

    def given_up(self, error: ServerUnreachable) -> ServerUnreachable:
        """With what the next upload need not send again."""
        kept = f"{self.received} of {self.size} bytes of {self.path.name} are kept there for a day"
        return ServerUnreachable(f"{error}; {kept}" if self.received else str(error))

    def _parts(self) -> Iterator[pb.UploadModelRequest]:
        yield pb.UploadModelRequest(
            header=pb.ModelHeader(
                display_name=self.path.name, sha256=self.sha256, size_bytes=self.size, offset_bytes=self.received
            )
        )
        with self.path.open("rb") as file:
            file.seek(self.received)
            while chunk := file.read(CHUNK_BYTES):
                yield pb.UploadModelRequest(data=chunk)


def _digest(path: Path) -> tuple[str, int]:
    """SHA-256 and size of the file. Raises BadModel when it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest(), os.fstat(file.fileno()).st_size
    except OSError as error:
        raise BadModel(f"cannot read the model {path}: {error.strerror}") from error
