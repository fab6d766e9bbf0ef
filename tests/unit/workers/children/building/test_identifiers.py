"""Names that are none in C, as models have them, become identifiers in code for a GPU."""

from __future__ import annotations

import re

import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule

from fractune_workers.children.building.cuda import build_archive, with_identifiers
from fractune_workers.children.tvm_api.keep_out import stay_off_gpus
from fractune_workers.children.tvm_api.target import parse_target


class _Recorder:
    """In place of a compiler: it keeps the source."""

    name, archs = "recorder", (90,)

    def __init__(self) -> None:
        self.source = ""

    def compile(self, source: str, arch: str, *, fast_math: bool) -> bytes:
        del arch, fast_math
        self.source = source
        return b"\x7fELF"


def _bound(*names: str) -> tvm.IRModule:
    """The sum of inputs of these names, with threads."""
    inputs = [te.placeholder((64,), name=name) for name in names]
    total = te.compute((64,), lambda i: sum((each[i] for each in inputs[1:]), inputs[0][i]), name="total")
    sch = Schedule(tvm.IRModule({"main": te.create_prim_func([*inputs, total])}))
    (loop,) = sch.get_loops(sch.get_sblock("total"))
    block, thread = sch.split(loop, [None, 32])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return sch.mod


def test_the_source_has_identifiers_that_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "TVM_COMPILE_FORCE_FALLBACK"):
        monkeypatch.setenv(name, "")  # what is set below is gone after the test
    stay_off_gpus()
    recorder = _Recorder()
    build_archive(_bound("gpu_0/data:0", "gpu_0-data:0", "1", "größe"), parse_target("cuda:sm_90", 1), recorder)
    signature = re.search(r"\(([^)]*)\);", recorder.source)
    assert signature is not None
    pointers = re.findall(r"__restrict__ ([^,]+)", signature[1])
    assert len(set(pointers)) == len(pointers) == 5
    assert all(re.fullmatch(r"[A-Za-z_]\w*", pointer, re.ASCII) for pointer in pointers), pointers


def test_a_module_with_such_names_only_stays_as_it_is() -> None:
    mod = _bound("left", "right")
    assert with_identifiers(mod)["main"].same_as(mod["main"])
