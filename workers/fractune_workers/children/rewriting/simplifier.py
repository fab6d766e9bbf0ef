"""The pass that simplifies a model: it asks a rule for each operator, and knows what each value was computed from."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy.typing as npt
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from fractune_workers.children.rewriting.expressions import bound_call, has_fixed_shapes, numbers_of, operator_of

Array = npt.NDArray[Any]
Rule = Callable[["Simplifier", Any], Any | None]
"""the expression in the place of a call; None where the call stays"""


@mutator
class Simplifier(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, rules: Mapping[str, Sequence[Rule]], used_once: set[Any]) -> None:
        super().__init__(mod)
        self._rules = rules
        self._used_once = used_once
        self._own: dict[Any, Any] = {}
        """by the new variable of a value that is used once: the value"""

    def visit_var_binding_(self, binding: Any) -> None:
        super().visit_var_binding_(binding)
        if binding.var in self._used_once:
            var = self.visit_expr(binding.var)
            self._own[var] = self.builder_.lookup_binding(var)

    def visit_call_(self, call: Any) -> Any:
        visited = super().visit_call_(call)
        if not has_fixed_shapes(call):
            return visited
        made = (rule(self, visited) for rule in self._rules.get(operator_of(visited), ()))
        found = (self.builder_.normalize(expr) for expr in made if expr is not None)
        # A constant with more axes than the data adds axes to a result; most rules do not look for one.
        return next((expr for expr in found if tvm_ffi.structural_equal(expr.ty, visited.ty)), visited)

    def visit_tuple_getitem_(self, op: Any) -> Any:
        visited = super().visit_tuple_getitem_(op)
        fields = self.value(visited.tuple_value)
        return fields[visited.index] if isinstance(fields, relax.Tuple) else visited

    # For rules

    def emit(self, value: Any) -> Any:
        """A variable with the value."""
        return self.builder_.emit(value)

    def value(self, expr: Any) -> Any:
        """The value of a variable; any other expression unchanged."""
        return self.builder_.lookup_binding(expr) if isinstance(expr, relax.Var) else expr

    def numbers(self, expr: Any) -> Array | None:
        """Of a constant; None for anything else."""
        return numbers_of(self.builder_, expr)

    def number(self, expr: Any) -> float | None:
        """The only number of a constant; None for anything else."""
        numbers = self.numbers(expr)
        return float(numbers.ravel()[0]) if numbers is not None and numbers.size == 1 else None

    def call(self, expr: Any, name: str) -> Any | None:
        """The call of the operator `name` that a variable is bound to; None for any other expression."""
        return bound_call(self.builder_, expr, name)

    def own(self, expr: Any, name: str) -> Any | None:
        """The call of the operator `name` that an expression stands for, if nothing else uses its result."""
        call = self._own.get(expr) if isinstance(expr, relax.Var) else None
        return call if operator_of(call) == name else None
