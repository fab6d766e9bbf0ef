"""Parallel loops in the mode of the thread that launches them, on all threads of its pool."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm

from fractune_core.host.denormals import with_denormals
from fractune_workers.children.tvm_api.artifacts import load_objects
from fractune_workers.children.tvm_api.parallel_modes import build_library
from fractune_workers.children.tvm_api.serving_thread import serving_thread
from fractune_workers.children.tvm_api.target import parse_target
from tests.support.denormals import FLUSHING, SIZE, probe

TARGET = parse_target("llvm -mcpu=x86-64-v3", 1)
NORMAL, FLUSHED = 0x1F80, 0x1F80 | FLUSHING


def modes(build: Callable[..., Any]) -> Callable[[], set[int]]:
    """The modes of a pool's threads, read in a parallel loop that `build` has built."""
    main = load_objects([probe(TARGET, build=build)])["main"]

    def read() -> set[int]:
        found = tvm.runtime.tensor(np.zeros(SIZE, np.uint32))
        main(found)
        return {int(each) & ~0x3F for each in found.numpy()}

    return read


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")  # noqa: PLR2004  two
def test_a_pool_has_the_mode_of_its_launching_thread_within_a_loop_and_its_own_afterwards() -> None:
    own, kept = modes(build_library), modes(tvm.tirx.build)
    with serving_thread(2, sorted(os.sched_getaffinity(0))[:2]) as run:
        assert run(kept) == {NORMAL}
        assert run(with_denormals(own, kept=False)) == {FLUSHED}
        assert run(with_denormals(kept, kept=False)) == {NORMAL, FLUSHED}  # TVM's own code: one thread of the two
        assert run(own) == {NORMAL}


def test_code_for_another_processor_has_no_such_instruction() -> None:
    arm = parse_target("llvm -mtriple=aarch64-linux-gnu", 1)
    mod = tvm.IRModule({"main": tvm.script.from_source(_DOUBLED)})
    assert "mxcsr" in str(build_library(mod, TARGET).inspect_source("ll"))
    assert "mxcsr" not in str(build_library(mod, arm).inspect_source("ll"))


_DOUBLED = """
@T.prim_func(s_tir=True)
def main(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    T.func_attr({"global_symbol": "main"})
    for at in T.parallel(64):
        y[at] = x[at] * T.float32(2)
"""
