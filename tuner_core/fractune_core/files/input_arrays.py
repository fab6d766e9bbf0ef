"""Arrays for a model's inputs in an .npz file, as `numpy.savez` writes it, read without NumPy.

Strangers send such files, so nothing in one is believed: entries are stored and lie apart (`archives.py`), a header is
of the one form that NumPy writes, a type is one of those listed here, and the bytes are exactly those of the shape. An
array of Python objects, which NumPy would unpickle, has none of these types.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fractune_core.errors import BadRequest, some_of
from fractune_core.files.archives import Archive, BadArchive

MOST_BYTES = 2**28
MOST_ARRAYS = 256
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
    data: bytes
    """of the elements, in C's order"""

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def read_input_arrays(source: Path | bytes, label: str) -> dict[str, InputArray]:
    """The arrays by name. Raises BadRequest, which begins with `label`, for any other file and for too large ones."""
    try:
        with Archive(source) as archive:
            size = archive.file_bytes
            if size > MOST_BYTES:
                raise BadArchive(f"it has {size} bytes, and {MOST_BYTES} is the limit")
            if not 0 < len(archive.names) <= MOST_ARRAYS:
                raise BadArchive(f"it has {len(archive.names)} arrays, and 1 to {MOST_ARRAYS} are allowed")
            return {_name(entry): _array(entry, archive.read(entry)) for entry in archive.names}
    except BadArchive as error:
        raise BadRequest(f"{label}: {error}; {_HINT}") from error
    except OSError as error:
        raise BadRequest(f"{label}: cannot be read ({error.strerror})") from error


def check_arrays(arrays: Mapping[str, InputArray], inputs: Sequence[Mapping[str, Any]], label: str) -> None:
    """Raises BadRequest unless these are exactly the `inputs`, each with `name`, `dtype` and `shape`; a dimension of
    None may have any size.
    """
    wanted = {each["name"]: each for each in inputs}
    if strangers := sorted(set(arrays) - set(wanted)):
        raise BadRequest(f"{label}: the model has no input '{strangers[0]}'; its inputs are {some_of(wanted)}")
    if missing := sorted(set(wanted) - set(arrays)):
        raise BadRequest(f"{label}: it lacks the input '{missing[0]}'; the inputs are {some_of(wanted)}")
    for name, array in arrays.items():
        dtype, shape = str(wanted[name]["dtype"]), list(wanted[name]["shape"])
        fits = len(shape) == len(array.shape) and all(
            size in (None, found) for size, found in zip(shape, array.shape, strict=True)
        )
        if array.dtype != dtype or not fits:
            text = ", ".join("?" if size is None else str(size) for size in shape)
            raise BadRequest(f"{label}: input '{name}' is {array}, and the model takes {dtype}[{text}]")


def _name(entry: str) -> str:
    name = entry.removesuffix(_SUFFIX)
    if name == entry or not name or not name.isprintable():
        raise BadArchive(f"entry {entry[:80]!a} is not an array with a name")
    return name


def _array(entry: str, content: bytes) -> InputArray:
    """Raises BadArchive for a header that NumPy does not write, and for bytes that do not fit it."""
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
    data = content[begin + length :]
    if len(shape) > _MOST_DIMENSIONS or math.prod(shape) * kind[1] != len(data):
        raise BadArchive(f"entry '{entry}' has {len(data)} bytes, and its shape {list(shape)[:8]} has not")
    return InputArray(kind[0], shape, data)
