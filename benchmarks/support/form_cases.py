"""A form of an operator, computed by ONNX Runtime without optimisations, and by the importer without a schedule.

Where ONNX Runtime has no kernel, ONNX's own evaluator in Python is the reference. Where a form says that ONNX Runtime
is wrong, it is the evaluator in float64.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

from benchmarks.support.forms import all_forms
from benchmarks.support.forms.form import Array, Form
from benchmarks.support.node_cases import FAILED, PASSED, REFUSED, Outcome, compute
from fractune_core.errors import BadModel, first_line
from fractune_workers.children.importing.limits import Limits
from fractune_workers.children.importing.model_file import load_fixed
from fractune_workers.children.tvm_api.keep_out import hushed

NO_REFERENCE = "no reference"
STATUSES = (PASSED, REFUSED, NO_REFERENCE, FAILED)
_RELATIVE = {"float16": 2.0**-9, "float32": 1e-5, "float64": 1e-6}
"""of each number: the roundings of a few operations. ONNX Runtime computes some operators of float64 in float32"""
_OF_LARGEST = {"float16": 2.0**-11, "float32": 2e-6, "float64": 1e-7}
"""of the largest number: a sum whose terms cancel"""

_LEAST = {"float16": 2.0**-14, "float32": 2.0**-125, "float64": 2.0**-125}
"""twice the smallest normal number of float32, below which a processor may count a number as zero; of float16 once"""


def run_form(form: Form) -> Outcome:
    try:
        wanted = _reference(form)
    except Exception as error:  # noqa: BLE001  both references refuse by many types of errors
        return Outcome(NO_REFERENCE, first_line(error))
    data = form.model(wanted).SerializeToString()
    try:
        with hushed():
            mod = load_fixed(data, {}, Limits(len(data)))
        made = compute(mod, form.given)
    except BadModel as error:
        return Outcome(REFUSED, str(error))
    except Exception as error:  # noqa: BLE001  a failure of the form, of whatever type
        return Outcome(FAILED, f"{type(error).__name__}: {first_line(error)}")
    differences = [_difference(*pair) for pair in zip(made, wanted, strict=True)]
    return next((Outcome(FAILED, text) for text in differences if text), Outcome(PASSED))


def _reference(form: Form) -> list[Array]:
    if not form.by_onnx:
        with suppress(Exception):  # ONNX Runtime's errors have no common type
            return _by_onnx_runtime(form.model(), form.given)
        return _by_onnx(form)
    wide = replace(form, given={name: value.astype("float64") for name, value in form.given.items()})
    (dtype,) = {value.dtype for value in form.given.values()}
    return [each.astype(dtype) for each in _by_onnx(wide)]


def _by_onnx(form: Form) -> list[Array]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return [np.asarray(each) for each in ReferenceEvaluator(form.model()).run(None, dict(form.given))]


def _by_onnx_runtime(model: onnx.ModelProto, given: Mapping[str, Array]) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    made: Sequence[Array] = session.run(None, dict(given))
    return list(made)


def _difference(ours: Array, theirs: Array) -> str:
    """What differs; empty where nothing does."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"{ours.dtype}{ours.shape}, expected {theirs.dtype}{theirs.shape}"
    if ours.dtype.kind != "f":
        right = ours == theirs
    else:
        finite = np.abs(theirs[np.isfinite(theirs)]).astype("float64")
        least = max(_OF_LARGEST[str(ours.dtype)] * finite.max(initial=0.0), _LEAST[str(ours.dtype)])
        right = np.isclose(
            ours.astype("float64"), theirs.astype("float64"), _RELATIVE[str(ours.dtype)], least, equal_nan=True
        )
    if right.all():
        return ""
    at = tuple(int(each) for each in np.argwhere(~right)[0])
    return f"{right.size - right.sum()} of {right.size} numbers differ: {ours[at]} for {theirs[at]} at {list(at)}"


def open_child(_args: list[str]) -> dict[str, Callable[..., Any]]:
    forms = all_forms()
    return {"run": lambda name: asdict(run_form(forms[name]))}
