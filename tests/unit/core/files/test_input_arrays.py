"""Files of arrays from strangers: what NumPy writes is read, and nothing else."""

import io
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib import format as npy

from fractune_core.errors import BadRequest
from fractune_core.files import input_arrays
from fractune_core.files.input_arrays import InputFile


def entry(array: Any, **how: Any) -> bytes:
    file = io.BytesIO()
    npy.write_array(file, np.asarray(array), **how)
    return file.getvalue()


def npz(path: Path, *, compression: int = zipfile.ZIP_STORED, **entries: bytes) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(f"{name}.npy", content)
    return path


def with_header(text: str, data: bytes = b"", version: int = 1) -> bytes:
    header = text.encode()
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(header)) + header + data


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array(7, np.int64),
        np.zeros((0, 4), np.uint8),
        np.array([True, False]),
        np.arange(3, dtype=np.float16),
        np.arange(4, dtype=np.float64),
        np.zeros((1, 1, 1, 2), np.int8),
    ],
)
def test_what_numpy_saves_is_read(tmp_path: Path, array: Any) -> None:
    np.savez(tmp_path / "in.npz", **{"images/0": array})
    file = InputFile(tmp_path / "in.npz", "--check-inputs")
    found = file.arrays["images/0"]
    assert (found.dtype, found.shape) == (str(array.dtype), array.shape)
    np.testing.assert_array_equal(np.frombuffer(file.data("images/0"), found.dtype).reshape(found.shape), array)
    file.close()


class Opens:
    """Its pickle opens a file."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return (open, ("/tmp/unpickled", "w"))


HOSTILE: dict[str, tuple[bytes, str]] = {
    "objects": (entry(np.array([Opens()], object), allow_pickle=True), "Python objects are never read"),
    "pickle": (pickle.dumps([1]), "not an array of NumPy"),
    "code": (with_header("{'descr': __import__('os'), 'fortran_order': False, 'shape': (1,), }\n"), "Python objects"),
    "records": (with_header("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }\n"), "Python objects"),
    "text": (entry(np.array(["a"])), "Python objects"),
    "swapped": (entry(np.zeros(2, ">f4")), "Python objects"),
    "columns": (entry(np.asfortranarray(np.zeros((2, 3), np.float32))), "in Fortran's order"),
    "short": (entry(np.zeros(4, np.float32))[:-4], "has 12 bytes of elements"),
    "long": (entry(np.zeros(4, np.float32)) + b"x", "has 17 bytes of elements"),
    "huge": (with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (999999999999, 9), }\n"), "of elements"),
    "deep": (with_header(f"{{'descr': '|b1', 'fortran_order': False, 'shape': ({'1, ' * 40}), }}\n", b"1"), "elements"),
    "header": (with_header(" " * 5000, version=2), "has a header of 5000 bytes"),
    "torn": (b"\x93NUMPY", "not an array of NumPy"),
    "empty": (b"", "not an array of NumPy"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_array_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    content, why = HOSTILE[name]
    with pytest.raises(BadRequest, match=why) as refused:
        InputFile(npz(tmp_path / "in.npz", x=content), "--check-inputs")
    assert str(refused.value).startswith("--check-inputs: ")
    assert not Path("/tmp/unpickled").exists()


def test_a_file_that_is_no_archive_or_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").write_text("x")
    array = entry(np.zeros(64, np.float32))
    for path, why in {
        tmp_path / "missing": "No such file",
        tmp_path: "Is a directory",
        tmp_path / "text": "not a whole zip archive",
        npz(tmp_path / "packed.npz", compression=zipfile.ZIP_DEFLATED, x=array): "is compressed",
        npz(tmp_path / "none.npz"): "has 0 arrays",
    }.items():
        with pytest.raises(BadRequest, match=why):
            InputFile(path, "--check-inputs")
    monkeypatch.setattr(input_arrays, "MOST_BYTES", 300)
    with pytest.raises(BadRequest, match="300 is the limit"):
        InputFile(npz(tmp_path / "large.npz", x=array), "--check-inputs")


def test_a_directory_of_more_than_some_hundred_entries_is_not_parsed(tmp_path: Path) -> None:
    empty: dict[str, Any] = {f"x{number}": b"" for number in range(3000)}
    with pytest.raises(BadRequest, match=r"its central directory has .* is the limit"):
        InputFile(npz(tmp_path / "many.npz", **empty), "--check-inputs")


def test_arrays_that_are_not_the_inputs_are_named(tmp_path: Path) -> None:
    file = InputFile(npz(tmp_path / "in.npz", x=entry(np.zeros((2, 3), np.float32))), "--check-inputs")
    for inputs, why in (
        ([{"name": "y", "dtype": "float32", "shape": [2, 3]}], "no input 'x'; it has y"),
        ([{"name": n, "dtype": "float32", "shape": [2, 3]} for n in "xy"], "the input 'y' is missing"),
        ([{"name": "x", "dtype": "float16", "shape": [2, 3]}], r"'x' is float32\[2, 3\], and .* takes float16\[2, 3\]"),
        ([{"name": "x", "dtype": "float32", "shape": [2, 4]}], r"takes float32\[2, 4\]"),
        ([{"name": "x", "dtype": "float32", "shape": [None, 3, 1]}], r"takes float32\[\?, 3, 1\]"),
    ):
        with pytest.raises(BadRequest, match=why):
            file.check(inputs)
    file.check([{"name": "x", "dtype": "float32", "shape": [None, 3]}])
    file.close()
