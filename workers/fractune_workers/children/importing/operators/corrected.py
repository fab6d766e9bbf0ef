"""Operators that TVM's importer converts with another meaning than ONNX's, or only in part. The forms that are right go
to TVM's converter; others are converted here, or refused.
"""

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import numpy as np
import tvm
from onnx import helper
from tvm import relax, tirx

from fractune_workers.children.importing.onnx_graph import text_of
from fractune_workers.children.importing.operators.corrected_resize import RESIZE
from fractune_workers.children.importing.operators.onnx_node import (
    AS_BYTES,
    Converter,
    OnnxNode,
    as_type,
    dtype_of,
    shape_of,
)
from fractune_workers.children.importing.operators.packed_weights import DEQUANTIZED_WEIGHTS
from fractune_workers.children.importing.operators.sized import INDEXED, REDUCTIONS, SIZED
from fractune_workers.children.importing.operators.windows import WINDOWS
from fractune_workers.children.rewriting.expressions import is_constant

_MOST_POWER = 63
_SQUARE = 2
_MOST_OF_MISH = 30
"""from which on Mish is the number itself"""
_LEAST_DEVIATION = 1e-9
"""of MeanVarianceNormalization: it is added to the deviation"""
_SELU = {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}
"""ONNX's defaults"""
_ROI_HALF_PIXELS = 16
"""The first opset in which half pixels are the default of RoiAlign"""
_TRAINING = "which is for training; export it for inference"


def _gelu(node: OnnxNode) -> relax.Expr:
    """Of any opset: TVM's converter reads `approximate` from opset 20 on only."""
    kind = node.attributes.get("approximate", b"none")
    if kind not in (b"none", b"tanh"):
        raise node.refused(f"approximate='{text_of(kind)}' is neither 'none' nor 'tanh'")
    return (relax.op.nn.gelu_tanh if kind == b"tanh" else relax.op.nn.gelu)(node.input(0))


def _batch_norm(node: OnnxNode) -> Any:
    if node.attributes.get("training_mode", 0):
        raise node.refused(f"training_mode=1, {_TRAINING}")
    return node.by_tvm()


def _dropout(node: OnnxNode) -> Any:
    """Nothing is dropped outside training, and the mask keeps all."""
    training, ratio = node.constant(2), node.constant(1)
    is_off = node.optional(2) is None or (training is not None and not training.any())
    if not is_off and (ratio is None or ratio.any()):
        raise node.refused(f"training_mode may be true, {_TRAINING}")
    x = node.input(0)
    return [x, relax.op.full(shape_of(x), relax.const(np.array(1, bool)), "bool")][: len(node.proto.output)]


def _is_inf(node: OnnxNode) -> relax.Expr:
    x = node.input(0)
    found = relax.op.isinf(x)
    zero = relax.const(0, dtype_of(x))
    if not node.attributes.get("detect_positive", 1):
        found = relax.op.logical_and(found, relax.op.less(x, zero))
    if not node.attributes.get("detect_negative", 1):
        found = relax.op.logical_and(found, relax.op.greater(x, zero))
    return found


def _div(node: OnnxNode) -> Any:
    """Of integers, x / 0 is 0: ONNX does not define it, NumPy gives 0, and a processor ends the process. It ends it for
    the smallest number over -1 too, which is the smallest number here, as in NumPy.
    """
    x, y = node.input(0), node.input(1)
    dtype = dtype_of(x)
    if "float" in dtype or _divides(node.constant(1)):
        return node.by_tvm()
    quotient = _by_safe_divisor(node)
    if not dtype.startswith("u"):
        opposite = relax.op.subtract(relax.const(0, dtype), x)
        quotient = relax.op.where(relax.op.equal(y, relax.const(-1, dtype)), opposite, quotient)
    return relax.op.where(relax.op.equal(y, relax.const(0, dtype)), relax.const(0, dtype), quotient)


def _divides(number: np.ndarray[Any, Any] | None) -> bool:
    """Whether any integer can be divided by the constant. Of several numbers it is not looked at: a measurement draws
    others.
    """
    return number is not None and number.ndim == 0 and number.item() not in (0, -1)


def _by_safe_divisor(node: OnnxNode) -> Any:
    """The node with 1 in place of the divisors 0 and -1."""
    y = node.input(1)
    dtype = dtype_of(y)
    unsafe = relax.op.equal(y, relax.const(0, dtype))
    if not dtype.startswith("u"):
        unsafe = relax.op.logical_or(unsafe, relax.op.equal(y, relax.const(-1, dtype)))
    safe = node.emit(relax.op.where(unsafe, relax.const(1, dtype), y))
    return node.emit(node.with_inputs([node.input(0), safe]).by_tvm())


def _mod(node: OnnxNode) -> Any:
    """Of floating-point numbers with the divisor's sign: TVM's gives NaN for an infinite divisor. Of integers, x mod 0
    is 0, as in NumPy.
    """
    x, y = node.input(0), node.input(1)
    if "float" not in dtype_of(x):
        return node.by_tvm() if _divides(node.constant(1)) else _by_safe_divisor(node)
    if node.attributes.get("fmod", 0):
        return node.by_tvm()
    zero = relax.const(0, dtype_of(x))
    rest = node.emit(relax.op.mod(x, y))
    apart = relax.op.logical_xor(relax.op.less(rest, zero), relax.op.less(y, zero))
    moved = relax.op.logical_and(apart, relax.op.not_equal(rest, zero))
    return relax.op.where(moved, relax.op.add(rest, y), rest)


def _bit_shift(node: OnnxNode) -> relax.Expr:
    """A shift by more bits than there are, or by less than none, leaves no bit of the number."""
    x, by = node.input(0), node.input(1)
    dtype = dtype_of(x)
    bits = tvm.DataType(dtype).bits
    left = node.attributes.get("direction") == b"LEFT"
    within = relax.op.logical_and(
        relax.op.less(by, relax.const(bits, dtype)), relax.op.greater_equal(by, relax.const(0, dtype))
    )
    safe = node.emit(relax.op.where(within, by, relax.const(0 if left else bits - 1, dtype)))
    shifted = (relax.op.left_shift if left else relax.op.right_shift)(x, safe)
    emptied = left or not dtype.startswith("int")
    return relax.op.where(within, shifted, relax.const(0, dtype)) if emptied else shifted


def _cast(node: OnnxNode) -> Any:
    made = node.importer.element_types.get(node.proto.output[0], 0)
    kind = int(node.attributes.get("to", 0)) or node.element_type(1) or made
    if kind in AS_BYTES:
        raise node.refused("it casts to numbers of less than a byte; cast to int8 or quantize")
    return node.by_tvm()


def _layer_norm(node: OnnxNode) -> Any:
    if not any(node.proto.output[1:]):
        return _first(node.by_tvm())
    x = node.input(0)
    axis = int(node.attributes.get("axis", -1)) % len(shape_of(x))
    axes = list(range(axis, len(shape_of(x))))
    numbers = node.emit(as_type("float32", x))
    mean = node.emit(relax.op.mean(numbers, axes, keepdims=True))
    spread = node.emit(relax.op.variance(numbers, axes, keepdims=True))
    epsilon = relax.const(float(node.attributes.get("epsilon", 1e-5)), "float32")
    return [_first(node.by_tvm()), mean, relax.op.rsqrt(relax.op.add(spread, epsilon))]


def _first(value: Any) -> Any:
    return value.fields[0] if isinstance(value, relax.Tuple) else value


def _clip(node: OnnxNode) -> Any:
    """NaN stays NaN, and a limit that is NaN is none: TVM's converter has TVM's own maximum and minimum. A limit that
    is left out is the largest finite number.
    """
    x = node.input(0)
    if "float" not in dtype_of(x):
        return node.by_tvm()
    low, high = (_limit(node, 1 + at, sign) for at, sign in enumerate((-1.0, 1.0)))
    if isinstance(low, float) and isinstance(high, float):
        return relax.op.clip(x, min(low, high), high)  # the upper limit wins
    low, high = (relax.const(each, dtype_of(x)) if isinstance(each, float) else each for each in (low, high))
    return relax.op.minimum(node.emit(relax.op.maximum(x, low)), high)


def _limit(node: OnnxNode, index: int, sign: float) -> float | relax.Expr:
    """One limit of a Clip. `sign`: of the infinite number that limits nothing."""
    given, number, none = node.optional(index), node.constant(index), sign * np.inf
    if given is None:
        return sign * float(tirx.max_value(dtype_of(node.input(0))).value)
    if number is None:
        return node.emit(relax.op.where(relax.op.isnan(given), relax.const(none, dtype_of(given)), given))
    only = float(number.reshape(()))
    return none if np.isnan(only) else only


def _space_to_depth(node: OnnxNode) -> Any:
    if node.attributes.get("mode", b"DCR") != b"CRD":
        return node.by_tvm()
    size = int(node.attributes["blocksize"])
    batch, channels, height, width = shape_of(node.input(0))
    split = relax.op.reshape(node.input(0), [batch, channels, height // size, size, width // size, size])
    ordered = relax.op.permute_dims(node.emit(split), [0, 1, 3, 5, 2, 4])
    return relax.op.reshape(node.emit(ordered), [batch, channels * size * size, height // size, width // size])


def _suppression(node: OnnxNode) -> Any:
    """TVM drops boxes that overlap by the threshold, ONNX those above it; the thresholds' defaults differ too."""
    for index in range(2, 5):
        if node.optional(index) is not None and node.constant(index) is None:
            raise node.refused(f"its input '{node.proto.input[index]}' is computed; make it a constant")
    overlap, score = node.constant(3), node.constant(4)
    most = np.float32(0) if overlap is None else overlap.astype(np.float32)
    # Bundles take a smaller number than the smallest normal one as zero.
    above = np.maximum(np.nextafter(most, np.float32(np.inf)), np.finfo(np.float32).tiny)
    lowest = np.finfo(np.float32).min if score is None else score
    given = [node.optional(index) for index in range(3)]
    return node.with_inputs([*given, relax.const(above), relax.const(lowest)]).by_tvm()


def _roi_align(node: OnnxNode) -> relax.Expr:
    """The half pixel is subtracted from the scaled corners; TVM's converter subtracts it before it scales them. A
    region without a grid, of no size, is 0; TVM's kernel would leave it as the memory was.
    """
    if node.attributes.get("mode", b"avg") != b"avg":
        raise node.refused("mode='max' is not supported; export it with mode='avg'")
    default = "half_pixel" if node.opset >= _ROI_HALF_PIXELS else "output_half_pixel"
    aligned = text_of(node.attributes.get("coordinate_transformation_mode", default)) == "half_pixel"
    x, corners, images = (node.input(index) for index in range(3))
    dtype = dtype_of(corners)
    scale, half = float(node.attributes.get("spatial_scale", 1.0)), 0.5 if aligned else 0.0
    scaled = node.emit(relax.op.multiply(corners, relax.const(scale, dtype)))
    scaled = node.emit(relax.op.subtract(scaled, relax.const(half, dtype)))
    number = node.emit(relax.op.expand_dims(node.emit(as_type(dtype, images)), 1))
    samples = int(node.attributes.get("sampling_ratio", 0))
    pooled = relax.op.vision.roi_align(
        x,
        node.emit(relax.op.concat([number, scaled], axis=1)),
        pooled_size=tuple(int(node.attributes.get(name, 1)) for name in ("output_height", "output_width")),
        spatial_scale=1.0,
        sample_ratio=samples,
        aligned=aligned,
    )
    if samples > 0:
        return pooled
    first, last = (node.emit(relax.op.strided_slice(scaled, [1], [at], [at + 2])) for at in (0, 2))
    size = node.emit(relax.op.min(node.emit(relax.op.subtract(last, first)), axis=1))
    has_grid = node.emit(relax.op.greater(size, relax.const(0 if aligned else -np.inf, dtype)))
    has_grid = node.emit(relax.op.reshape(has_grid, [-1, 1, 1, 1]))
    return relax.op.where(has_grid, node.emit(pooled), relax.const(0, dtype_of(x)))


def _pow(node: OnnxNode) -> Any:
    """Powers are computed in floating point, and those of whole bases by squaring. A square is a product."""
    base, exponent = node.input(0), node.input(1)
    powers = node.constant(1)
    square = powers is not None and powers.size == 1 and powers.ndim <= len(shape_of(base)) and powers.item() == _SQUARE
    if "float" in dtype_of(base) and square:
        return relax.op.multiply(base, base)
    if "float" in dtype_of(base) and dtype_of(base) == dtype_of(exponent):
        return node.by_tvm()
    if "float" in dtype_of(base):
        return relax.op.power(base, node.builder.normalize(as_type(dtype_of(base), exponent)))
    if powers is None or powers.size == 0 or not np.isin(powers, range(_MOST_POWER + 1)).all():
        raise node.refused(
            f"its base is {dtype_of(base)}, and its exponent is not a constant of whole numbers from 0 to "
            f"{_MOST_POWER}; cast the base to float before"
        )
    return _whole_power(node, base, powers.astype(np.int64))


def _whole_power(node: OnnxNode, base: relax.Expr, powers: np.ndarray[Any, Any]) -> relax.Expr:
    """By the binary digits of the powers."""
    one = relax.const(np.ones(powers.shape), dtype_of(base))
    result, square = None, base
    for digit in range(int(powers.max()).bit_length()):
        square = square if digit == 0 else node.emit(relax.op.multiply(square, square))
        factor = node.emit(relax.op.where(relax.const((powers >> digit) % 2 == 1), square, one))
        result = factor if result is None else node.emit(relax.op.multiply(result, factor))
    return node.emit(relax.op.add(relax.op.zeros_like(base), one)) if result is None else result


def _expand(node: OnnxNode) -> Any:
    """To a computed shape, TVM's converter makes a call that no pass accepts."""
    if not is_constant(node.input(1)) and not isinstance(node.input(1), relax.ShapeExpr):
        raise node.refused(f"its shape '{node.proto.input[1]}' is computed; export it with fixed shapes")
    return node.by_tvm()


def _elu(node: OnnxNode) -> relax.Expr:
    return _above_and_below(node, 1.0, float(node.attributes.get("alpha", 1.0)), 1.0)


def _celu(node: OnnxNode) -> relax.Expr:
    alpha = float(node.attributes.get("alpha", 1.0))
    return _above_and_below(node, 1.0, alpha, alpha)


def _selu(node: OnnxNode) -> relax.Expr:
    alpha, gamma = (float(node.attributes.get(name, default)) for name, default in _SELU.items())
    return _above_and_below(node, gamma, gamma * alpha, 1.0)


def _above_and_below(node: OnnxNode, above: float, below: float, width: float) -> relax.Expr:
    """`above * x` for positive numbers, and `below * (exp(x / width) - 1)` for others. The exponential less 1 is
    `tanh(y / 2) * (exp(y) + 1)`, which is precise near zero.
    """
    x, dtype = node.input(0), dtype_of(node.input(0))
    zero, one = (relax.const(number, dtype) for number in (0, 1))
    negative = node.emit(relax.op.minimum(x, zero))
    y = node.emit(relax.op.multiply(negative, relax.const(1 / width, dtype)))
    half = node.emit(relax.op.tanh(relax.op.multiply(y, relax.const(0.5, dtype))))
    less = node.emit(relax.op.multiply(half, relax.op.add(relax.op.exp(y), one)))
    lower = node.emit(relax.op.multiply(less, relax.const(below, dtype)))
    return relax.op.add(relax.op.multiply(node.emit(relax.op.nn.relu(x)), relax.const(above, dtype)), lower)


def _thresholded(node: OnnxNode) -> relax.Expr:
    """TVM multiplies by 0 below the threshold, which makes NaN of an infinite number."""
    x, dtype = node.input(0), dtype_of(node.input(0))
    limit = relax.const(float(node.attributes.get("alpha", 1.0)), dtype)
    return relax.op.where(relax.op.greater(x, limit), x, relax.const(0, dtype))


def _softplus(node: OnnxNode) -> relax.Expr:
    return relax.op.nn.softplus(node.input(0))


def _mish(node: OnnxNode) -> relax.Expr:
    """`x * tanh(log(1 + exp(x)))`, without the hyperbola: of e = exp(x), `x * (e^2 + 2 e) / (e^2 + 2 e + 2)`."""
    x, dtype = node.input(0), dtype_of(node.input(0))
    two, half = relax.const(2, dtype), relax.const(0.5, dtype)
    most = node.emit(relax.op.minimum(x, relax.const(_MOST_OF_MISH, dtype)))
    root = node.emit(relax.op.exp(relax.op.multiply(most, half)))
    power = node.emit(relax.op.multiply(root, root))
    product = node.emit(relax.op.multiply(power, relax.op.add(power, two)))
    return relax.op.multiply(x, node.emit(relax.op.divide(product, relax.op.add(product, two))))


def _variance_norm(node: OnnxNode) -> relax.Expr:
    """From the squares of distances to the mean: TVM subtracts two squares that may be nearly equal."""
    x, axes = node.input(0), [int(axis) for axis in node.attributes.get("axes", (0, 2, 3))]
    apart = node.emit(relax.op.subtract(x, relax.op.mean(x, axes, keepdims=True)))
    spread = node.emit(relax.op.mean(relax.op.multiply(apart, apart), axes, keepdims=True))
    return relax.op.divide(apart, relax.op.add(relax.op.sqrt(spread), relax.const(_LEAST_DEVIATION, dtype_of(x))))


def _eye_like(node: OnnxNode) -> relax.Expr:
    """A constant, of any type: TVM's converter takes the input's alone."""
    rows, columns = shape_of(node.input(0))
    kind = node.attributes.get("dtype")
    dtype = str(helper.tensor_dtype_to_np_dtype(kind)) if kind else dtype_of(node.input(0))
    return relax.const(np.eye(rows, columns, int(node.attributes.get("k", 0))), dtype)


def _one_hot(node: OnnxNode) -> relax.Expr:
    """With indices and a depth of any type, and values that may be computed. An index between two classes is none."""
    depth, rank = node.constant(1), len(shape_of(node.input(0)))
    if depth is None or depth.size != 1 or int(depth.reshape(-1)[0]) < 1:
        raise node.refused("its depth is not a positive constant; export it with a fixed number of classes")
    count = int(depth.reshape(-1)[0])
    axis = int(node.attributes.get("axis", -1)) % (rank + 1)
    dtype = dtype_of(node.input(0)) if dtype_of(node.input(0)) in ("float32", "float64") else "int64"
    places = node.emit(relax.op.expand_dims(node.emit(as_type(dtype, node.input(0))), axis))
    classes = np.arange(count).reshape([-1 if each == axis else 1 for each in range(rank + 1)])
    both = [node.emit(relax.op.equal(places, relax.const(each, dtype))) for each in (classes, classes - count)]
    off, on = (node.emit(relax.op.take(node.input(2), relax.const(at, "int64"), axis=0)) for at in (0, 1))
    return relax.op.where(node.emit(relax.op.logical_or(*both)), on, off)


def _lp_norm(node: OnnxNode) -> relax.Expr:
    """Of zeros alone, zeros."""
    x, axis = node.input(0), int(node.attributes.get("axis", -1))
    if node.attributes.get("p", 2) == 1:
        norm = node.emit(relax.op.sum(node.emit(relax.op.abs(x)), axis, keepdims=True))
    else:
        norm = node.emit(relax.op.sqrt(relax.op.sum(node.emit(relax.op.multiply(x, x)), axis, keepdims=True)))
    zero, one = (relax.const(number, dtype_of(x)) for number in (0, 1))
    return relax.op.divide(x, node.emit(relax.op.where(relax.op.equal(norm, zero), one, norm)))


def _pairwise(compute: Callable[[Any, Any], Any]) -> Converter:
    """Of any number of inputs, which TVM's converter would broadcast one by one: a constant number would be a tensor of
    the whole shape, which the kernel reads.
    """

    def converted(node: OnnxNode) -> Any:
        return reduce(lambda left, right: node.emit(compute(left, right)), map(node.input, range(len(node.inputs))))

    return converted


def _mean(node: OnnxNode) -> relax.Expr:
    total = node.builder.normalize(_pairwise(relax.op.add)(node))
    return relax.op.divide(total, relax.const(len(node.inputs), dtype_of(total)))


def _sign(node: OnnxNode) -> Any:
    """The sign of NaN is NaN; TVM's is 0."""
    x = node.input(0)
    if "float" not in dtype_of(x):
        return node.by_tvm()
    return relax.op.where(relax.op.isnan(x), x, relax.op.sign(x))


def _rms_norm(node: OnnxNode) -> Any:
    """From any axis on: TVM's is for a scale of one axis."""
    x, scale = node.input(0), node.input(1)
    rank = len(shape_of(x))
    axis = int(node.attributes.get("axis", -1)) % rank
    if axis == rank - 1:
        return node.by_tvm()
    numbers = node.emit(as_type("float32", x))
    squares = relax.op.mean(relax.op.multiply(numbers, numbers), list(range(axis, rank)), keepdims=True)
    epsilon = relax.const(np.float32(node.attributes.get("epsilon", 1e-5)))
    normed = node.emit(relax.op.multiply(numbers, relax.op.rsqrt(node.emit(relax.op.add(squares, epsilon)))))
    return relax.op.multiply(node.builder.normalize(as_type(dtype_of(scale), normed)), scale)


CORRECTED: Mapping[str, Converter] = {
    "BatchNormalization": _batch_norm,
    "BitShift": _bit_shift,
    "Cast": _cast,
    "CastLike": _cast,
    "Celu": _celu,
    "Clip": _clip,
    "Div": _div,
    "Dropout": _dropout,
    "Elu": _elu,
    "Expand": _expand,
    "EyeLike": _eye_like,
    "Gelu": _gelu,
    "IsInf": _is_inf,
    "LayerNormalization": _layer_norm,
    "LpNormalization": _lp_norm,
    "Max": _pairwise(relax.op.maximum),
    "Mean": _mean,
    "MeanVarianceNormalization": _variance_norm,
    "Min": _pairwise(relax.op.minimum),
    "Mish": _mish,
    "Mod": _mod,
    "NonMaxSuppression": _suppression,
    "OneHot": _one_hot,
    "Pow": _pow,
    "RMSNormalization": _rms_norm,
    "RoiAlign": _roi_align,
    "Selu": _selu,
    "Sign": _sign,
    "Softplus": _softplus,
    "SpaceToDepth": _space_to_depth,
    "Sum": _pairwise(relax.op.add),
    "ThresholdedRelu": _thresholded,
    **DEQUANTIZED_WEIGHTS,
    **INDEXED,
    **REDUCTIONS,
    **RESIZE,
    **SIZED,
    **WINDOWS,
}
"""by ONNX's names"""
