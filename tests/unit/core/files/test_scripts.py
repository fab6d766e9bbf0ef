"""TVMScript is known by its words, and nothing else is taken for it."""

from __future__ import annotations

import pytest

from fractune_core.files.scripts import is_script


@pytest.mark.parametrize(
    "start",
    [
        b"@I.ir_module\nclass Module:\n    pass\n",
        b"\n# from tvm.script import tirx as T\n@T.prim_func\ndef main():\n    pass\n",
        b"\xef\xbb\xbffrom tvm.script import relax as R\n",
        b"# caf\xe9, which is no UTF-8\n@R.function\ndef main(): pass",
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
