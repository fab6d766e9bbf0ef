"""The options of TVM's lowering that a schedule needs."""

from __future__ import annotations

import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule

from fractune_workers.children.building.cuda import lowering_context, with_fresh_reads
from fractune_workers.children.tvm_api.functions import ASYNC_COPIES

STORAGE, ASYNC = "tirx.disable_storage_rewrite", "tirx.use_async_copy"


def staged(sums: str, annotation: str = "") -> tvm.IRModule:
    """Tiles of float16 operands, and of sums in the type `sums`, in dynamic shared memory."""
    data = te.placeholder((64, 64), "float16", "data")
    k = te.reduce_axis((0, 64), "k")
    rows = te.compute((64,), lambda i: te.sum(data[i, k].astype(sums), k), "rows")
    sch = Schedule(tvm.IRModule({"main": te.create_prim_func([data, rows])}))
    copy = sch.cache_read("rows", 0, "shared.dyn")
    sch.cache_write("rows", 0, "shared.dyn")
    if annotation:
        sch.annotate(sch.get_loops(copy)[0], annotation, 1)
    return sch.mod


@pytest.mark.parametrize(
    ("mod", "needed"),
    [
        pytest.param(staged("float16"), [], id="none"),
        pytest.param(staged("float32"), [STORAGE], id="tiles of two types are kept apart"),
        pytest.param(staged("float16", ASYNC_COPIES), [ASYNC], id="copies are asynchronous"),
        pytest.param(
            staged("float16", "software_pipeline_async_stages"), [], id="a pipeline alone copies by registers"
        ),
    ],
)
def test_options_follow_from_the_schedule_and_others_stay(mod: tvm.IRModule, needed: list[str]) -> None:
    with tvm.transform.PassContext(opt_level=3, config={"tirx.disable_vectorize": True}):
        context = lowering_context(mod)
    assert context.opt_level == 3
    assert dict(context.config) == {"tirx.disable_vectorize": True, **dict.fromkeys(needed, True)}


def test_a_vector_is_read_again_behind_a_barrier() -> None:
    """TVM's generator names a read of memory once; `test_executed_kernels.py` runs such kernels."""
    read = "  float2 v_1 = *(float2*)(((float*)tile) + (((int)threadIdx.x) * 2));"
    again = read.replace("float2 v_1", "v_1", 1)
    use, barrier, other = "  one.x = (half)(v_1.x);", "  __syncthreads();", "  two.x = v_10.x;"
    assert with_fresh_reads(f"{read}\n{use}\n") == f"{read}\n{use}\n"
    given = [read, use, barrier, other, use, read, use, "}", use]
    assert with_fresh_reads("\n".join(given)).splitlines() == [*given[:4], again, *given[4:]]
