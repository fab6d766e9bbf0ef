"""Operators as ONNX defined them before opset 13, in the words of opset 17.

Attributes have become inputs, defaults have changed, and some operators mean other numbers today. ONNX's own converter
of versions is not asked: it gives the interpolations of Upsample no rule for coordinates, and it leaves PRelu's and
Hardmax's axes as they are.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import TensorProto

from fractune_workers.children.importing.decomposing.decomposition import FLOAT, Decompose, Decomposition
from fractune_workers.children.importing.onnx_graph import text_of

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
            raise made.refused(f"to='{text_of(to)}' is no type of ONNX; export it again")
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
        raise made.refused(f"p={power:g} is no whole number; export it with opset 13")
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
"""by name: how the operator of an old opset becomes that of opset 17. Others mean the same in both; what they lost is
their `consumed_inputs`."""
