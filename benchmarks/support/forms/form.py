"""A form of an operator of ONNX: a model of one node, as an exporter may write it, and the numbers that it gets.

Its parameters (axes, sizes, scales) are constants, as models have them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper

Array = np.ndarray[Any, Any]
_NEWEST_OPSET = 23
"""the newest that ONNX Runtime's release knows whole"""


FLOATS = ("float32", "float16", "float64")


INTS = ("int32", "int64", "int8", "uint8")


_OLDEST_OPSET = 7
"""ONNX Runtime promises none before it"""


@dataclass(frozen=True)
class Form:
    """One node with its operands: `given` are the model's inputs, `constants` its initializers; both in order by
    `operands`, where None is an operand that is left out.
    """

    operator: str
    """with its domain in front, where it is not ONNX's own"""
    opset: int
    operands: tuple[str | None, ...]
    given: Mapping[str, Array]
    constants: Mapping[str, Array] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    by_onnx: bool = False
    """whether ONNX's own evaluator in float64 is the reference, where ONNX Runtime differs from ONNX"""

    @property
    def name(self) -> str:
        """For people, and unique."""
        given = " ".join(f"{name}:{_text(value)}" for name, value in self.given.items())
        fixed = " ".join(f"{name}={_short(value)}" for name, value in self.constants.items())
        attributes = " ".join(f"{key}={value!r}" for key, value in self.attributes.items())
        return " ".join(filter(None, [f"{self.operator}-{self.opset}", given, fixed, attributes]))

    def model(self, outputs: Sequence[Array] | None = None) -> onnx.ModelProto:
        """With the types of the outputs where `outputs` has them."""
        names = [f"out{number}" for number in range(self.outputs)]
        domain, _, operator = self.operator.rpartition(".")
        operands = [name or "" for name in self.operands]
        node = helper.make_node(operator, operands, names, domain=domain, **self.attributes)
        made = [helper.make_empty_tensor_value_info(name) for name in names]
        if outputs is not None:
            made = [_value_info(name, value) for name, value in zip(names, outputs, strict=True)]
        graph = helper.make_graph(
            [node],
            "form",
            [_value_info(name, value) for name, value in self.given.items()],
            made,
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", self.opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _value_info(name: str, value: Array) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


def _text(value: Array) -> str:
    extreme = "" if value.dtype.kind != "f" or np.isfinite(value).all() else ", infinite"
    return f"{value.dtype}{list(value.shape)}{extreme}{'' if value.size == 0 else f' from {value.flat[0]:.6g}'}"


def _short(value: Array) -> str:
    text = np.array2string(value, threshold=8, separator=",", precision=4).replace("\n", "")
    return text if len(text) < 60 else _text(value)


def form(
    operator: str, opset: int, *operands: Array | None, fixed: int = 0, outputs: int = 1, **attributes: Any
) -> Form:
    """The last `fixed` operands are constants; an attribute that is None is left out."""
    names = [None if value is None else f"x{number}" for number, value in enumerate(operands)]
    split = len(operands) - fixed
    present = {
        name: value for name, value in zip(names, operands, strict=True) if name is not None and value is not None
    }
    places = {name: number for number, name in enumerate(names) if name is not None}
    return Form(
        operator,
        opset,
        tuple(names),
        {name: value for name, value in present.items() if places[name] < split},
        {name: value for name, value in present.items() if places[name] >= split},
        {name: value for name, value in attributes.items() if value is not None},
        outputs,
    )


def versions(operator: str, since: int = _OLDEST_OPSET) -> list[int]:
    """An opset for each meaning that the operator has had."""
    found = {
        schema.since_version
        for schema in defs.get_all_schemas_with_history()
        if schema.name == operator and not schema.domain and not schema.deprecated
    }
    newest = max((version for version in found if version <= since), default=0)
    later = {version for version in found if since < version <= _NEWEST_OPSET}
    return sorted(later | ({since} if newest else set()))


def random(dtype: str, *shape: int, seed: int = 0, low: float = -4, high: float = 4) -> Array:
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype.startswith("uint"):
        low, high = 0, max(high, 9)
    if "int" in dtype:
        return rng.integers(int(low), int(high) + 1, shape).astype(dtype)
    return rng.uniform(low, high, shape).astype(dtype)


def extreme(dtype: str, *shape: int, shift: int = 0) -> Array:
    """Zeros of both signs, the largest and the lowest, infinities where the type has them, and one. Of float64 those of
    float32: ONNX Runtime computes some operators of float64 in float32.
    """
    limits: Any = np.iinfo(dtype) if "int" in dtype else np.finfo(dtype.replace("64", "32"))
    numbers: list[Any] = [limits.max, limits.min, 0, 1]
    if "int" not in dtype:
        numbers += [np.inf, -np.inf, -0.0, -1, limits.tiny]
    count = int(np.prod(shape, dtype=np.int64))
    return np.roll(np.resize(np.array(numbers, dtype), count), shift).reshape(shape)


def small(dtype: str, size: float, *shape: int) -> Array:
    """Numbers of both signs from `size` to nine times of it: of one size, so that none hides another's error."""
    signs = np.resize(np.array([1, -1]), int(np.prod(shape, dtype=np.int64))).reshape(shape)
    return (random("float64", *shape, low=size, high=9 * size) * signs).astype(dtype)


def full(value: Any, dtype: str, *shape: int) -> Array:
    return np.full(shape, value, dtype)


def numbers_of(dtype: str, *shape: int) -> list[Array]:
    return [random(dtype, *shape), extreme(dtype, *shape)]


def i64(*values: int) -> Array:
    return np.array(values, "int64")
