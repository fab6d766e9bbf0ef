"""The options of TVM's lowering that a schedule needs."""

from __future__ import annotations

import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule

from fractune_workers.children.building.lowering import lowering_context

STORAGE = "tirx.disable_storage_rewrite"


def staged(sums: str) -> tvm.IRModule:
    """Tiles of float16 operands, and of sums in the type `sums`, in dynamic shared memory."""
    data = te.placeholder((64, 64), "float16", "data")
    k = te.reduce_axis((0, 64), "k")
    mod = tvm.IRModule(
        {"main": te.create_prim_func([data, te.compute((64,), lambda i: te.sum(data[i, k].astype(sums), k), "c")])}
    )
    sch = Schedule(mod)
    sch.cache_read("c", 0, "shared.dyn")
    sch.cache_write("c", 0, "shared.dyn")
    return sch.mod


@pytest.mark.parametrize(("sums", "apart"), [("float32", True), ("float16", False)])
def test_tiles_of_two_types_are_kept_apart_and_the_rest_stays(sums: str, *, apart: bool) -> None:
    with tvm.transform.PassContext(opt_level=3, config={"tirx.disable_vectorize": True}):
        context = lowering_context(staged(sums))
    assert context.opt_level == 3
    assert dict(context.config) == {"tirx.disable_vectorize": True, **({STORAGE: True} if apart else {})}
