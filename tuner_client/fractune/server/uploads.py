"""Uploads of model files. Parts that the server has are not sent again, neither after a cut nor later."""

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fractune_core.access import transfer_s
from fractune_core.errors import BadModel, NotFound, ServerUnreachable
from fractune_core.names import check_file_name
from fractune_core.pb import fractune_pb2 as pb, fractune_pb2_grpc as rpc

CHUNK_BYTES = 1 << 20
PATIENCE_S = 60.0
"""seconds to retry a cut upload while the server receives nothing more of it"""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0


class Call(Protocol):
    """A call of the contract; it raises errors of fractune."""

    def __call__(self, method: Callable[..., Any], request: object, timeout_s: float | None = None) -> Any: ...


def send_model(call: Call, models: rpc.ModelServiceStub, path: Path, is_closed: Callable[[], bool]) -> pb.Model:
    """Upload the missing part of the file, and return the server's model.

    A cut upload is resumed, as long as the server receives more within PATIENCE_S. Raises BadModel if the file cannot
    be read, BadRequest for an invalid name, and the errors of the server. Nothing is retried once `is_closed()`: then
    the caller has ended the connection.
    """
    check_file_name(path.name, "the model file's name")
    upload = _Upload(call, models, path, is_closed)
    found = upload.ask()  # an unreachable server is not a cut: report it at once
    while found is None:
        try:
            return upload.send()
        except ServerUnreachable as cut:
            if type(cut) is not ServerUnreachable or is_closed():  # an error from the server, or our own closing
                raise
            found = upload.come_back(cut)
    return found


@dataclass
class _Upload:
    call: Call
    models: rpc.ModelServiceStub
    path: Path
    is_closed: Callable[[], bool]
    received: int = 0
    """bytes that the server had at the last query"""
    pause_s: float = _FIRST_PAUSE_S

    def __post_init__(self) -> None:
        self.sha256, self.size = _digest(self.path)
        self.name = f"models/{self.sha256}"
        self.gained_at = time.monotonic()
        """time of the last query that found more bytes"""

    def ask(self) -> pb.Model | None:
        """The model if the server has all of it. Otherwise this records how much the server has."""
        with contextlib.suppress(NotFound):
            found: pb.Model = self.call(self.models.GetModel, pb.GetModelRequest(name=self.name))
            return found
        answer: pb.Upload = self.call(self.models.GetUpload, pb.GetUploadRequest(name=self.name))
        if answer.received_bytes > self.received:
            self.gained_at, self.pause_s = time.monotonic(), _FIRST_PAUSE_S
        self.received = min(answer.received_bytes, self.size)
        return None

    def send(self) -> pb.Model:
        """Send the part that was missing at the last query."""
        sent: pb.Model = self.call(self.models.UploadModel, self._parts(), transfer_s(self.size - self.received))
        return sent

    def come_back(self, cut: ServerUnreachable) -> pb.Model | None:
        """Query the server again after a cut, until it answers.

        Raises ServerUnreachable if there is no answer within PATIENCE_S, or none with more bytes than before.
        """
        cut_at = time.monotonic()
        while True:
            time.sleep(self.pause_s)
            self.pause_s = min(2 * self.pause_s, _LONGEST_PAUSE_S)
            answered = False
            with contextlib.suppress(ServerUnreachable):
                found, answered = self.ask(), True
                if found is not None:
                    return found
            if self.is_closed() or time.monotonic() - (self.gained_at if answered else cut_at) > PATIENCE_S:
                raise self.given_up(cut) from cut
            if answered:
                return None

    def given_up(self, error: ServerUnreachable) -> ServerUnreachable:
        """The error, with the number of bytes that the next upload need not send."""
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
    """SHA-256 and size of the file. Raises BadModel if it is empty or cannot be read."""
    try:
        with path.open("rb") as file:
            sha256, size = hashlib.file_digest(file, "sha256").hexdigest(), os.fstat(file.fileno()).st_size
    except OSError as error:
        raise BadModel(f"cannot read the model {path}: {error.strerror}") from error
    if not size:
        raise BadModel(f"the model file {path} is empty; copy or export it again")
    return sha256, size
