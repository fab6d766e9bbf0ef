"""PyTorch, where it is installed, is not imported by children; here a package of its name that tells on who does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tvm_ffi
from tvm_ffi import registry

from fractune_workers.child import Child
from fractune_workers.children.tvm_api.keep_out import functions_listed_once, keep_torch_out, let_torch_in
from tests.support.paths import REPOSITORY

CHILDREN = ("searching", "compiling")
"""the latter imports all that the one that builds does"""


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that an import of `torch` writes, in a process that finds this one first."""
    package, note = tmp_path / "packages" / "torch", tmp_path / "told"
    package.mkdir(parents=True)
    telling = f"from pathlib import Path\nPath({str(note)!r}).write_text('imported')\nraise ImportError('not me')\n"
    (package / "__init__.py").write_text(telling)
    path = [str(package.parent), str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    return note


@pytest.mark.parametrize("name", CHILDREN)
def test_a_child_that_loads_tvm_does_not_import_it(told: Path, name: str) -> None:
    child = Child(f"fractune_workers.children.{name}.child", ["1"])
    try:
        child.ensure()
        assert "libtvm_compiler" in Path(f"/proc/{child.pid}/maps").read_text()
    finally:
        child.stop()
    assert not told.exists()


_LOADED = """
import sys
from fractune_workers.children.tvm_api.keep_out import *
keep_shape_inference_out()
with functions_listed_once(), backends_kept_out():
    import fractune_workers.children.importing.onnx_models.onnx_model
import tvm
from fractune_workers.children.tvm_api.target import parse_target
assert parse_target("llvm -mcpu=x86-64-v3", 1).kind.name == "llvm"
unused = ("asyncio", "cuda.bindings.driver", "sympy", "tvm.backend.cuda.ptx", "tvm.backend.metal")
loaded = [name for name in unused if name in sys.modules]
assert tvm.get_global_func("tvm.contrib.sort.argsort")
assert parse_target("cuda:sm_90", 1).attrs["arch"] == "sm_90"
assert "tirx.ptx.ld" in tvm.ir.Op.list_op_names()
from cuda.bindings import driver
from tests.support.onnx_models import helper, np, onnx_model, run_imported
given = {"x": np.ones(3, "float32")}
print(loaded, tvm.runtime.disco, run_imported(onnx_model([helper.make_node("Add", ["x", "x"], ["y"])], given), given))
"""


def test_what_no_child_needs_is_left_out_and_backends_are_loaded_when_a_target_asks_for_them() -> None:
    command = [sys.executable, "-c", _LOADED]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert (ended.stdout, ended.stderr) == ("[] None [array([2., 2., 2.], dtype=float32)]\n", "")


def test_it_is_let_in_again(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(str(told.parent / "packages"))
    keep_torch_out()
    with pytest.raises(ImportError, match="halted"):
        __import__("torch")
    assert not told.exists()
    let_torch_in()
    with pytest.raises(ImportError, match="not me"):
        __import__("torch")
    assert told.exists()


def test_functions_are_listed_again_only_if_there_are_new_ones() -> None:
    whole = registry.list_global_func_names()
    with functions_listed_once():
        found = registry.list_global_func_names()
        assert found == whole
        assert registry.list_global_func_names() is found
        tvm_ffi.register_global_func("tests.new", len)
        assert "tests.new" in registry.list_global_func_names()
    tvm_ffi.registry.remove_global_func("tests.new")
    assert registry.list_global_func_names() == whole
