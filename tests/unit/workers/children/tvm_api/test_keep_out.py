"""PyTorch, where it is installed, is not imported by children; here a package of its name that tells on who does."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fractune_workers.child import Child
from fractune_workers.children.tvm_api.keep_out import keep_torch_out, let_torch_in
from tests.support.paths import REPOSITORY

CHILDREN = ("searching", "building", "compiling")


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
