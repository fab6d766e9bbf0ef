"""The nodes that stand for one node: how a decomposition writes them down, and what it makes of old opsets.

Decompositions are made of ONNX's own operators, before anything is folded. So every tensor in them is sized before it
is computed, as in any other model.

Operators as ONNX defined them before opset 13 are written in the words of opset 17. Attributes have become inputs,
defaults have changed, and some operators mean other numbers today. ONNX's own converter of versions is not asked: it
gives the interpolations of Upsample no rule for coordinates, and it leaves PRelu's and Hardmax's axes as they are.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from fractune_core.errors import BadModel
from fractune_workers.children.importing.onnx_graph import name_of_part, refusal, text_of

_COUNTER = itertools.count()
FLOAT = onnx.TensorProto.FLOAT


class Decomposition:
    """One node, what is known of its inputs, and the nodes that take its place."""

    def __init__(self, node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto | None], opset: int) -> None:
        self.node = node
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self._types = types
        self._attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        self._prefix = f"{node.op_type}.{next(_COUNTER)}"

    def attribute(self, name: str, default: Any = None) -> Any:
        return self._attributes.get(name, default)

    def attributes(self, *left_out: str) -> dict[str, Any]:
        """The node's attributes but these."""
        return {name: value for name, value in self._attributes.items() if name not in left_out}

    def optional(self, index: int) -> str:
        """The name of an input; empty where the node leaves it out."""
        return str(self.node.input[index]) if index < len(self.node.input) else ""

    def input(self, index: int) -> str:
        """The name of an input. Raises BadModel where the node leaves it out."""
        name = self.optional(index)
        if not name:
            raise self.refused(f"it has no input {index}; export the model again")
        return name

    def output(self, index: int) -> str:
        """The name of an output; empty where nothing reads it."""
        return str(self.node.output[index]) if index < len(self.node.output) else ""

    def element_type(self, index: int) -> int:
        """ONNX's number of the type of an input's elements."""
        return int(self._type(index).elem_type)

    def shape(self, index: int) -> list[int]:
        dims = self._type(index).shape.dim
        if not self._type(index).HasField("shape") or not all(dim.HasField("dim_value") for dim in dims):
            raise self.refused(f"the shape of its input '{self.input(index)}' is not known before it is computed")
        return [dim.dim_value for dim in dims]

    def rank(self, index: int) -> int:
        return len(self.shape(index))

    def _type(self, index: int) -> onnx.TypeProto.Tensor:
        known = self._types.get(self.input(index))
        if known is None or not known.HasField("tensor_type"):
            raise self.refused(f"the type of its input '{self.input(index)}' is not known before it is computed")
        return known.tensor_type

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add a node with one output, and return the output's name."""
        name = output or f"{self._prefix}.{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name_of_part(self.node), **attributes))
        return name

    def again(self, inputs: Sequence[str], **attributes: Any) -> None:
        """Add a node of the same operator, with the same outputs."""
        names = name_of_part(self.node)
        self.nodes.append(
            helper.make_node(self.node.op_type, list(inputs), list(self.node.output), names, **attributes)
        )

    def add_several(self, operator: str, inputs: Sequence[str], outputs: int) -> list[str]:
        """Add a node with several outputs, and return their names."""
        names = [f"{self._prefix}.{len(self.nodes)}.{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(operator, list(inputs), names, name_of_part(self.node)))
        return names

    def constant(self, values: npt.ArrayLike, element_type: int | None = None) -> str:
        """Add a small constant. The type is float32 or int64, or that of ONNX's number `element_type`."""
        array = np.asarray(values)
        if element_type is None:
            array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
        else:
            array = array.astype(helper.tensor_dtype_to_np_dtype(element_type))
        return self.add("Constant", value=numpy_helper.from_array(array))

    def reshape(self, name: str, shape: Sequence[int], output: str = "") -> str:
        return self.add("Reshape", name, self.constant(np.array(shape, np.int64)), output=output)

    def as_float(self, name: str) -> str:
        return self.add("Cast", name, to=FLOAT)

    def sum(self, *names: str, output: str = "") -> str:
        """The sum of those that are there; one alone is passed on."""
        present = [name for name in names if name]
        total = present[0]
        for index, name in enumerate(present[1:], 2):
            total = self.add("Add", total, name, output=output if index == len(present) else "")
        return total if len(present) > 1 else self.named(total, output)

    def named(self, name: str, output: str) -> str:
        """The value under the name of an output, or under its own where none is asked for."""
        return self.add("Identity", name, output=output) if output else name

    def refused(self, why: str) -> BadModel:
        """The error for a node that cannot be imported. `why` says what is wrong, and what to do."""
        return refusal(self.node, self.opset, why)

    def refuse_attributes(self, **allowed: Any) -> None:
        """Raises BadModel where an attribute has another value than this."""
        for name, value in allowed.items():
            given = self.attribute(name, value)
            if given != value:
                raise self.refused(f"attribute {name}={given} is not supported; export it with {name}={value}")


Decompose = Callable[[Decomposition], None]


FIRST, LAST = 13, 17
"""Models of an opset before FIRST are read as of opset LAST."""
_NUMPY_BROADCASTING = 7
"""The first opset in which operands are broadcast as in NumPy"""
_DEFAULT_LIMITS = 6
"""The first opset in which a Clip without limits has some"""
_MASK_OF_TRUTH_VALUES = 10
"""The first opset in which the mask of a Dropout has this type"""
_LONG = TensorProto.INT64
GRADIENTS = ("consumed_inputs", "is_test")
"""Attributes that never changed a result"""


def _renewed(made: Decomposition, *more_inputs: str, without: tuple[str, ...] = (), **attributes: Any) -> None:
    """The node with further inputs, and with other attributes."""
    kept = made.attributes(*GRADIENTS, *without)
    made.again([*made.node.input, *more_inputs], **{**kept, **attributes})


def _until(opset: int, decompose: Decompose) -> Decompose:
    """From this opset on the operator has the form of today."""

    def chosen(made: Decomposition) -> None:
        (decompose if made.opset < opset else _renewed)(made)

    return chosen


def _by_matrix(made: Decomposition) -> None:
    """Softmax and its like were rows of a matrix: all axes from `axis` on are a row."""
    rank = made.rank(0)
    axis = int(made.attribute("axis", 1))
    if axis % max(rank, 1) == rank - 1:
        _renewed(made, axis=-1)
        return
    rows = made.add("Flatten", made.input(0), axis=axis)
    made.reshape(made.add(made.node.op_type, rows, axis=-1), made.shape(0), output=made.output(0))


def _elementwise(made: Decomposition) -> None:
    """The second operand began at `axis` of the first."""
    names = [made.input(0), made.input(1)]
    axis = made.attribute("axis")
    if made.opset < _NUMPY_BROADCASTING and made.attribute("broadcast", 0) and axis is not None:
        shape, rank = made.shape(1), made.rank(0)
        after = rank - int(axis) % max(rank, 1) - len(shape)
        names[1] = made.reshape(names[1], [*shape, *[1] * max(0, after)])
    made.again(names)


def _prelu(made: Decomposition) -> None:
    """A slope for each channel, which is axis 1."""
    slope = made.input(1)
    if made.opset < _NUMPY_BROADCASTING and len(made.shape(1)) == 1 and made.shape(1) != [1]:
        slope = made.reshape(slope, [-1, *[1] * (made.rank(0) - 2)])
    made.again([made.input(0), slope])


def _attribute_as_input(name: str) -> Decompose:
    """A list of whole numbers became the second input."""

    def decompose(made: Decomposition) -> None:
        given = made.attribute(name)
        _renewed(made, *([] if given is None else [made.constant(np.array(given, np.int64), _LONG)]), without=(name,))

    return decompose


def _batch_norm(made: Decomposition) -> None:
    if any(made.output(at) for at in range(1, len(made.node.output))):
        raise made.refused("it gives statistics, which only training needs; export it for inference")
    if made.attribute("spatial", 1):
        _renewed(made, without=("spatial",))
        return
    kind = made.element_type(0)
    x, scale, shift, mean, variance = (made.input(at) for at in range(5))
    epsilon = made.constant(float(made.attribute("epsilon", 1e-5)), kind)
    spread = made.add("Sqrt", made.add("Add", variance, epsilon))
    normal = made.add("Div", made.add("Sub", x, mean), spread)
    made.add("Add", made.add("Mul", normal, scale), shift, output=made.output(0))


def _cast(made: Decomposition) -> None:
    to = made.attribute("to")
    if isinstance(to, bytes):
        kind = text_of(to).upper()
        if kind not in TensorProto.DataType.keys():  # noqa: SIM118  an enumeration, and no mapping
            raise made.refused(f"to='{text_of(to)}' is not a type of ONNX; export it again")
        to = TensorProto.DataType.Value(kind)
    _renewed(made, to=to)


def _clip(made: Decomposition) -> None:
    """A limit that is left out was float32's largest number, and in the first opsets none."""
    most = float(np.finfo(np.float32).max) if made.opset >= _DEFAULT_LIMITS else np.inf
    limits = [made.attribute("min", -most), made.attribute("max", most)]
    with np.errstate(over="ignore"):
        given = [made.constant(float(each), made.element_type(0)) for each in limits]
    made.again([made.input(0), *given])


def _concat(made: Decomposition) -> None:
    _renewed(made, axis=int(made.attribute("axis", 1)))


def _dropout(made: Decomposition) -> None:
    """Outside training its mask was false or 0 everywhere, as in ONNX Runtime; ONNX left it open."""
    made.named(made.input(0), made.output(0))
    if made.output(1):
        kind = TensorProto.BOOL if made.opset >= _MASK_OF_TRUTH_VALUES else made.element_type(0)
        shape = made.constant(np.array(made.shape(0), np.int64), _LONG)
        made.add("Expand", made.constant(0, kind), shape, output=made.output(1))


def _pad(made: Decomposition) -> None:
    pads = made.attribute("pads", made.attribute("paddings", []))
    value = made.constant(float(made.attribute("value", 0.0)), made.element_type(0))
    kept = {"mode": made.attribute("mode", b"constant")}
    made.again([made.input(0), made.constant(np.array(pads, np.int64), _LONG), value], **kept)


def _gemm(made: Decomposition) -> None:
    _renewed(made, without=("broadcast",))


def _norm_of_float_power(made: Decomposition) -> None:
    power = float(made.attribute("p", 2.0))
    if power != int(power):
        raise made.refused(f"p={power:g} is not a whole number; export it with opset 13")
    _renewed(made, p=int(power))


def _recurrent(made: Decomposition) -> None:
    direction = text_of(made.attribute("direction", "forward"))
    _renewed(made, without=("output_sequence",), direction="forward" if direction == "foward" else direction)


def _resize(made: Decomposition) -> None:
    """A pixel of the result lay at its number divided by the scale. The nearest was the one before this place along an
    axis that grows, and the one after it along one that shrinks. So these axes are resized apart.
    """
    mode = text_of(made.attribute("mode", "nearest"))
    mode = {"bilinear": "linear", "trilinear": "linear"}.get(mode, mode)
    rule = {"mode": mode, "coordinate_transformation_mode": "asymmetric"}
    if mode != "nearest":
        made.add("Resize", made.input(0), "", _scales(made), output=made.output(0), **rule)
        return
    scales, one = _scales(made), made.constant(1.0)
    grown = made.add("Resize", made.input(0), "", made.add("Max", scales, one), nearest_mode="floor", **rule)
    less = made.add("Min", scales, one)
    made.add("Resize", grown, "", less, output=made.output(0), nearest_mode="ceil", **rule)


def _scales(made: Decomposition) -> str:
    if made.optional(1):
        return made.input(1)
    given = made.attribute("scales")
    if given is None:
        given = [1.0, 1.0, float(made.attribute("height_scale", 1.0)), float(made.attribute("width_scale", 1.0))]
    return made.constant(np.array(given, np.float32), FLOAT)


def _roi_align(made: Decomposition) -> None:
    _renewed(made, coordinate_transformation_mode="output_half_pixel")


def _scatter(made: Decomposition) -> None:
    made.add("ScatterElements", *made.node.input, output=made.output(0), **made.attributes())


def _selu(made: Decomposition) -> None:
    """Its numbers were shorter."""
    _renewed(made, alpha=made.attribute("alpha", 1.6732), gamma=made.attribute("gamma", 1.0507))


def _slice(made: Decomposition) -> None:
    given = [made.attribute(name) for name in ("starts", "ends", "axes")]
    made.again([made.input(0), *(made.constant(np.array(each, np.int64), _LONG) for each in given if each is not None)])


def _split(made: Decomposition) -> None:
    if len(made.node.input) > 1:
        sizes = [made.input(1)]
    else:
        given = made.attribute("split")
        sizes = [] if given is None else [made.constant(np.array(given, np.int64), _LONG)]
    made.again([made.input(0), *sizes], axis=int(made.attribute("axis", 0)))


def _tile(made: Decomposition) -> None:
    raise made.refused("its axis is an input, as in opset 1; export it with opset 6 or later")


def _top_k(made: Decomposition) -> None:
    count = made.attribute("k")
    _renewed(made, *([] if count is None else [made.constant(np.array([count], np.int64), _LONG)]), without=("k",))


OLD_FORMS: Mapping[str, Decompose] = {
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "Clip": _until(11, _clip),
    "Concat": _until(4, _concat),
    "Dropout": _until(12, _dropout),
    "GRU": _recurrent,
    "Gemm": _gemm,
    "GlobalLpPool": _norm_of_float_power,
    "Hardmax": _by_matrix,
    "LSTM": _recurrent,
    "LogSoftmax": _by_matrix,
    "LpPool": _norm_of_float_power,
    "PRelu": _prelu,
    "Pad": _until(11, _pad),
    "RNN": _recurrent,
    "ReduceSum": _attribute_as_input("axes"),
    "Resize": _until(11, _resize),
    "Reshape": _attribute_as_input("shape"),
    "RoiAlign": _roi_align,
    "Scatter": _scatter,
    "Selu": _until(6, _selu),
    "Slice": _until(10, _slice),
    "Softmax": _by_matrix,
    "Split": _split,
    "Squeeze": _attribute_as_input("axes"),
    "Tile": _until(6, _tile),
    "TopK": _top_k,
    "Unsqueeze": _attribute_as_input("axes"),
    "Upsample": _resize,
    **dict.fromkeys(["Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor"], _elementwise),
}
"""by name: how the operator of an old opset becomes that of opset 17. Other operators mean the same in both; they only
lost their `consumed_inputs`."""
