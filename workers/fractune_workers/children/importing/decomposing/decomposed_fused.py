"""Operators that ONNX Runtime's optimizer makes of several, such as attention of some twenty nodes: taken apart again.

Shapes are in the words of its operators: B batch, S queries, T keys, N heads, D numbers of a head.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from onnx import TensorProto

from fractune_workers.children.importing.decomposing.decomposed_quantized import scaled_product
from fractune_workers.children.importing.decomposing.decomposition import Decompose, Decomposition
from fractune_workers.children.importing.onnx_graph import text_of

_LOWEST = -10000.0
"""Added to the score of a masked key, unless the node says otherwise"""
_ROWS, _CACHE = 3, 4
"""Ranks of queries, and of keys in a cache"""
_MASK_OF_PAIRS = 3
"""Rank of a mask that differs from query to query"""


@dataclass(frozen=True)
class _Sizes:
    batch: int
    queries: int
    keys: int
    heads: int
    head: int
    value_head: int


def _attention(made: Decomposition) -> None:
    """Attention: input, weights, bias, mask, past, attention bias."""
    made.refuse_attributes(do_rotary=0, past_present_share_buffer=0)
    _refuse_past(made, 4, 6)
    widths = _widths(made, 1)
    projected = made.sum(made.add("MatMul", made.input(0), made.input(1)), made.optional(2))
    _attend_projected(made, projected, widths, made.element_type(0), mask=3, bias=5)


def _qattention(made: Decomposition) -> None:
    """QAttention: input, weights, bias, their scales, mask, their zero points, past."""
    made.refuse_attributes(do_rotary=0, past_present_share_buffer=0)
    _refuse_past(made, 8)
    widths = _widths(made, 1)
    numbers = [made.input(0), made.input(1), made.optional(6), made.optional(7)]
    projected = scaled_product(made, numbers, [made.input(3), made.input(4)], made.input(2))
    _attend_projected(made, projected, widths, TensorProto.FLOAT, mask=5, bias=None)


def _multi_head(made: Decomposition) -> None:
    """MultiHeadAttention: query, key, value, bias, key padding mask, attention bias, past key, past value.

    Keys and values of four axes are those of a cache. With a past, new ones go behind it.
    """
    if made.optional(8) or made.optional(9):
        raise made.refused("its cache is larger than its past (past_sequence_length); export it with an exact one")
    if not (made.optional(1) and made.optional(2)) or made.rank(0) != _ROWS or made.rank(1) != made.rank(2):
        raise made.refused("its queries, keys and values are packed into one tensor; export it with three inputs")
    batch, queries, width = made.shape(0)
    heads, is_cache = _heads(made, width), made.rank(1) == _CACHE
    keys, value_head = made.shape(2)[-2], made.shape(2)[-1] if is_cache else made.shape(2)[-1] // heads
    _heads(made, *([] if is_cache else [made.shape(2)[-1]]))
    parts = [made.input(index) for index in range(3)]
    if made.optional(3):
        biases = _parts(made, made.input(3), [width, width, heads * value_head], axis=0)
        count = 1 if is_cache else len(parts)
        parts[:count] = [made.add("Add", part, bias) for part, bias in zip(parts[:count], biases, strict=False)]
    past = made.shape(6)[2] if made.optional(6) else 0
    sizes = _Sizes(batch, queries, past + keys, heads, width // heads, value_head)
    if not is_cache:
        parts[1] = _by_heads(made, parts[1], heads, sizes.head, [0, 2, 1, 3])
        parts[2] = _by_heads(made, parts[2], heads, value_head, [0, 2, 1, 3])
    if past:
        parts[1:] = [
            made.add("Concat", made.input(6 + at), part, output=made.output(1 + at), axis=2)
            for at, part in enumerate(parts[1:])
        ]
    else:
        parts[1:] = [made.named(part, made.output(1 + at)) for at, part in enumerate(parts[1:])]
    parts[0] = _by_heads(made, parts[0], heads, sizes.head, [0, 2, 1, 3])
    _attend_heads(made, parts, sizes, made.element_type(0), mask=4, bias=5)


def _refuse_past(made: Decomposition, *inputs: int) -> None:
    if any(made.optional(index) for index in inputs):
        raise made.refused("it reads the keys and values of earlier calls; export the model without a past")


def _widths(made: Decomposition, weight: int) -> list[int]:
    """How many numbers the queries, keys and values have."""
    given = [int(each) for each in made.attribute("qkv_hidden_sizes", [])]
    columns = made.shape(weight)[-1]
    widths = given or [columns // 3] * 3
    if len(widths) != 3 or sum(widths) != columns or widths[0] != widths[1]:
        raise made.refused(
            f"weights of {columns} columns are not queries, keys and values of {widths}; export it again"
        )
    return widths


def _heads(made: Decomposition, *widths: int) -> int:
    heads = int(made.attribute("num_heads", 0))
    if heads < 1 or any(width < 1 or width % heads for width in widths):
        raise made.refused(f"num_heads={heads} does not divide {' and '.join(map(str, widths))}; export it again")
    return heads


def _attend_projected(
    made: Decomposition, projected: str, widths: list[int], kind: int, mask: int, bias: int | None
) -> None:
    batch, queries, _ = made.shape(0)
    heads = _heads(made, *widths)
    sizes = _Sizes(batch, queries, queries, heads, widths[0] // heads, widths[2] // heads)
    _attend(made, _parts(made, projected, widths, axis=2), sizes, kind, mask, bias)


def _parts(made: Decomposition, value: str, widths: list[int], axis: int) -> list[str]:
    ends = [sum(widths[: index + 1]) for index in range(len(widths))]
    return [
        made.add("Slice", value, *(made.constant([bound]) for bound in (end - width, end, axis)))
        for end, width in zip(ends, widths, strict=True)
    ]


def _attend(made: Decomposition, parts: list[str], sizes: _Sizes, kind: int, mask: int, bias: int | None) -> None:
    """`kind`: the type of the numbers; `mask` and `bias`: which inputs they are."""
    _refuse_present(made)
    by_heads = [
        _by_heads(made, part, sizes.heads, head, [0, 2, 1, 3])
        for part, head in zip(parts, (sizes.head, sizes.head, sizes.value_head), strict=True)
    ]
    _attend_heads(made, by_heads, sizes, kind, mask, bias)


def _attend_heads(made: Decomposition, parts: list[str], sizes: _Sizes, kind: int, mask: int, bias: int | None) -> None:
    """The same for queries, keys and values (batch, heads, rows, width)."""
    query, key, value = parts
    key = made.add("Transpose", key, perm=[0, 1, 3, 2])
    factor = float(made.attribute("scale", 0.0)) or 1 / math.sqrt(sizes.head)
    scores = made.add("Mul", made.add("MatMul", query, key), made.constant(factor, kind))
    added = [_mask(made, mask, sizes, kind), _causal(made, sizes, kind), made.optional(bias) if bias else ""]
    weights = made.add("Softmax", made.sum(scores, *added), axis=-1)
    seen = made.add("Transpose", made.add("MatMul", weights, value), perm=[0, 2, 1, 3])
    made.reshape(seen, [sizes.batch, sizes.queries, sizes.heads * sizes.value_head], output=made.output(0))


def _by_heads(made: Decomposition, part: str, heads: int, head: int, order: list[int]) -> str:
    return made.add("Transpose", made.reshape(part, [0, 0, heads, head]), perm=order)


def _mask(made: Decomposition, index: int, sizes: _Sizes, kind: int) -> str:
    """What is added to the scores of masked keys; empty without a mask."""
    if not made.optional(index):
        return ""
    shape = made.shape(index)
    kept = made.input(index)
    if shape == [sizes.batch]:
        places = made.add("Range", *(made.constant(bound, TensorProto.INT32) for bound in (0, sizes.keys, 1)))
        kept = made.add("Less", places, made.reshape(kept, [sizes.batch, 1]))
    elif shape not in ([sizes.batch, sizes.keys], [sizes.batch, sizes.queries, sizes.keys]):
        raise made.refused(f"a mask of shape {shape} is not supported; export it with shape [batch, keys]")
    kept = made.add("Cast", kept, to=kind)
    rows = sizes.queries if len(shape) == _MASK_OF_PAIRS else 1
    lowest = float(made.attribute("mask_filter_value", _LOWEST))
    dropped = made.add("Mul", made.add("Sub", made.constant(1.0, kind), kept), made.constant(lowest, kind))
    return made.reshape(dropped, [sizes.batch, 1, rows, sizes.keys])


def _causal(made: Decomposition, sizes: _Sizes, kind: int) -> str:
    """What is added to the scores of later keys; empty where a query looks at all."""
    if made.attribute("unidirectional", 0) != 1:
        return ""
    ends = [made.constant(bound) for bound in (0, sizes.keys, 1)]
    queries = [made.constant(bound) for bound in (sizes.keys - sizes.queries, sizes.keys, 1)]
    later = made.add("Greater", made.add("Range", *ends), made.reshape(made.add("Range", *queries), [-1, 1]))
    lowest = float(made.attribute("mask_filter_value", _LOWEST))
    return made.add("Mul", made.add("Cast", later, to=kind), made.constant(lowest, kind))


def _refuse_present(made: Decomposition) -> None:
    if made.output(1) or made.output(2):
        raise made.refused("it gives keys and values for later calls; export the model without a past")


ATTENTION: Mapping[str, Decompose] = {
    "com.microsoft.Attention": _attention,
    "com.microsoft.MultiHeadAttention": _multi_head,
    "com.microsoft.QAttention": _qattention,
}
"""by name: how the operator becomes ONNX's own"""


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
