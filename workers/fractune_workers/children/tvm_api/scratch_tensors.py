"""The weights of a large model, in files without names: in memory only where somebody looks at them.

A model of more than `APART_FROM_BYTES` is read so. Its numbers go from the file to scratch files, and every tensor that
is made of them as well. The tensors lie over mappings of these files; after each, the pages are given back.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
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
        self._segments: list[mmap.mmap] = []
        self._used = 0
        """bytes of the last segment"""

    def read(self, path: Path, begin: int, dtype: str, shape: Sequence[int]) -> Any:
        """The tensor whose numbers lie in a file from byte `begin` on. Raises BadModel for a shorter file, and without
        room on the disk.
        """
        size = prod(shape) * numpy_dtype(dtype).itemsize
        room = self._room(size)
        with path.open("rb") as file:
            for at in range(0, size, _PIECE_BYTES):
                piece = memoryview(room)[at : at + _PIECE_BYTES]
                if os.preadv(file.fileno(), [piece], begin + at) != len(piece):
                    raise BadModel("is shorter than its weights; copy or export it again")
                self.release()
        return over(room.view(numpy_dtype(dtype)).reshape(tuple(shape)))

    def keep(self, numbers: Array) -> Any:
        """A tensor with these numbers. Raises BadModel without room on the disk."""
        made = self._room(numbers.nbytes).view(numbers.dtype).reshape(numbers.shape)
        np.copyto(made, numbers)
        self.release()
        return over(made)

    def release(self) -> None:
        """Give the pages back; the files keep the numbers."""
        for each in self._segments:
            each.madvise(mmap.MADV_DONTNEED)

    def _room(self, size: int) -> Array:
        begin = -(-self._used // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if not self._segments or begin + size > len(self._segments[-1]):
            self._segments.append(_mapped(max(size, _SEGMENT_BYTES)))
            begin = 0
        self._used = begin + size
        return np.frombuffer(self._segments[-1], np.uint8, size, begin)


def _mapped(size: int) -> mmap.mmap:
    try:
        with tempfile.TemporaryFile() as file:
            os.posix_fallocate(file.fileno(), 0, size)  # a full disk is an error here, and not a signal later
            return mmap.mmap(file.fileno(), size)
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
    scratch: ScratchTensors

    def tensor(self, dtype: str, shape: Sequence[int]) -> Any:
        """Raises BadModel as `ScratchTensors.read`."""
        return self.scratch.read(self.path, self.begin, dtype, shape)


Weights = Mapping[str, WeightInFile]
"""by name"""

_current: list[ScratchTensors] = []
"""that of the model which is read now, if it is large: one process reads one model after the other"""


def begin(*, large: bool) -> ScratchTensors | None:
    """From now on, the weights of the next model: in scratch files if it is `large`."""
    _current[:] = [ScratchTensors()] if large else []
    return _current[0] if large else None


def kept(numbers: Array) -> relax.Constant:
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
        yield memoryview(data[at : at + _PIECE_BYTES])
        for each in _current:
            each.release()
