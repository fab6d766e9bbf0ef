"""Tensors in strangers' files: their bytes must be exactly those that their shape and type need.

TVM and PyTorch allocate a tensor by its header, and read what the payload has. What a short payload leaves is memory of
this process: the last model's weights. So every tensor is checked here before another library sees it.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from fractune_core.errors import BadModel
from fractune_workers.children.importing.limits import MOST_DIMENSIONS, check_tensor

_TVM_HEADER = struct.Struct("<QQiiiBBH")
"""magic, reserved, kind and number of the device, rank, code, bits and lanes of the type; behind it sizes and bytes"""
_SIZE = struct.Struct("<q")
_TVM_MAGIC = 0xDD5E40F096B4A13F
_CPU = (1, 0)
_TVM_TYPES = {
    **{(0, bits, 1): f"int{bits}" for bits in (8, 16, 32, 64)},
    **{(1, bits, 1): f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{(2, bits, 1): f"float{bits}" for bits in (16, 32, 64)},
    (4, 16, 1): "bfloat16",
    (6, 8, 1): "bool",
}
"""By DLPack's code, bits and lanes: one number each, of whole bytes. For others TVM reads more or fewer bytes than it
allocates."""


@dataclass(frozen=True)
class TensorHeader:
    dtype: str
    shape: tuple[int, ...]


def check_payload(shape: Sequence[int], element_bits: int, payload_bytes: int, what: str) -> None:
    """Raises BadModel unless a tensor has a possible shape, and exactly the bytes that it needs."""
    needed = payload_size(shape, element_bits, what)
    if payload_bytes != needed:
        raise BadModel(
            f"{what} is a tensor of shape {list(shape)}, which needs {needed:,} bytes, and the file has "
            f"{payload_bytes:,} for it; export the model again"
        )


def payload_size(shape: Sequence[int], element_bits: int, what: str) -> int:
    """Bytes of a tensor. Raises BadModel when it is too large, or would be without its empty dimensions: libraries
    multiply sizes in 64 bits.
    """
    check_tensor([size or 1 for size in shape], math.ceil(element_bits / 8), what)
    return math.ceil(math.prod(shape) * element_bits / 8)


def read_header(text: object, what: str) -> TensorHeader:
    """The header of a tensor in TVM's JSON. Raises BadModel unless the whole text is one tensor as TVM writes it."""
    payload = _decoded(text, what)
    if len(payload) < _TVM_HEADER.size:
        raise _malformed(what, "it ends within its header")
    magic, _, *device, rank, code, bits, lanes = _TVM_HEADER.unpack_from(payload)
    if magic != _TVM_MAGIC or tuple(device) != _CPU:
        raise _malformed(what, "its header is not that of a tensor of a CPU")
    dtype = _TVM_TYPES.get((code, bits, lanes))
    if dtype is None:
        raise _malformed(what, f"its type (code {code}, {bits} bits, {lanes} lanes) is not supported")
    if not 0 <= rank <= MOST_DIMENSIONS:
        raise _malformed(what, f"it has {rank} dimensions, and {MOST_DIMENSIONS} is the limit")
    begin = _TVM_HEADER.size + _SIZE.size * (rank + 1)
    if len(payload) < begin:
        raise _malformed(what, "it ends within its header")
    *shape, stated = struct.unpack_from(f"<{rank + 1}q", payload, _TVM_HEADER.size)
    check_payload(shape, bits, len(payload) - begin, what)
    check_payload(shape, bits, stated, what)
    return TensorHeader(dtype, tuple(shape))


def _decoded(text: object, what: str) -> bytes:
    """TVM's own decoder reads beyond its table for other characters, and passes over blanks."""
    if not isinstance(text, str):
        raise _malformed(what, "it is not text in base64")
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error) as error:
        raise _malformed(what, "it is not text in base64") from error


def _malformed(what: str, why: str) -> BadModel:
    return BadModel(f"{what} cannot be read: {why}; write it with tvm.ir.save_json")
