"""Parts of TIR, and extremes of floating-point numbers that begin at an infinity, as TVM's schedules know them.

TVM splits a reduction (`rfactor`) only if its registry has the very identity and expression of the reduction. A vector
unit's maximum of two numbers is the second one if either is NaN. So one that has the new number first ignores NaN.
"""

import ctypes
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

LIMITS = {tirx.Max: -math.inf, tirx.Min: math.inf}
"""by the reduction: where it begins"""


def parts_of(node: Any, kind: type) -> list[Any]:
    """The expressions, statements or variables of a kind in a node of TIR or Relax, each behind those inside it."""
    found: list[Any] = []
    tvm_ffi.structural_walk(node, (kind, found.append))
    return found


def limit_of(reduction: type, dtype: str) -> Any:
    """The number that a maximum or minimum of this type begins with."""
    return tirx.FloatImm(dtype, LIMITS[reduction])


@lru_cache(maxsize=1)
def register_reducers() -> None:
    """Make them known to TVM, in every process that schedules."""
    for reduction in LIMITS:
        _register(reduction)


def _register(reduction: type) -> None:
    def identity(numbers: Sequence[Any]) -> list[Any]:
        dtype = str(numbers[0].ty.dtype)
        return [limit_of(reduction, dtype) if "float" in dtype else numbers[0]]

    def plain(result: Sequence[Any], number: Sequence[Any]) -> list[Any]:
        return [reduction(result[0], number[0])]

    def ignoring(result: Sequence[Any], number: Sequence[Any]) -> list[Any]:
        return [reduction(number[0], result[0])]

    for combined in (plain, ignoring):
        functions = [tvm_ffi.convert(each) for each in (combined, identity)]
        for each in functions:
            # TVM's registry ends after Python's interpreter: it must not be the last to let go of a Python function.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))
        tvm.get_global_func("s_tir.schedule.RegisterReducer")(1, *functions)
