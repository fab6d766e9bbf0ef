"""Operators that ONNX Runtime's optimizer makes of several: taken apart again."""

from collections.abc import Mapping

from onnx import TensorProto

from fractune_workers.children.importing.decomposing.decomposition import Decompose, Decomposition
from fractune_workers.children.importing.onnx_graph import text_of

_ACTIVATIONS = {
    "": (),
    "Clip": ("min", "max"),
    "HardSigmoid": ("alpha", "beta"),
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
}
"""Activations that are fused with convolutions and products, and their parameters in order"""
_OPSET_OF_AXES_AS_INPUT = 13
"""of ReduceSum"""


def _gelu(approximate: str) -> Decompose:
    def decompose(made: Decomposition) -> None:
        made.add("Gelu", made.sum(made.input(0), made.optional(1)), output=made.output(0), approximate=approximate)

    return decompose


def _quick_gelu(made: Decomposition) -> None:
    x = made.input(0)
    factor = made.constant(float(made.attribute("alpha", 1.702)), made.element_type(0))
    made.add("Mul", x, made.add("Sigmoid", made.add("Mul", x, factor)), output=made.output(0))


def _matmul(made: Decomposition) -> None:
    operands = [_transposed(made, index, name) for index, name in ((0, "A"), (1, "B"))]
    alpha = float(made.attribute("alpha", 1.0))
    if alpha == 1:
        made.add("MatMul", *operands, output=made.output(0))
    else:
        factor = made.constant(alpha, made.element_type(0))
        made.add("Mul", made.add("MatMul", *operands), factor, output=made.output(0))


def _transposed(made: Decomposition, index: int, name: str) -> str:
    made.refuse_attributes(**{f"transBatch{name}": 0})
    rank = made.rank(index)
    if not made.attribute(f"trans{name}", 0) or rank == 1:
        return made.input(index)
    return made.add("Transpose", made.input(index), perm=[*range(rank - 2), rank - 1, rank - 2])


def _layer_norm(made: Decomposition, value: str, scale: str, shift: str, output: str) -> None:
    inputs = [value, scale, *([shift] if shift else [])]
    made.add("LayerNormalization", *inputs, output=output, axis=-1, epsilon=float(made.attribute("epsilon", 1e-12)))


def _skip_layer_norm(made: Decomposition) -> None:
    _refuse_statistics(made)
    total = made.sum(made.input(0), made.input(1), made.optional(4), output=made.output(3))
    _layer_norm(made, total, made.input(2), made.optional(3), made.output(0))


def _skip_simple_norm(made: Decomposition) -> None:
    _refuse_statistics(made)
    total = made.sum(made.input(0), made.input(1), made.optional(3), output=made.output(3))
    epsilon = float(made.attribute("epsilon", 1e-12))
    made.add("RMSNormalization", total, made.input(2), output=made.output(0), axis=-1, epsilon=epsilon)


def _simple_norm(made: Decomposition) -> None:
    _refuse_statistics(made)
    made.add("RMSNormalization", made.input(0), made.input(1), output=made.output(0), **made.attributes())


def _refuse_statistics(made: Decomposition) -> None:
    if made.output(1) or made.output(2):
        raise made.refused("it gives mean and deviation, which only training needs; export it for inference")


def _embed_layer_norm(made: Decomposition) -> None:
    ids, segments = made.input(0), made.optional(1)
    embeddings = [made.add("Gather", made.input(2), ids)]
    if made.optional(8):
        embeddings.append(made.add("Gather", made.input(3), made.input(8)))
    else:
        bounds = [made.constant([bound]) for bound in (0, made.shape(0)[1], 0)]
        embeddings.append(made.add("Slice", made.input(3), *bounds))
    if segments:
        embeddings.append(made.add("Gather", made.input(4), segments))
    _layer_norm(made, made.sum(*embeddings, output=made.output(2)), made.input(5), made.optional(6), made.output(0))
    if made.output(1):
        _lengths(made)


def _lengths(made: Decomposition) -> None:
    """The number of tokens that the mask keeps; zeros without a mask."""
    if not made.optional(7):
        made.named(made.constant([0] * made.shape(0)[0], TensorProto.INT32), made.output(1))
    elif made.opset < _OPSET_OF_AXES_AS_INPUT:
        made.add("ReduceSum", made.input(7), output=made.output(1), axes=[1], keepdims=0)
    else:
        made.add("ReduceSum", made.input(7), made.constant([1]), output=made.output(1), keepdims=0)


def _conv(made: Decomposition) -> None:
    operands = [made.input(0), made.input(1), *([made.input(2)] if made.optional(2) else [])]
    value = made.add("Conv", *operands, **made.attributes("activation", "activation_params"))
    _activate(made, made.sum(value, made.optional(3)), list(made.attribute("activation_params", [])))


def _gemm(made: Decomposition) -> None:
    names = [f"activation_{name}" for name in ("alpha", "beta", "gamma")]
    value = made.add("Gemm", *made.node.input, **made.attributes("activation", *names))
    parameters = [made.attribute(name) for name in names if made.attribute(name) is not None]
    _activate(made, value, parameters)


def _activate(made: Decomposition, value: str, parameters: list[float]) -> None:
    activation = text_of(made.attribute("activation", ""))
    if activation not in _ACTIVATIONS:
        raise made.refused(f"activation '{activation}' is not one of {', '.join(filter(None, _ACTIVATIONS))}")
    given = dict(zip(_ACTIVATIONS[activation], parameters, strict=False))
    if activation == "Clip":
        bounds = [made.constant(float(bound), made.element_type(0)) for bound in given.values()]
        made.add("Clip", value, *bounds, output=made.output(0))
    else:
        made.add(activation or "Identity", value, output=made.output(0), **given)


FUSED: Mapping[str, Decompose] = {
    "SimplifiedLayerNormalization": _simple_norm,
    "com.microsoft.BiasGelu": _gelu("none"),
    "com.microsoft.EmbedLayerNormalization": _embed_layer_norm,
    "com.microsoft.FastGelu": _gelu("tanh"),
    "com.microsoft.FusedConv": _conv,
    "com.microsoft.FusedGemm": _gemm,
    "com.microsoft.FusedMatMul": _matmul,
    "com.microsoft.Gelu": _gelu("none"),
    "com.microsoft.QuickGelu": _quick_gelu,
    "com.microsoft.SimplifiedLayerNormalization": _simple_norm,
    "com.microsoft.SkipLayerNormalization": _skip_layer_norm,
    "com.microsoft.SkipSimplifiedLayerNormalization": _skip_simple_norm,
    "com.microsoft.TransposeMatMul": _matmul,
}
"""by name: how the operator becomes ONNX's own"""
