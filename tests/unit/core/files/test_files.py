"""Files that replace others, that were checked, and that hold scripts."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fractune_core.errors import StateUnusable
from fractune_core.files.compared import Checked
from fractune_core.files.model_files import is_script
from fractune_core.files.new_bundle import replacing_file


def replace_by(path: Path, content: bytes) -> None:
    with replacing_file(path) as file:
        file.write(content)


def test_two_threads_replace_a_file_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with ThreadPoolExecutor() as pool, replacing_file(path) as file:
        file.write(b"outer")
        pool.submit(replace_by, path, b"inner, and longer").result()
        assert path.read_bytes() == b"inner, and longer"
    assert path.read_bytes() == b"outer"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_made_and_an_impossible_one_is_named(tmp_path: Path) -> None:
    replace_by(tmp_path / "new" / "folder" / "file", b"content")
    assert (tmp_path / "new" / "folder" / "file").read_bytes() == b"content"
    with pytest.raises(StateUnusable, match=r"file/below: cannot be written \(Not a directory\); check the folder"):
        replace_by(tmp_path / "new" / "folder" / "file" / "below", b"")


@pytest.mark.parametrize(("difference", "explained"), [(0.12, True), (1e-3, False), (0.0, False)])
def test_a_difference_beyond_rounding_is_explained(*, difference: float, explained: bool) -> None:
    line = Checked("ONNX Runtime", {"random": 1e-6, "zeros": difference}).line
    assert ("right computations of this model differ" in line) == explained


@pytest.mark.parametrize(
    "start",
    [
        b"@I.ir_module\nclass Module:\n    pass\n",
        b"\n# from tvm.script import tirx as T\n@T.prim_func\ndef main():\n    pass\n",
        b"\xef\xbb\xbffrom tvm.script import relax as R\n",
        b"# caf\xe9, in Latin-1\n@R.function\ndef main(): pass",
    ],
)
def test_scripts_are_known(start: bytes) -> None:
    assert is_script(start)


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"what is this",
        b' {"nodes": [{"type": "ffi.String", "data": "from tvm.script ir_module"}]}',
        b"version https://git-lfs.github.com/spec/v1\noid tvm.script\n",
        b"\x08\x08\x12\x07pytorch:\x80ir_module prim_func",
        b"PK\x03\x04model/ir_module.py",
    ],
)
def test_other_files_are_not(start: bytes) -> None:
    assert not is_script(start)
