"""The peer of the benchmarks starts as our own processes do: without PyTorch, also where it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from benchmarks.support import stock
from benchmarks.support.models import Model

_IMPORTED = "torch was imported"
_FFI_IN_TWO_PROCESSES = """
import subprocess, sys
import tvm_ffi
sys.stdout.flush()
subprocess.run([sys.executable, "-c", "import tvm_ffi"], check=True)
"""


def put_torch(folder: Path) -> None:
    """A package `torch` that prints when it is imported, as installed as any other."""
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text(f"print({_IMPORTED!r})\nraise ImportError\n")


class Seen(Exception):
    """Stock TVM would have started."""


def imports_of_torch(env: Mapping[str, str]) -> int:
    """How often PyTorch is imported by a process with TVM's FFI, and one that it starts."""
    command = [sys.executable, "-c", _FFI_IN_TWO_PROCESSES]
    ended = subprocess.run(command, env={**os.environ, **env}, stdout=subprocess.PIPE, text=True, check=True)
    return ended.stdout.splitlines().count(_IMPORTED)


def test_stock_tvm_never_imports_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []

    def instead_of_stock_tvm(_command: Sequence[str], env: Mapping[str, str]) -> NoReturn:
        found.append(imports_of_torch(env))
        raise Seen

    put_torch(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setattr(stock, "run_timed", instead_of_stock_tvm)
    assert imports_of_torch({}) >= 2  # the FFI does it by itself
    with pytest.raises(Seen):
        stock.tune(Model("m", tmp_path / "m.onnx"), "cpu:1", "", 1, 1, 1)
    assert found == [0]
