"""The weights of a large model, in files without names: in memory only where somebody looks at them.

A model of more than `APART_FROM_BYTES` is read so. Its numbers go from the file to scratch files, and every tensor that
is made of them as well. The tensors lie over mappings of these files; after each, the pages are given back.
"""

import contextlib
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax

from fractune_core.errors import BadModel
from fractune_core.files.manifests import ALIGNMENT_BYTES
from fractune_runtime.tvm_runtime.tensors import as_array, numpy_dtype, over

Array = npt.NDArray[Any]
LEAST_BYTES = 1 << 20
"""of a tensor that lies there; smaller ones are in memory"""
_SEGMENT_BYTES = 256 << 20
_PIECE_BYTES = 16 << 20


class ScratchTensors:
    """Tensors over mappings of scratch files in the folder for temporary files."""

    def __init__(self) -> None:
        self._segments: list[_Segment] = []

    def read(self, path: Path, begin: int, dtype: str, shape: Sequence[int]) -> Any:
        """The tensor whose numbers lie in a file from byte `begin` on. Raises BadModel for a shorter file, and without
        room on the disk.
        """
        size = prod(shape) * numpy_dtype(dtype).itemsize
        with path.open("rb") as file:
            file.seek(begin)
            pieces = (file.read(min(_PIECE_BYTES, size - at)) for at in range(0, size, _PIECE_BYTES))
            return self._tensor(pieces, size, dtype, shape)

    def keep(self, numbers: Array) -> Any:
        """A tensor with these numbers. Raises BadModel without room on the disk."""
        rows = max(1, _PIECE_BYTES * len(numbers) // numbers.nbytes)
        pieces = (
            np.ascontiguousarray(numbers[at : at + rows]).reshape(-1).view(np.uint8).data
            for at in range(0, len(numbers), rows)
        )
        return self._tensor(pieces, numbers.nbytes, str(numbers.dtype), numbers.shape)

    def release(self) -> None:
        """Give the pages back; the files keep the numbers."""
        for each in self._segments:
            each.mapped.madvise(mmap.MADV_DONTNEED)

    def _tensor(self, pieces: Iterable[bytes | memoryview], size: int, dtype: str, shape: Sequence[int]) -> Any:
        if not self._segments or not self._segments[-1].fits(size):
            self._segments.append(_Segment(max(size, _SEGMENT_BYTES)))
        room = self._segments[-1].filled(pieces, size)
        self.release()
        return over(room.view(numpy_dtype(dtype)).reshape(tuple(shape)))


class _Segment:
    """A scratch file. It is written as a file, so that a full disk is an error, and read as memory."""

    def __init__(self, size: int) -> None:
        with errors_of_the_disk():
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as this
            weakref.finalize(self, self._file.close)
            os.pwrite(self._file.fileno(), b"\0", size - 1)  # the sandbox has no call that makes a file longer
        self.mapped = mmap.mmap(self._file.fileno(), size)
        self._used = 0

    def fits(self, size: int) -> bool:
        return self._begin + size <= len(self.mapped)

    def filled(self, pieces: Iterable[bytes | memoryview], size: int) -> Array:
        """The next `size` bytes, which the pieces fill. Raises BadModel if they do not."""
        at = begin = self._begin
        self._used = begin + size
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                with errors_of_the_disk():
                    written = os.pwrite(self._file.fileno(), rest, at)
                at, rest = at + written, rest[written:]
        if at != self._used:
            raise BadModel("is shorter than its weights; copy or export it again")
        return np.frombuffer(self.mapped, np.uint8, size, begin)

    @property
    def _begin(self) -> int:
        return -(-self._used // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


@contextlib.contextmanager
def errors_of_the_disk() -> Iterator[None]:
    """Within the block, errors of the folder for temporary files are BadModel."""
    try:
        yield
    except OSError as error:
        raise BadModel(
            f"its weights have no room where models are compiled ({error.strerror}): they take three times their size "
            "in the folder for temporary files; name one with room by TMPDIR"
        ) from error


@dataclass(frozen=True)
class WeightInFile:
    """The numbers of a weight in a model's file."""

    path: Path
    begin: int
    size: int
    """bytes"""
    scratch: ScratchTensors | None
    """of a large model"""

    def tensor(self, dtype: str, shape: Sequence[int]) -> Any:
        """In a scratch file. Raises BadModel as `ScratchTensors.read`."""
        scratch = self.scratch or ScratchTensors()
        return scratch.read(self.path, self.begin, dtype, shape)

    def read(self) -> bytes:
        """All of them. Raises OSError."""
        with self.path.open("rb") as file:
            file.seek(self.begin)
            return file.read(self.size)


Weights = Mapping[str, WeightInFile]
"""by name"""

_current: list[ScratchTensors] = []
"""that of the model which is read now, if it is large: one process reads one model after the other"""


def begin(*, large: bool) -> ScratchTensors | None:
    """From now on, the weights of the next model: in scratch files if it is `large`."""
    _current[:] = [ScratchTensors()] if large else []
    return _current[0] if large else None


def kept(numbers: Array) -> tvm.ir.Constant:
    """A constant; of a large model in a scratch file."""
    if not _current or numbers.nbytes < LEAST_BYTES:
        return relax.const(np.ascontiguousarray(numbers), str(numbers.dtype))
    return relax.const(_current[0].keep(numbers))


def numbers_in(tensor: Any) -> Array:
    """The numbers of a tensor of TVM: a copy, or of a large model an array that is read-only."""
    if not _current:
        return np.asarray(tensor.numpy())
    found = as_array(tensor)
    found.flags.writeable = False
    return found


def pieces_of(tensor: Any) -> Iterator[memoryview]:
    """The bytes of a tensor of TVM, one piece after the other in memory."""
    data = np.atleast_1d(as_array(tensor)).reshape(-1).view(np.uint8)
    for at in range(0, data.nbytes, _PIECE_BYTES):
        yield data[at : at + _PIECE_BYTES].data
        for each in _current:
            each.release()
