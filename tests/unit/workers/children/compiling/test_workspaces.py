"""Memory between the kernels of one operator is planned with the model's tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.tirx import PrimFunc

from fractune_workers.children.building.cuda import scheduled_by_default
from fractune_workers.children.compiling.variants import with_planned_workspaces
from fractune_workers.children.tvm_api.target import parse_target
from tests.support.unoptimized import machine_of

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
