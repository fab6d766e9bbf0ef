"""Variants of a bundle: their common kernels are compiled once, and the memory between them is planned."""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, te
from tvm.tirx import PrimFunc

from fractune_workers.children.building.cuda import scheduled_by_default
from fractune_workers.children.compiling import variants
from fractune_workers.children.compiling.variants import compile_variants, with_planned_workspaces
from fractune_workers.children.importing.passes import direct_hash, extract, prepare
from fractune_workers.children.searching.operator_search import OperatorSearch
from fractune_workers.children.tvm_api.compiled import kernel_digest, object_of, ready
from fractune_workers.children.tvm_api.cuda_target import compiler_here
from fractune_workers.children.tvm_api.target import parse_target
from fractune_workers.children.tvm_api.traces import Workload, read_trace, read_workload
from tests.support.hardware.cubins import cubins_in
from tests.support.models_in_common import MODELS, shared_model
from tests.support.unoptimized import machine_of
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


SHAPE = (1, 4, 8, 8)


def normalized(target: Any, *, scheduled: bool) -> tvm.IRModule:
    """Two norms of a batch, which TVM computes by several kernels each, up to the planning of memory."""
    one = relax.const(np.full(4, 2, "float32"))
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(SHAPE, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            first = builder.emit(relax.op.nn.batch_norm(x, one, one, one, one, axis=1))
            second = builder.emit(relax.op.nn.batch_norm(first[0], one, one, one, one, axis=1))
            out = builder.emit_output(second[0])
        builder.emit_func_output(out)
    with target:
        mod = relax.transform.LegalizeOps()(builder.get())
        mod = scheduled_by_default(mod, target) if scheduled else mod
        return tvm.transform.Sequential(
            [relax.transform.ToNonDataflow(), relax.transform.RemovePurityChecking(), relax.transform.CallTIRRewrite()]
        )(mod)


def test_no_kernel_takes_memory_from_the_pool_of_its_thread() -> None:
    target = parse_target("cuda:sm_90", 1)
    before = normalized(target, scheduled=True)
    after = with_planned_workspaces(before, target)
    (kernels,) = (each for each in before.functions.values() if isinstance(each, PrimFunc))
    (grown,) = (each for each in after.functions.values() if isinstance(each, PrimFunc))
    between = len(grown.params) - len(kernels.params)
    assert between > 0
    assert [each.scope() for each in grown.body.block.alloc_buffers if each.scope() == "global"] == []
    calls = [binding.value for block in after["main"].body.blocks for binding in block.bindings]
    calls = [each for each in calls if isinstance(each, relax.Call) and isinstance(each.op, tvm.ir.GlobalVar)]
    assert [len(each.args) for each in calls] == [len(grown.params)] * 2


@pytest.mark.parametrize("is_planned", [False, True])
def test_a_model_computes_the_same_with_that_memory(*, is_planned: bool) -> None:
    target = parse_target("", 1)
    mod = normalized(target, scheduled=False)
    mod = with_planned_workspaces(mod, target) if is_planned else mod
    passes = [
        relax.transform.StaticPlanBlockMemory(),
        relax.transform.LowerAllocTensor(),
        relax.transform.KillAfterLastUse(),
        relax.transform.LowerRuntimeBuiltin(),
        relax.transform.VMShapeLower(),
        relax.transform.AttachGlobalSymbol(),
    ]
    with target:
        machine = machine_of(tvm.transform.Sequential(passes)(mod), target, None)
    x = np.random.default_rng(0).uniform(0, 1, SHAPE).astype("float32")
    output = machine["main"](tvm.runtime.tensor(x))

    def batch_norm(values: Any) -> Any:
        axes = (0, 2, 3)
        deviation = np.sqrt(values.var(axes, keepdims=True) + 1e-5)
        return (values - values.mean(axes, keepdims=True)) / deviation * 2 + 2

    np.testing.assert_allclose(output.numpy(), batch_norm(batch_norm(x)), rtol=1e-4)


SHARED = 5
"""operators that all models have"""
CANDIDATES = 2
PAIRS = list(permutations(range(len(MODELS)), 2))
QUICK = [(0, 5), (6, 3)]
"""of any number of operators before, from both halves, which clamp otherwise"""


@cache
def prepared(number: int) -> Any:
    return prepare(shared_model(MODELS[number]), TARGET)


@cache
def workloads(number: int) -> dict[str, Workload]:
    """By workload hash, those that the other models share."""
    found = {each.workload_hash: read_workload(each.workload_json) for each in extract(prepared(number), TARGET)}
    assert not number or len(found.keys() & workloads(0).keys()) == SHARED
    return {name: found[name] for name in found if not number or name in workloads(0)}


@cache
def tuned(number: int) -> dict[str, list[str]]:
    """Traces by workload hash, of a search for the model."""
    searches = {name: OperatorSearch(each, TARGET, 1, 1) for name, each in workloads(number).items()}
    return {name: [item["trace"] for item in each.propose(CANDIDATES, str)] for name, each in searches.items()}


@pytest.mark.parametrize(
    ("one", "other"), [pair if pair in QUICK else pytest.param(*pair, marks=pytest.mark.long) for pair in PAIRS]
)
def test_a_trace_makes_the_same_schedule_in_both_models(one: int, other: int) -> None:
    for name, traces in tuned(one).items():
        for trace in traces:
            made, here = (read_trace(trace, workloads(number)[name]).mod for number in (one, other))
            assert direct_hash(made) == direct_hash(here)


def test_models_are_compiled_with_the_schedules_of_others() -> None:
    """One from each half, in both orders."""
    for one, other in ((0, 6), (6, 0)):
        schedules = {workloads(other)[name]: traces[-1] for name, traces in tuned(one).items()}
        assert compile_variants([prepared(other)], TARGET, [schedules], {})


@pytest.mark.long
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_each_model_is_compiled_with_the_schedules_of_each_other(one: int, other: int) -> None:
    schedules = {workloads(other)[name]: traces[-1] for name, traces in tuned(one).items()}
    assert compile_variants([prepared(other)], TARGET, [schedules], {})
