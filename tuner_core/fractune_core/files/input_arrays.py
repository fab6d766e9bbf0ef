"""Arrays for a model's inputs in an .npz file, as `numpy.savez` writes it, read without NumPy.

Strangers send such files, so nothing in one is believed. Entries are stored and lie apart (`archives.py`). A header is
of the one form that NumPy writes, with a type that is listed here, and the bytes are exactly those of the shape. An
array of Python objects, which NumPy would unpickle, has none of these types.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fractune_core.errors import BadRequest, some_of
from fractune_core.files.archives import Archive, BadArchive

LABEL = "--check-inputs"
MOST_BYTES = 2**28
MOST_ARRAYS = 256
_MOST_DIRECTORY_BYTES = MOST_ARRAYS * 2**9
"""The server itself parses it, entry by entry"""
_MOST_DIMENSIONS = 32
_SUFFIX = ".npy"
_MAGIC = b"\x93NUMPY"
_PREFIX_BYTES = {1: 10, 2: 12, 3: 12}
"""by version of the format: the bytes before the header, whose last ones are its length"""
_MOST_HEADER_BYTES = 2**12
_TYPES = {
    "|b1": ("bool", 1),
    **{
        f"{'|' if size == 1 else '<'}{kind}{size}": (f"{name}{8 * size}", size)
        for kind, name in (("i", "int"), ("u", "uint"))
        for size in (1, 2, 4, 8)
    },
    **{f"<f{size}": (f"float{8 * size}", size) for size in (2, 4, 8)},
}
_HEADER = re.compile(
    r"\{'descr': '([^']{2,4})', 'fortran_order': (False|True), 'shape': \(((?:\d{1,12}, ?)*(?:\d{1,12},?)?)\), \} *\n"
)
_HINT = "write one with numpy.savez(FILE, NAME=array)"


@dataclass(frozen=True)
class InputArray:
    """One array of a file."""

    dtype: str
    """NumPy's name"""
    shape: tuple[int, ...]
    begin: int
    """of its elements, in C's order, in its entry"""

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class InputFile:
    """An .npz file opened for reading; its headers are checked, and its elements are not read yet.

    Raises BadRequest, which begins with `label`, for any other file and for a too large one.
    """

    def __init__(self, path: Path, label: str) -> None:
        self._label = label
        try:
            self._archive = Archive(path, _MOST_DIRECTORY_BYTES)
        except (BadArchive, OSError) as error:
            raise self._refused(error) from error
        try:
            self.arrays = {_name(entry): _header(self._archive, entry) for entry in self._entries()}
        except BadArchive as error:
            self._archive.close()
            raise self._refused(error) from error

    def data(self, name: str) -> bytes:
        """The elements of an array. Raises BadRequest for a damaged file."""
        try:
            return self._archive.read(name + _SUFFIX)[self.arrays[name].begin :]
        except BadArchive as error:
            raise self._refused(error) from error

    def check(self, inputs: Sequence[Mapping[str, Any]]) -> None:
        """Raises BadRequest unless the arrays are exactly these inputs, each with `name`, `dtype` and `shape`. A
        dimension of None may have any size.
        """
        wanted = {each["name"]: each for each in inputs}
        if strangers := sorted(set(self.arrays) - set(wanted)):
            raise BadRequest(f"{self._label}: the model has no input '{strangers[0]}'; it has {some_of(wanted)}")
        if missing := sorted(set(wanted) - set(self.arrays)):
            raise BadRequest(f"{self._label}: the input '{missing[0]}' is missing; the model has {some_of(wanted)}")
        for name, array in self.arrays.items():
            dtype, shape = str(wanted[name]["dtype"]), list(wanted[name]["shape"])
            sizes = zip(shape, array.shape, strict=False)
            fits = len(shape) == len(array.shape) and all(size in (None, found) for size, found in sizes)
            if array.dtype != dtype or not fits:
                text = ", ".join("?" if size is None else str(size) for size in shape)
                raise BadRequest(f"{self._label}: input '{name}' is {array}, and the model takes {dtype}[{text}]")

    def close(self) -> None:
        self._archive.close()

    def _entries(self) -> list[str]:
        size, names = self._archive.file_bytes, self._archive.names
        if size > MOST_BYTES:
            raise BadArchive(f"it has {size} bytes, and {MOST_BYTES} is the limit")
        if not 0 < len(names) <= MOST_ARRAYS:
            raise BadArchive(f"it has {len(names)} arrays, and 1 to {MOST_ARRAYS} are allowed")
        return names

    def _refused(self, error: Exception) -> BadRequest:
        why = f"cannot be read ({error.strerror})" if isinstance(error, OSError) else str(error)
        return BadRequest(f"{self._label}: {why}; {_HINT}")


def _name(entry: str) -> str:
    name = entry.removesuffix(_SUFFIX)
    if name == entry or not name or not name.isprintable():
        raise BadArchive(f"entry {entry[:80]!a} is not an array with a name")
    return name


def _header(archive: Archive, entry: str) -> InputArray:
    """Raises BadArchive for a header that NumPy does not write, and for a size that does not fit it."""
    content = next(archive.chunks(entry), b"")
    version = content[len(_MAGIC)] if content.startswith(_MAGIC) and len(content) > len(_MAGIC) else 0
    begin = _PREFIX_BYTES.get(version, 0)
    if not begin:
        raise BadArchive(f"entry '{entry}' is not an array of NumPy")
    length = int.from_bytes(content[len(_MAGIC) + 2 : begin], "little")
    if length > _MOST_HEADER_BYTES:
        raise BadArchive(f"entry '{entry}' has a header of {length} bytes")
    header = _HEADER.fullmatch(content[begin : begin + length].decode("latin-1"))
    kind = _TYPES.get(header[1]) if header else None
    if header is None or kind is None:
        raise BadArchive(f"entry '{entry}' is not an array of numbers (Python objects are never read)")
    if header[2] == "True":
        raise BadArchive(f"entry '{entry}' is in Fortran's order; write numpy.ascontiguousarray(array)")
    shape = tuple(int(size) for size in re.findall(r"\d+", header[3]))
    held = archive.size(entry) - begin - length
    if len(shape) > _MOST_DIMENSIONS or math.prod(shape) * kind[1] != held:
        raise BadArchive(f"entry '{entry}' has {held} bytes of elements, and its shape {list(shape)[:8]} has not")
    return InputArray(kind[0], shape, begin + length)
