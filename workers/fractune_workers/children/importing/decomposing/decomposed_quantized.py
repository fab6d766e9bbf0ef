"""Operators on quantized numbers, as ONNX's own: exact products of whole numbers, then a scale, then rounding. Others
are computed from dequantized numbers, which are quantized again.
"""

from collections.abc import Mapping

import onnx

from fractune_workers.children.importing.decomposing.decomposition import Decompose, Decomposition


def _dequantized(made: Decomposition, index: int) -> str:
    """The numbers whose quantized ones, scale and zero point are inputs from `index` on."""
    zero = made.optional(index + 2)
    return made.add("DequantizeLinear", made.input(index), made.input(index + 1), *([zero] if zero else []))


def _quantize(made: Decomposition, value: str, index: int) -> None:
    """Quantize to the node's output, with the scale and the zero point that are inputs from `index` on."""
    zero = made.optional(index + 1)
    made.add("QuantizeLinear", value, made.input(index), *([zero] if zero else []), output=made.output(0))


def _elementwise(operator: str) -> Decompose:
    def decompose(made: Decomposition) -> None:
        _quantize(made, made.add(operator, _dequantized(made, 0), _dequantized(made, 3)), 6)

    return decompose


def _of_one(operator: str, *left_out: str) -> Decompose:
    def decompose(made: Decomposition) -> None:
        made.refuse_attributes(channels_last=0)
        value = made.add(operator, _dequantized(made, 0), **made.attributes("channels_last", *left_out))
        _quantize(made, value, 3)

    return decompose


def _softmax(made: Decomposition) -> None:
    axis, rank = made.attribute("axis", -1), made.rank(0)
    if made.attribute("opset", 13) < 13 and axis % rank != rank - 1:
        raise made.refused(f"softmax from axis {axis} on is not supported; export it with opset 13")
    _quantize(made, made.add("Softmax", _dequantized(made, 0), axis=axis % rank), 3)


def _concat(made: Decomposition) -> None:
    parts = [_dequantized(made, index) for index in range(2, len(made.node.input), 3)]
    _quantize(made, made.add("Concat", *parts, axis=made.attribute("axis")), 0)


def _where(made: Decomposition) -> None:
    _quantize(made, made.add("Where", made.input(0), _dequantized(made, 1), _dequantized(made, 4)), 7)


def _as_onnx(operator: str) -> Decompose:
    """The operator of ONNX of that name, which has the same meaning."""

    def decompose(made: Decomposition) -> None:
        node = onnx.NodeProto()
        node.CopyFrom(made.node)
        node.op_type, node.domain = operator, ""
        made.nodes.append(node)

    return decompose


def _scale(made: Decomposition, multiplied: list[str], divided: str = "") -> str:
    """A product of scales, as float32, over another scale."""
    factors = [made.as_float(name) for name in multiplied]
    product = factors[0]
    for factor in factors[1:]:
        product = made.add("Mul", product, factor)
    return made.add("Div", product, made.as_float(divided)) if divided else product


def _column(made: Decomposition, index: int, after: int) -> str:
    """The vector at `index` with `after` axes behind it; a number as it is."""
    shape = made.shape(index)
    return made.reshape(made.input(index), [-1, *[1] * after]) if shape not in ([], [1]) else made.input(index)


def _requantize(made: Decomposition, products: str, scale: str, zero: str) -> None:
    scaled = made.add("Mul", made.as_float(products), scale)
    made.add("QuantizeLinear", scaled, made.constant(1.0), *([zero] if zero else []), output=made.output(0))


def _qlinear_matmul(made: Decomposition) -> None:
    products = made.add("MatMulInteger", *(made.input(index) for index in (0, 3, 2, 5)))
    rows = _column(made, 1, 1) if made.rank(1) == 1 else made.input(1)
    _requantize(made, products, _scale(made, [rows, made.input(4)], made.input(6)), made.input(7))


def _qlinear_conv(made: Decomposition) -> None:
    made.refuse_attributes(channels_last=0)
    spatial = made.rank(3) - 2
    numbers = [made.input(index) for index in (0, 3, 2, 5)]
    products = made.add("ConvInteger", *numbers, **made.attributes("channels_last"))
    if made.optional(8):
        products = made.add("Add", products, made.reshape(made.input(8), [-1, *[1] * spatial]))
    scale = _scale(made, [made.input(1), _column(made, 4, spatial)], made.input(6))
    _requantize(made, products, scale, made.optional(7))


def _qgemm(made: Decomposition) -> None:
    """A bias is in whole numbers, by the scale of the products."""
    a, b = (
        made.add("Transpose", made.input(index), perm=[1, 0]) if made.attribute(name, 0) else made.input(index)
        for index, name in ((0, "transA"), (3, "transB"))
    )
    products = made.sum(made.add("MatMulInteger", a, b, made.input(2), made.input(5)), made.optional(6))
    alpha = made.constant(float(made.attribute("alpha", 1.0)))
    scale = _scale(made, [alpha, made.input(1), made.input(4)], made.optional(7))
    if made.optional(7):
        _requantize(made, products, scale, made.optional(8))
    else:
        made.add("Mul", made.as_float(products), scale, output=made.output(0))


def scaled_product(made: Decomposition, numbers: list[str], scales: list[str], bias: str, output: str = "") -> str:
    """A float32 product: MatMulInteger's inputs in `numbers`, then scales, then a bias."""
    product = made.add("Mul", made.as_float(made.add("MatMulInteger", *numbers)), _scale(made, scales))
    return made.sum(product, bias, output=output)


def _to_float(made: Decomposition) -> None:
    """MatMulIntegerToFloat."""
    numbers = [made.input(0), made.input(1), made.optional(4), made.optional(5)]
    scaled_product(made, numbers, [made.input(2), made.input(3)], made.optional(6), made.output(0))


def _dynamic_matmul(made: Decomposition) -> None:
    """DynamicQuantizeMatMul."""
    numbers, scale, zero = made.add_several("DynamicQuantizeLinear", [made.input(0)], 3)
    operands = [numbers, made.input(1), zero, made.optional(3)]
    scaled_product(made, operands, [scale, made.input(2)], made.optional(4), made.output(0))


QUANTIZED: Mapping[str, Decompose] = {
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "com.microsoft.DequantizeLinear": _as_onnx("DequantizeLinear"),
    "com.microsoft.DynamicQuantizeMatMul": _dynamic_matmul,
    "com.microsoft.MatMulIntegerToFloat": _to_float,
    "com.microsoft.QGemm": _qgemm,
    "com.microsoft.QLinearAdd": _elementwise("Add"),
    "com.microsoft.QLinearAveragePool": _of_one("AveragePool"),
    "com.microsoft.QLinearConcat": _concat,
    "com.microsoft.QLinearConv": _qlinear_conv,
    "com.microsoft.QLinearGlobalAveragePool": _of_one("GlobalAveragePool"),
    "com.microsoft.QLinearLeakyRelu": _of_one("LeakyRelu"),
    "com.microsoft.QLinearMul": _elementwise("Mul"),
    "com.microsoft.QLinearSigmoid": _of_one("Sigmoid"),
    "com.microsoft.QLinearSoftmax": _softmax,
    "com.microsoft.QLinearWhere": _where,
    "com.microsoft.QuantizeLinear": _as_onnx("QuantizeLinear"),
}
"""by name: how the operator becomes ONNX's own"""
