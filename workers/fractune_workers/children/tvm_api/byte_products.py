"""Loops that add products of four bytes to each lane of a vector become instructions of x86.

A kernel writes them as arithmetic, which may be stored and read again as any TIR: `sums + a0 * b0 + ... + a3 * b3`. The
`a` are neighbouring bytes, the same for all lanes. The `b` are bits of a 32-bit word of each lane, masked, in the order
of its bytes.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.ir.prim.expr import BitwiseAnd, RShift

from fractune_workers.children.tvm_api.target import needed_features, vector_unit
from fractune_workers.children.tvm_api.tir import parts_of

BYTES = 4
_WHOLE, _BYTE, _BITS = "int32", "int8", 8
_FULL = 2**_BITS - 1
_Instruction = Callable[[Any, Any, Any], Any]
"""(sums, bytes from 0 on, bytes) -> the sums with the products added; vectors of 32 bits"""


def multiplies_bytes(features: Sequence[str], lanes: int, largest: int) -> bool:
    """Whether a target has instructions for such loops, with `b` of at most `largest`."""
    return _instruction(features, lanes, largest) is not None


def added_products(sums: Any, data: Any, at: Sequence[Any], word: Any, shift: int, mask: int) -> Any:
    """The value of a lane: `data` is the buffer of bytes, with the first of four at `at`."""
    *outer, place = at
    for number in range(BYTES):
        moved = shift + _BITS * number
        part = (word >> tirx.const(moved, _WHOLE) if moved else word) & tirx.const(mask, _WHOLE)
        sums = sums + data[(*outer, place + number)].astype(_WHOLE) * part
    return sums


def with_byte_products(mod: tvm.IRModule, target: Any) -> tvm.IRModule:
    """The module with the target's instructions, where it has some."""
    if target.kind.name != "llvm":
        return mod
    lanes, features = vector_unit(target).lanes, needed_features(target)
    changed = mod.clone()
    for name, function in mod.functions.items():
        if isinstance(function, tirx.PrimFunc):
            put = partial(_put, lanes=lanes, features=features)
            body = tvm_ffi.structural_map(function.body, (tirx.For, put))
            if not body.same_as(function.body):
                changed.update_func(name, function.with_body(body))
    return changed


def _put(loop: Any, lanes: int, features: Sequence[str]) -> Any:
    if loop.kind != tirx.ForKind.VECTORIZED or int(loop.extent) != lanes or not isinstance(loop.body, tirx.BufferStore):
        return loop
    found = _terms(loop.body.value)
    if found is None or str(loop.body.buffer.dtype) != _WHOLE:
        return loop
    sums, data, word, shift, mask = found
    instruction = _instruction(features, lanes, mask)
    if instruction is None or not _is_alone(data, loop.loop_var):
        return loop
    one = tirx.const(1, str(loop.loop_var.ty.dtype))

    def wide(expr: Any) -> Any:
        """A load of all lanes, whose last index counts them."""
        first = [tvm_ffi.structural_map(each, (tirx.Var, partial(_zero, loop.loop_var))) for each in expr.indices]
        return tirx.BufferLoad(expr.source, [*first[:-1], tirx.Ramp(first[-1], one, lanes)])

    four = tirx.BufferLoad(data.source, [*data.indices[:-1], tirx.Ramp(data.indices[-1], one, BYTES)])
    bits = wide(word)
    bits = bits >> tirx.Broadcast(tirx.const(shift, _WHOLE), lanes) if shift else bits
    if mask != _FULL:
        bits = bits & tirx.Broadcast(tirx.const(int.from_bytes(bytes([mask] * BYTES), "little"), _WHOLE), lanes)
    value = instruction(wide(sums), bits, tirx.Broadcast(tirx.reinterpret(_WHOLE, four), lanes))
    place = wide(tirx.BufferLoad(loop.body.buffer, loop.body.indices)).indices
    return tirx.BufferStore(loop.body.buffer, value, place)


def _zero(lane: Any, var: Any) -> Any:
    return tirx.const(0, str(var.ty.dtype)) if var.same_as(lane) else var


def _is_alone(load: Any, lane: Any) -> bool:
    """Whether the bytes are the same for all lanes."""
    return not any(each.same_as(lane) for each in parts_of(load, tirx.Var))


def _terms(value: Any) -> tuple[Any, Any, Any, int, int] | None:
    """Sums, the first byte, the word, and the shift and the mask of its first bits; None for another value."""
    products: list[Any] = []
    for _ in range(BYTES):
        if not isinstance(value, tirx.Add):
            return None
        products.insert(0, value.b)
        value = value.a
    parts = [_product(each) for each in products]
    if not isinstance(value, TensorLoad) or any(part is None for part in parts):
        return None
    found = [part for part in parts if part is not None]
    data, word, shift, mask = found[0]
    analyzer = tvm.sym.Analyzer()
    for number, (byte, bits, moved, kept) in enumerate(found):
        far = analyzer.simplify(byte.indices[-1] - data.indices[-1])
        fits = byte.source.same_as(data.source) and isinstance(far, tirx.IntImm) and int(far) == number
        same = all(map(tvm_ffi.structural_equal, byte.indices[:-1], data.indices[:-1]))
        if not fits or not same or not tvm_ffi.structural_equal(bits, word) or kept != mask:
            return None
        if moved != shift + _BITS * number or not 0 < mask <= _FULL:
            return None
    return value, data, word, shift, mask


def _product(value: Any) -> tuple[Any, Any, int, int] | None:
    """A byte, a word, its shift and its mask."""
    if not isinstance(value, tirx.Mul) or not isinstance(value.a, tirx.Cast):
        return None
    byte, masked = value.a.value, _pair(value.b, BitwiseAnd)
    if not isinstance(byte, TensorLoad) or str(byte.source.dtype) != _BYTE or masked is None:
        return None
    shifted = _pair(masked[0], RShift)
    word, moved = shifted if shifted is not None else (masked[0], 0)
    if not isinstance(word, TensorLoad) or str(word.source.dtype) != _WHOLE:
        return None
    return byte, word, int(moved), int(masked[1])


def _pair(value: Any, kind: Any) -> tuple[Any, Any] | None:
    """The operands of an expression of this kind with a constant behind."""
    return (value.a, value.b) if isinstance(value, kind) and isinstance(value.b, tirx.IntImm) else None


def _instruction(features: Sequence[str], lanes: int, largest: int) -> _Instruction | None:
    """Pairs of products of whole bytes might overflow in AVX2."""
    if (lanes == 16 and "avx512vnni" in features) or (lanes == 8 and "avxvnni" in features):
        return partial(_by_vnni, lanes)
    return _by_avx2 if lanes == 8 and largest < _FULL and "avx2" in features else None


def _by_vnni(lanes: int, sums: Any, weights: Any, data: Any) -> Any:
    return _called(f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", f"{_WHOLE}x{lanes}", sums, *_bytes(lanes, weights, data))


def _by_avx2(sums: Any, weights: Any, data: Any) -> Any:
    pairs = _called("llvm.x86.avx2.pmadd.ub.sw", "int16x16", *_bytes(8, weights, data))
    ones = tirx.Broadcast(tirx.const(1, "int16"), 16)
    return sums + _called("llvm.x86.avx2.pmadd.wd", "int32x8", pairs, ones)


def _bytes(lanes: int, weights: Any, data: Any) -> tuple[Any, Any]:
    count = BYTES * lanes
    return tirx.reinterpret(f"uint8x{count}", weights), tirx.reinterpret(f"int8x{count}", data)


def _called(name: str, dtype: str, *operands: Any) -> Any:
    return tirx.call_llvm_pure_intrin(dtype, name, *operands)
