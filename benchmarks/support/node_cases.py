"""ONNX's own tests of its operators, run through the importer: imported, compiled without a schedule, and compared.

Parameters of an operator (axes, a shape) are inputs in these tests, and constants in models. So a case that is refused
is tried again with all inputs but the first as constants.
"""

import importlib
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import numpy_helper

from benchmarks.support.processes import import_path
from fractune_core.errors import BadModel, first_line
from fractune_runtime.tvm_runtime.runtime import with_denormals
from fractune_workers.child import Child
from fractune_workers.child.errors import CALL_ERRORS
from fractune_workers.children.importing.limits import Limits
from fractune_workers.children.importing.model_file import load_fixed
from fractune_workers.children.importing.passes import prepare
from fractune_workers.children.tvm_api.keep_out import hushed
from tests.support.unoptimized import machine_of

PASSED, WITH_CONSTANTS, REFUSED, FAILED = "passed", "passed with constants", "refused", "failed"
STATUSES = (PASSED, WITH_CONSTANTS, REFUSED, FAILED)
_BYTES = {"int4": "int8", "uint4": "uint8", "int2": "int8", "uint2": "uint8"}
"""numbers of less than a byte are held as bytes"""
_EPSILONS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
_FLOAT32_EPSILON = 2.0**-23
"""of the largest number: a sum whose terms cancel may be off by it, as in an inverse DFT"""
_CASE_TIMEOUT_S = 60
_ROUNDINGS = 4
"""units in the last place that a result in float16 or bfloat16 may be off: the tests' tolerance is less than one"""


@dataclass(frozen=True)
class Outcome:
    status: str
    detail: str = ""
    """the refusal, or what went wrong"""


def run_named(module: str, names: Sequence[str]) -> dict[str, Outcome]:
    """The outcomes by name, from the call `run` of children of `module`, one for each core: a compiler may crash."""
    count = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(count) as pool:
        parts = pool.map(partial(_run_in_child, module), [names[first::count] for first in range(count)])
        found = {name: outcome for part in parts for name, outcome in part.items()}
    return {name: found[name] for name in names}


def _run_in_child(module: str, names: Sequence[str]) -> dict[str, Outcome]:
    child = Child(module, env={"PYTHONPATH": import_path()})
    try:
        return {name: _outcome(child, name) for name in names}
    finally:
        child.kill()


def _outcome(child: Child, name: str) -> Outcome:
    try:
        return Outcome(**child.call("run", _CASE_TIMEOUT_S, name=name))
    except CALL_ERRORS as error:
        return Outcome(FAILED, str(error))


@cache
def node_cases(*files: str) -> dict[str, Any]:
    """ONNX's cases by name; with `files`, modules of `onnx.backend.test.case.node`, at least the cases of those."""
    from onnx.backend.test.case.node import _NodeTestCases, collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for file in files:
            importlib.import_module(f"onnx.backend.test.case.node.{file}")
        return {case.name: case for case in (_NodeTestCases if files else collect_testcases(None))}


def operator_of_case(case: Any) -> str:
    """The operator that a case tests, with its domain. The case of an expanded function tests the function."""
    node = case.model.graph.node[-1]
    name = str(node.op_type)
    label = re.match(r"([A-Z]\w*?)_test_\w+_expanded_function_", " ".join(n for n in node.input if n))
    domain = node.domain
    return f"{domain}.{name}" if domain and not label else (label.group(1) if label else name)


def run_case(case: Any) -> Outcome:
    given, wanted = ([_array(each) for each in side] for side in case.data_sets[0])
    outcome = _run(case, case.model, given, wanted)
    if not all(isinstance(each, np.ndarray) for each in given):
        return outcome if outcome.status == REFUSED else Outcome(REFUSED, "an input is left out; give it a shape")
    if outcome.status == REFUSED and len(given) > 1:
        constant = _run(case, _with_constants(case.model, given), given[:1], wanted)
        if constant.status != REFUSED:
            return Outcome(WITH_CONSTANTS) if constant.status == PASSED else constant
    return outcome


def _run(case: Any, model: onnx.ModelProto, given: Sequence[Any], wanted: Sequence[Any]) -> Outcome:
    try:
        return _compared(case, model, given, wanted)
    except Exception as error:  # noqa: BLE001  a failure of the case, of whatever type
        return Outcome(FAILED, f"{type(error).__name__}: {first_line(error)}")


def _compared(case: Any, model: onnx.ModelProto, given: Sequence[Any], wanted: Sequence[Any]) -> Outcome:
    data = model.SerializeToString()
    try:
        with hushed():
            mod = load_fixed(data, {}, Limits(len(data)))
    except BadModel as error:
        return Outcome(REFUSED, str(error))
    made = compute(mod, dict(zip((each.name for each in model.graph.input), given, strict=True)))
    if len(model.graph.output) == 1 and isinstance(wanted[0], list):
        made = [made]
    difference = _difference(made, list(wanted), case.rtol, case.atol)
    return Outcome(FAILED, difference) if difference else Outcome(PASSED)


def compute(mod: tvm.IRModule, given: Mapping[str, Any]) -> list[Any]:
    """`given`: by name. The module has no input of text that no node reads."""
    arrays = [_as_bytes(given[parameter.name]) for parameter in mod["main"].params]
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
    with hushed():
        prepared = prepare(mod, target)
        with tvm.transform.PassContext(opt_level=0):
            machine = machine_of(prepared, target)
    made = with_denormals(machine["main"], kept=False)(
        *[tvm.runtime.tensor(np.array(each, order="C")) for each in arrays]
    )
    return [made.numpy()] if hasattr(made, "numpy") else [_numbers(each) for each in made]


def _numbers(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") else [_numbers(each) for each in value]


def _with_constants(model: onnx.ModelProto, given: Sequence[Any]) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(model)
    inputs = list(model.graph.input)
    del made.graph.input[1:]
    for value, numbers in zip(inputs[1:], given[1:], strict=True):
        made.graph.initializer.append(numpy_helper.from_array(np.asarray(numbers), value.name))
    return made


def _array(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _as_bytes(numbers: Any) -> Any:
    return numbers.astype(_BYTES.get(str(numbers.dtype), numbers.dtype))


def _difference(ours: Any, theirs: Any, rtol: float, atol: float) -> str:
    """What differs; empty where nothing does."""
    if isinstance(theirs, list):
        if not isinstance(ours, list) or len(ours) != len(theirs):
            return f"{len(ours)} values, expected {len(theirs)}"
        found = (_difference(*pair, rtol, atol) for pair in zip(ours, theirs, strict=True))
        return next(filter(None, found), "")
    wanted = _as_bytes(np.asarray(theirs))
    if ours.shape != wanted.shape or ours.dtype != wanted.dtype:
        return f"{ours.dtype}{ours.shape}, expected {wanted.dtype}{wanted.shape}"
    if str(ours.dtype) in _EPSILONS:
        rtol = atol = _ROUNDINGS * _EPSILONS[str(ours.dtype)]
    elif ours.dtype == np.float32 and np.isfinite(wanted).any():
        atol = max(atol, _FLOAT32_EPSILON * float(np.abs(wanted[np.isfinite(wanted)]).max()))
    close = np.isclose(ours.astype(np.float64), wanted.astype(np.float64), rtol, atol, equal_nan=True)
    return "" if close.all() else f"{close.size - close.sum()} of {close.size} numbers differ"


def open_child(_args: list[str]) -> dict[str, Callable[..., Any]]:
    return {"run": lambda name: asdict(run_case(node_cases()[name]))}
