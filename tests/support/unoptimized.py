"""Code that is compiled quickly: LLVM does not optimize what runs once."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from unittest import mock

import numpy.typing as npt
import tvm
from tvm import relax

from fractune_workers.children.tvm_api import compiled
from fractune_workers.children.tvm_api.artifacts import load_objects
from fractune_workers.children.tvm_api.compiled import build_library, written

Array = npt.NDArray[Any]


def unoptimized(target: tvm.target.Target) -> tvm.target.Target:
    """The same processor, at LLVM's level 0. The passes of TVM, and so its code for LLVM, stay as they are."""
    return tvm.target.Target({**dict(target.attrs), "kind": target.kind.name, "opt-level": 0})


@contextmanager
def without_optimization() -> Iterator[None]:
    """Kernels for this processor that are compiled meanwhile, also in forks, take two thirds less of its time.

    LLVM would leave out the start of each of them, which is empty and has the same name in all.
    """

    def built(mod: Any, target: Any) -> Any:
        return build_library(mod, unoptimized(target) if target.kind.name == "llvm" else target)

    def without_start(library: Any) -> bytes:
        return written(library).replace(b".init_array", b".none_array")

    with mock.patch.multiple(compiled, build_library=built, written=without_start):
        yield


@lru_cache(maxsize=8)
def machine_of(mod: tvm.IRModule, target: tvm.target.Target, pipeline: str | None = "default") -> relax.VirtualMachine:
    """A Relax module, compiled by TVM's default pipeline and loaded as bundles are. TVM's own loader would have LLVM
    optimize the code all the same.
    """
    executable = relax.build(mod, unoptimized(target), relax_pipeline=pipeline).mod
    objects = [written(library) for library in executable.imports if library.kind == "llvm"]
    executable.clear_imports()
    if objects:
        executable.import_module(load_objects(objects))
    return relax.VirtualMachine(executable, tvm.cpu())


def outputs_of(mod: tvm.IRModule, target: tvm.target.Target, *inputs: Array) -> list[Array]:
    """What `main` of a Relax module returns, one array after the other."""
    return _flat(machine_of(mod, target)["main"](*map(tvm.runtime.tensor, inputs)))


def _flat(found: Any) -> list[Array]:
    return [found.numpy()] if hasattr(found, "numpy") else [each for one in found for each in _flat(one)]


def run_kernel(mod: tvm.IRModule, target: tvm.target.Target, *args: Array) -> Array:
    """The last argument as the TIR function `main` leaves it."""
    tensors = [tvm.runtime.tensor(each) for each in args]
    load_objects([written(tvm.compile(mod, unoptimized(target)).mod)])["main"](*tensors)
    found: Array = tensors[-1].numpy()
    return found
