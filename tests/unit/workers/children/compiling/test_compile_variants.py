"""Variants of a bundle: their common kernels are compiled once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, te

from fractune_workers.children.compiling import variants
from fractune_workers.children.compiling.variants import compile_variants
from fractune_workers.children.tvm_api.compiled import kernel_digest, object_of, ready
from fractune_workers.children.tvm_api.cuda_target import compiler_here
from fractune_workers.children.tvm_api.target import parse_target
from tests.support.hardware.cubins import cubins_in
from tests.unit.workers.children.layouts.networks import loaded

TARGET = parse_target("llvm -mcpu=x86-64-v3", 1)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Names of the functions in each part that was compiled, without forks."""
    names: list[list[str]] = []

    def in_this_process(work: Sequence[Callable[[], Any]]) -> list[Any]:
        return [each() for each in work]

    def compile_noted(part: tvm.IRModule, target: Any) -> dict[str, bytes]:
        names.append([str(var.name_hint) for var in part.get_global_vars()])
        return compile_part(part, target)

    compile_part = variants._compile
    monkeypatch.setattr(variants, "side_by_side", in_this_process)
    monkeypatch.setattr(variants, "_compile", compile_noted)
    return names


def multiplied(*factors: int) -> tvm.IRModule:
    """A model that multiplies its input by one factor after the other, each in a kernel `times{factor}`."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for factor in factors:
                value = builder.emit_te(product, value, float(factor), primfunc_name_hint=f"times{factor}")
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    return builder.get()


def product(values: Any, factor: float) -> Any:
    return te.compute(values.shape, lambda at: values[at] * te.const(factor, "float32"))


def output(objects: dict[str, bytes]) -> Any:
    return loaded(objects).held([tvm.runtime.tensor(np.arange(4, dtype="float32"))])[0]


def kernels(compiled: list[list[str]]) -> list[str]:
    return sorted(name for names in compiled for name in names if name.startswith("times"))


def test_a_kernel_of_two_variants_is_compiled_once(compiled: list[list[str]]) -> None:
    one, other = compile_variants([multiplied(2, 3), multiplied(3, 5)], TARGET, [{}, {}], {})
    assert kernels(compiled) == ["times2", "times3", "times5"]
    np.testing.assert_array_equal(output(one), [0, 6, 12, 18])
    np.testing.assert_array_equal(output(other), [0, 15, 30, 45])


def test_kernels_of_the_bundle_before_are_not_compiled_again_and_no_others_are_kept(compiled: list[list[str]]) -> None:
    known: dict[Any, dict[str, bytes]] = {}
    compile_variants([multiplied(2), multiplied(3)], TARGET, [{}, {}], known)
    compiled.clear()
    (found,) = compile_variants([multiplied(3, 5)], TARGET, [{}], known)
    assert kernels(compiled) == ["times5"]
    np.testing.assert_array_equal(output(found), [0, 15, 30, 45])
    compiled.clear()
    compile_variants([multiplied(2)], TARGET, [{}], known)
    assert kernels(compiled) == ["times2"]
    assert len(known) == len(["main", "main_plan", "times2"])


def test_kernels_of_one_name_may_differ(compiled: list[list[str]]) -> None:
    other = multiplied(2)
    other["times2"] = multiplied(3)["times3"].with_attr("global_symbol", "times2")
    same, changed = compile_variants([multiplied(2), other], TARGET, [{}, {}], {})
    assert kernels(compiled) == ["times2", "times2"]
    np.testing.assert_array_equal(output(same), [0, 2, 4, 6])
    np.testing.assert_array_equal(output(changed), [0, 3, 6, 9])


def test_a_kernel_that_was_measured_serves_under_its_name_in_the_model(compiled: list[list[str]]) -> None:
    measured = ready(tvm.IRModule({"main": multiplied(2)["times2"].with_attr("global_symbol", "main")}), TARGET)
    built = {kernel_digest(measured): object_of(measured, TARGET)}
    (found,) = compile_variants([multiplied(2, 3)], TARGET, [{}], {}, built)
    assert kernels(compiled) == ["times3"]
    np.testing.assert_array_equal(output(found), [0, 6, 12, 18])


@pytest.mark.skipif(compiler_here() is None, reason="no CUDA compiler here; `make setup` installs NVRTC")
def test_kernels_for_a_gpu_are_compiled_once_too(compiled: list[list[str]]) -> None:
    target = parse_target("cuda:sm_90", 1)
    known: dict[Any, dict[str, bytes]] = {}
    one, other = compile_variants([multiplied(2, 3), multiplied(3, 5)], target, [{}, {}], known)
    assert kernels(compiled) == ["times2", "times3", "times5"]
    assert [len(cubins_in(each["device.o"])) for each in (one, other)] == [2, 2]
    compiled.clear()
    compile_variants([multiplied(3, 7)], target, [{}], known)
    assert kernels(compiled) == ["times7"]
