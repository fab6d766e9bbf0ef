"""Products of single numbers, as of two scales, take their constant as an argument: so layers share an operator.

TVM would write a constant of no axes into the code, and each layer would have an operator of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import topi

from fractune_workers.children.rewriting.expressions import has_fixed_shapes, is_constant, shape_of


def _multiply(builder: Any, call: Any) -> Any:
    if has_fixed_shapes(call) and shape_of(call) == () and any(map(is_constant, call.args)):
        return builder.call_te(topi.multiply, *call.args, primfunc_name_hint="multiply")
    return tvm.ir.Op.get("relax.multiply").get_attr("FLegalize")(builder, call)


LEGALIZATIONS: dict[str, Callable[[Any, Any], Any]] = {"relax.multiply": _multiply}
"""for `relax.transform.LegalizeOps`, on CPUs"""
