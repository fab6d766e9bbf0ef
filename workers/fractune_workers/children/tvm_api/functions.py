"""The Relax functions of a module in the order of their calls."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

ASYNC_COPIES = "fractune.async_copies"
"""of a loop: its copies into shared memory are asynchronous. Without it TVM's pipelines copy through registers."""


def called_functions(mod: tvm.IRModule) -> list[Any]:
    """The variables of `main` and of all Relax functions that it calls, each behind those that it calls itself."""
    functions = {name: function for name, function in mod.functions.items() if isinstance(function, relax.Function)}
    found: dict[Any, None] = {}

    def visit(name: Any) -> None:
        called: list[Any] = []

        def note(expr: Any) -> None:
            if isinstance(expr, tvm.ir.GlobalVar) and expr in functions:
                called.append(expr)

        relax.analysis.post_order_visit(functions[name], note)
        for each in called:
            if each not in found:
                visit(each)
        found[name] = None

    visit(mod.get_global_var("main"))
    return list(found)
