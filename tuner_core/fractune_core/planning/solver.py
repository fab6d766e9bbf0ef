"""Integer programs, solved by HiGHS: the one file that knows the solver, which is of the extra `plan`."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fractune_core.errors import FractuneError

TIME_LIMIT_S = 30.0
"""of one solve; the best solution by then is used, and not called optimal"""


@dataclass(frozen=True)
class Constraint:
    """lower <= sum of coefficient * variable <= upper; infinite bounds are none."""

    coefficients: Mapping[int, float]
    """by the index of the variable"""
    lower: float
    upper: float


@dataclass(frozen=True)
class IntegerProgram:
    """Minimise the sum of costs * variables, all of them whole numbers from 0 on."""

    costs: Sequence[float]
    constraints: Sequence[Constraint]


@dataclass(frozen=True)
class Solution:
    values: tuple[int, ...]
    is_proved: bool
    """whether no solution has lower cost"""


def solve(program: IntegerProgram) -> Solution | None:
    """The cheapest solution; None where none exists, or none was found in TIME_LIMIT_S.

    Raises FractuneError without the solver.
    """
    if importlib.util.find_spec("highspy") is None:
        raise FractuneError("a plan for several devices needs a solver; install 'fractune[plan]'")
    import highspy
    import numpy as np

    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    for option, value in (
        ("output_flag", False),
        ("mip_rel_gap", 0.0),
        ("time_limit", TIME_LIMIT_S),
        ("parallel", "off"),
    ):
        solver.setOptionValue(option, value)
    count = len(program.costs)
    solver.addVars(count, np.zeros(count), np.full(count, highspy.kHighsInf))
    columns = np.arange(count, dtype=np.int32)
    solver.changeColsCost(count, columns, np.array(program.costs, dtype=np.double))
    solver.changeColsIntegrality(count, columns, np.full(count, highspy.HighsVarType.kInteger))
    for each in program.constraints:
        indices = np.fromiter(each.coefficients.keys(), dtype=np.int32)
        weights = np.fromiter(each.coefficients.values(), dtype=np.double)
        solver.addRow(each.lower, each.upper, len(indices), indices, weights)
    solver.run()
    if solver.getInfo().primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return None
    values = tuple(round(value) for value in solver.getSolution().col_value)
    return Solution(values, solver.getModelStatus() == highspy.HighsModelStatus.kOptimal)
