"""Arrays in .npz files, by the names of inputs and outputs."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from fractune_core.errors import BadRequest

if TYPE_CHECKING:
    from fractune.inference.tvm_runtime.tensors import Array, TensorSpec

_SUFFIX = ".npy"
_LONGEST_NAME = 200


def read_inputs(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file by name. Raises BadRequest for another file, and for a file with Python objects."""
    import numpy as np

    try:
        with path.open("rb") as file:  # NumPy does not close a file that it cannot read
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                raise BadRequest(f"--inputs {path}: one array without a name; write it by numpy.savez(FILE, NAME=...)")
            return {name: loaded[name] for name in loaded.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is not a whole .npz file"
        raise BadRequest(f"--inputs {path}: {why}; write one with numpy.savez(FILE, NAME=array)") from error


def array_names(specs: Sequence[TensorSpec]) -> list[str]:
    """The names of outputs as names of arrays in a file: the model's own if each can name a file in an archive, else
    `output0` and so on.
    """
    names = [spec.name for spec in specs]
    if all(map(_can_name_a_file, names)):
        return names
    return [f"output{number}" for number in range(len(names))]


def write_arrays(file: IO[bytes], arrays: Mapping[str, Array]) -> None:
    """Write an .npz file as `numpy.savez` does, which cannot write an array named `file`. Raises OSError."""
    import numpy as np

    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(name + _SUFFIX, "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)


def _can_name_a_file(name: str) -> bool:
    """Return True if the name stays inside when the archive is unpacked, and is read back unchanged."""
    steps = name.split("/")
    is_plain = name.isprintable() and "\\" not in name and not name.endswith(_SUFFIX)
    return is_plain and 0 < len(name) <= _LONGEST_NAME and all(step not in ("", ".", "..") for step in steps)
