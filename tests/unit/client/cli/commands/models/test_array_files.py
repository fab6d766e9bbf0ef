"""Arrays in .npz files: read by name, and written by the names of a model's outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fractune.cli.commands.models.run import array_names, read_inputs, write_arrays
from fractune_core.errors import BadRequest
from fractune_runtime.tvm_runtime.tensors import TensorSpec


def test_arrays_are_read_by_name_and_objects_never(tmp_path: Path) -> None:
    np.savez(tmp_path / "good.npz", x=np.arange(3))
    assert read_inputs(tmp_path / "good.npz")["x"].tolist() == [0, 1, 2]
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object))
    np.save(tmp_path / "single.npy", np.arange(3))
    (tmp_path / "text.npz").write_text("no arrays")
    whole = (tmp_path / "good.npz").read_bytes()
    (tmp_path / "torn.npz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "damaged.npz").write_bytes(whole[:-200] + b"x" + whole[-199:])
    for name in ("objects.npz", "single.npy", "text.npz", "torn.npz", "damaged.npz", "missing.npz"):
        with pytest.raises(BadRequest, match=f"{name}: .*numpy.savez"):
            read_inputs(tmp_path / name)


def named(*names: str) -> list[str]:
    return array_names([TensorSpec(name, "float32", (2,)) for name in names])


@pytest.mark.parametrize("names", [("y",), ("file", "output1", "allow_pickle"), ("head/Add_output_0", "a/b:0", "é.1")])
def test_arrays_are_written_by_the_names_of_the_outputs(names: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "out.npz"
    arrays = {name: np.full(2, number, "float32") for number, name in enumerate(named(*names))}
    with path.open("wb") as file:
        write_arrays(file, arrays)
    read = read_inputs(path)
    assert list(read) == list(names)
    assert [array.tolist() for array in read.values()] == [[number] * 2 for number in range(len(names))]


def test_a_name_that_leads_elsewhere_leaves_all_outputs_their_numbers() -> None:
    elsewhere = ("", "/", "/work/x", "../x", "a/../../x", "//x", "a//b", ".", "a\0b", "a\nb", "..\\x", "x" * 201)
    for name in (*elsewhere, "y.npy", "a/"):
        assert named("y", name) == ["output0", "output1"]
