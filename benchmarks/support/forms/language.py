"""Operators of language models: rotary embeddings, normalizations with a skipped sum, attention over a cache."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.support.forms.form import Array, Form, form, random

_CONTRIB = "com.microsoft"
_BATCH, _HEADS, _KEY_HEADS, _WIDTH = 2, 4, 2, 16


def rotary() -> Iterator[Form]:
    shapes = [(2, 5, 24), (2, 3, 5, 8)]
    for shape, interleaved, part, dtype in itertools.product(shapes, (0, 1), (0, 4), ("float32", "float16")):
        named: dict[str, Any] = {"interleaved": interleaved, "num_heads": 3, "rotary_embedding_dim": part or None}
        value, half = random(dtype, *shape), (part or 8) // 2
        tables = [random(dtype, 16, half, seed=seed, low=-1, high=1) for seed in (1, 2)]
        each = [random(dtype, 2, 5, half, seed=seed, low=-1, high=1) for seed in (1, 2)]
        positions = random("int64", 2, 5, seed=3, low=0, high=15)
        yield form("RotaryEmbedding", 23, value, *tables, positions, **named)
        yield form("RotaryEmbedding", 23, value, *each, **named)
        for places in (positions, np.array([3], "int64")):
            yield form(f"{_CONTRIB}.RotaryEmbedding", 17, value, places, *tables, **named)
    value, tables = random("float32", 1, 5, 24), [random("float32", 16, 4, seed=seed) for seed in (1, 2)]
    yield form(f"{_CONTRIB}.RotaryEmbedding", 17, value, np.array([0], "int64"), *tables)


def norms() -> Iterator[Form]:
    for shape, dtype in itertools.product(((2, 5, 40), (7, 70)), ("float32", "float16")):
        value, skip = random(dtype, *shape), random(dtype, *shape, seed=1)
        gamma, beta, bias = (random(dtype, shape[-1], seed=seed) for seed in (2, 3, 4))
        for more in ((), (bias,)):
            yield _skipped("SkipSimplifiedLayerNormalization", value, skip, gamma, *more)
            yield _skipped("SkipLayerNormalization", value, skip, gamma, beta, *more)
        yield _skipped("SkipLayerNormalization", value, skip, gamma)
        yield form("SimplifiedLayerNormalization", 17, value, gamma, fixed=1, epsilon=1e-6)
    value, gamma = random("float32", 2, 5, 40), random("float32", 40, seed=2)
    yield _skipped("SkipLayerNormalization", value, random("float32", 5, 40, seed=1), gamma)
    yield _skipped("SkipLayerNormalization", value, random("float32", 1, 5, 40, seed=1), gamma)


def _skipped(operator: str, *operands: Array) -> Form:
    return form(f"{_CONTRIB}.{operator}", 17, *operands, fixed=len(operands) - 2, epsilon=1e-5)


def multi_head() -> Iterator[Form]:
    """Of 2 heads of 4 numbers."""
    ways: list[dict[str, Any]] = [{}, {"unidirectional": 1}, {"scale": 0.3}]
    for past, named in itertools.product((0, 5), ways):
        yield _multi(3, 3, past, **named)
    yield _multi(3, 3, 5, with_bias=True)
    yield _multi(3, 6, 0, with_bias=True, is_cache=True)
    yield _multi(3, 3, 5, mask=(2, 8))
    yield _multi(3, 3, 5, added=(1, 1, 3, 8))


def _multi(
    tokens: int,
    keys: int,
    past: int,
    *,
    with_bias: bool = False,
    is_cache: bool = False,
    mask: tuple[int, ...] = (),
    added: tuple[int, ...] = (),
    **named: Any,
) -> Form:
    shape = (2, 2, keys, 4) if is_cache else (2, keys, 8)
    cache = [random("float32", 2, 2, past, 4, seed=seed) if past else None for seed in (3, 4)]
    operands: list[Array | None] = [
        random("float32", 2, tokens, 8),
        random("float32", *shape, seed=1),
        random("float32", *shape, seed=2),
        random("float32", 24, seed=5) if with_bias else None,
        np.maximum(random("bool", *mask), np.arange(mask[-1]) < 1).astype("int32") if mask else None,
        random("float32", *added, seed=6) if added else None,
        *cache,
    ]
    outputs = 3 if past else 1
    return form(f"{_CONTRIB}.MultiHeadAttention", 17, *operands, outputs=outputs, num_heads=2, **named)


def packed_weights() -> Iterator[Form]:
    """Look-ups of quantized rows, and products with them."""
    for bits, zeros, depth in itertools.product((2, 4, 8), (False, True), (32, 80)):
        per_byte, rows = 8 // bits, 6
        blocks = -(-depth // 16)
        data = random("uint8", rows, depth // per_byte, high=255)
        scales = random("float32", rows, blocks, seed=1, low=0.1, high=1)
        points = random("uint8", rows, -(-blocks // per_byte), seed=2, high=255) if zeros else None
        indices = np.array([[0, 5, -1], [2, -6, 3]], "int64")
        named = {"bits": bits, "block_size": 16, "gather_axis": 0, "quantize_axis": 1}
        yield _constant("GatherBlockQuantized", indices, [data, None, scales, points], 1, **named)
        whole = random("uint8", rows, blocks, 16 // per_byte, seed=3, high=255)
        flat = None if points is None else points.reshape(-1)
        x = random("float32", 2, 3, depth, seed=4)
        named = {"K": depth, "N": rows, "bits": bits, "block_size": 16}
        yield _constant("MatMulNBits", x, [None, whole, scales.reshape(-1), flat], 0, **named)


def _constant(operator: str, given: Array, operands: list[Array | None], place: int, **named: Any) -> Form:
    """All operands are constants but the one at a place."""
    names = ["x" if at == place else f"x{at}" for at in range(len(operands))]
    present = {name: value for name, value in zip(names, operands, strict=True) if value is not None}
    used = tuple(name if name == "x" or name in present else None for name in names)
    while used[-1] is None:
        used = used[:-1]
    return Form(f"{_CONTRIB}.{operator}", 17, used, {"x": given}, present, named)


def group_query() -> Iterator[Form]:
    softened: list[dict[str, Any]] = [{}, {"softcap": 3.0}, {"local_window_size": 3}, {"scale": 0.7}]
    for packed, named in itertools.product((False, True), softened):
        yield _grouped(5, 0, 5, [4, 4], packed=packed, **named)
        yield _grouped(1, 9, 10, [5, 9], packed=packed, **named)
        yield _grouped(1, 16, 10, [5, 9], packed=packed, do_rotary=1, **named)
        yield _grouped(3, 16, 12, [11], packed=packed, do_rotary=1, rotary_interleaved=1, **named)
    yield _grouped(5, 0, 5, [4, 4], positions=True, do_rotary=1)
    yield _grouped(3, 9, 12, [11], positions=True, do_rotary=1)
    yield _grouped(1, 16, 10, [5, 9], bias=(2, 4, 1, 10))
    yield _grouped(3, 9, 12, [11], bias=(1, 1, 3, 12), softcap=2.0, local_window_size=2)
    yield _grouped(3, 9, 12, [11], causal=0)
    yield _grouped(5, 0, 5, [4, 4], smooth_softmax=1)
    yield _grouped(1, 16, 10, [5, 9], sink=True)
    yield _grouped(1, 9, 10, [5, 9], dtype="float16")


def _grouped(
    tokens: int,
    rows: int,
    total: int,
    lengths: list[int],
    *,
    packed: bool = False,
    bias: tuple[int, ...] = (),
    dtype: str = "float32",
    **named: Any,
) -> Form:
    """`rows` of the cache before; `lengths`: tokens of each row of the batch but one. `named`: attributes, and whether
    there are `positions` and a `sink`.
    """
    positions, sink = (named.pop(name, False) for name in ("positions", "sink"))
    batch, seeds = len(lengths), itertools.count()

    def numbers(*shape: int) -> Array:
        return random(dtype, *shape, seed=next(seeds), low=-1, high=1)

    heads = [_HEADS + 2 * _KEY_HEADS] if packed else [_HEADS, _KEY_HEADS, _KEY_HEADS]
    parts: list[Array | None] = [numbers(batch, tokens, each * _WIDTH) for each in heads]
    cache = [numbers(batch, _KEY_HEADS, rows, _WIDTH) if rows else None for _ in range(2)]
    tables = [numbers(32, _WIDTH // 2) if "do_rotary" in named else None for _ in range(2)]
    operands = {
        **dict(zip("qkv", [*parts, None, None], strict=False)),
        **dict(zip(("past_key", "past_value"), cache, strict=True)),
        "lengths": np.array(lengths, "int32"),
        "total": np.array(total, "int32"),
        **dict(zip(("cos", "sin"), tables, strict=True)),
        "positions": random("int64", batch, tokens, low=0, high=31) if positions else None,
        "bias": numbers(*bias) if bias else None,
        "sink": numbers(_HEADS) if sink else None,
    }
    given = {name: value for name, value in operands.items() if value is not None and name != "total"}
    names = tuple(name if value is not None else None for name, value in operands.items())
    sizes = {"num_heads": _HEADS, "kv_num_heads": _KEY_HEADS}
    return Form(
        f"{_CONTRIB}.GroupQueryAttention",
        17,
        names,
        given,
        {"total": np.array(total, "int32")},
        {**sizes, **named},
        outputs=3,
    )


def whole_attention() -> Iterator[Form]:
    """ONNX's own Attention: with a past, with a mask, and over the rows in use of a cache of all rows."""
    softened: list[dict[str, Any]] = [{}, {"softcap": 3.0}, {"is_causal": 1}, {"scale": 0.7, "is_causal": 1}]
    for by_heads, named in itertools.product((True, False), softened):
        yield _whole(3, 3, by_heads=by_heads, **named)
        yield _whole(3, 3, past=5, by_heads=by_heads, **named)
        yield _whole(1, 1, past=9, by_heads=by_heads, mask=random("float32", _HEADS if by_heads else 1, 1, 10), **named)
        yield _whole(3, 8, by_heads=by_heads, mask=random("bool", 3, 8), **named)
        yield _whole(1, 9, by_heads=by_heads, lengths=[4, 9], **named)
        yield _whole(3, 9, by_heads=by_heads, lengths=[5, 3], **named)
    yield _whole(3, 3, past=5, mask=np.arange(24).reshape(3, 8) % 8 < np.array([[1], [0], [8]]))
    for axis, shape in ((2, (2, 3, 7, 4)), (1, (2, 7, 5)), (3, (2, 3, 4, 7))):
        new = tuple(2 if at == axis else size for at, size in enumerate(shape))
        for places, mode in (([0, 5], None), ([6, 3], "circular")):
            operands = [random("float32", *shape), random("float32", *new, seed=1), np.array(places, "int64")]
            yield form("TensorScatter", 24, *operands, axis=axis, mode=mode)
        yield form("TensorScatter", 24, *operands[:2], axis=axis - len(shape))


def _whole(
    tokens: int,
    keys: int,
    *,
    past: int = 0,
    by_heads: bool = True,
    mask: Array | None = None,
    lengths: list[int] | None = None,
    **named: Any,
) -> Form:
    seeds = itertools.count()

    def numbers(heads: int, rows: int, *, whole: bool) -> Array:
        shape = (_BATCH, heads, rows, _WIDTH) if whole else (_BATCH, rows, heads * _WIDTH)
        return random("float32", *shape, seed=next(seeds), low=-1, high=1)

    parts = [
        numbers(heads, rows, whole=by_heads) for heads, rows in ((_HEADS, tokens), (_KEY_HEADS, keys)) for _ in "kv"
    ]
    cache = [numbers(_KEY_HEADS, past, whole=True) if past else None for _ in "kv"]
    sizes = {} if by_heads else {"q_num_heads": _HEADS, "kv_num_heads": _KEY_HEADS}
    used = [] if lengths is None else [np.array(lengths, "int64")]
    operands = [*parts[1:], mask, *cache, *used]
    while operands[-1] is None:
        operands.pop()
    return form("Attention", 24 if used else 23, *operands, outputs=3 if past else 1, **sizes, **named)
