"""The tensors and the names of an ONNX file, before other libraries read them.

Each tensor must lie in the file itself, with exactly the numbers that its shape needs. ONNX's own readers in C++ take
the numbers that are there, and not all of them count. Names must be printable text: protobuf takes any bytes for one.
"""

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import onnx
from google.protobuf.message import Message
from onnx import helper

from fractune_core.errors import BadModel, shortened
from fractune_workers.children.importing.limits import check_payload, payload_size

_NAMES = onnx.TensorProto.DataType
_BITS = {
    **dict.fromkeys(("BOOL", "INT8", "UINT8"), 8),
    **dict.fromkeys(("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT8E8M0"), 8),
    **dict.fromkeys(("INT16", "UINT16", "FLOAT16", "BFLOAT16"), 16),
    **dict.fromkeys(("INT32", "UINT32", "FLOAT"), 32),
    **dict.fromkeys(("INT64", "UINT64", "DOUBLE", "COMPLEX64"), 64),
    "COMPLEX128": 128,
}
_PACKED_BITS = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2}
"""Packed in bytes; in `int32_data` one such byte each"""
_STRING_BITS = 8
"""of one text at least: they have no bytes of their own in `raw_data`"""
_REMARKS = frozenset({"doc_string", "key", "value"})
"""fields with text of any kind: descriptions, and metadata"""
_MOST_NAME_CHARACTERS = 10_000
_SHOWN = 80


def check_contents(model: onnx.ModelProto, apart: Mapping[str, int] = MappingProxyType({})) -> None:
    """Raises BadModel for weights in other files, for numbers that do not fit the shape, and for names that are not
    printable. `apart` has the bytes of the weights that are not in the message.
    """
    left = set(apart)
    for message in _messages(model):
        if isinstance(message, onnx.TensorProto):
            _check_name(message.name)
            if message.data_location == onnx.TensorProto.EXTERNAL and message.name in left:
                left.remove(message.name)  # a second one of this name is none of them
                _check_payload(message, apart[message.name])
            else:
                _check_tensor(message)
            continue
        for field, value in message.ListFields():
            if field.type == field.TYPE_STRING and field.name not in _REMARKS:
                for name in [value] if isinstance(value, str | bytes) else value:
                    _check_name(name)


def _check_name(name: str | bytes) -> None:
    """A name that is not UTF-8 comes as bytes."""
    if isinstance(name, bytes) or not name.isprintable() or len(name) > _MOST_NAME_CHARACTERS:
        raise BadModel(
            f"has the name {shortened(ascii(name), _SHOWN)}; export the model with names of at most "
            f"{_MOST_NAME_CHARACTERS:,} printable characters"
        )


def _check_payload(tensor: onnx.TensorProto, size: int) -> None:
    bits = _BITS[_NAMES.Name(tensor.data_type)]
    check_payload(tensor.dims, bits, size, f"weight '{tensor.name}'")


def _check_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        raise BadModel(
            f"weight '{tensor.name}' lies in another file; save the model as one file: "
            "onnx.save(onnx.load(path), 'one-file.onnx')"
        )
    what = f"weight '{tensor.name}'" if tensor.name else "a constant of a node"
    name = _NAMES.Name(tensor.data_type) if tensor.data_type in _NAMES.values() else str(tensor.data_type)
    if name == "STRING":
        _check_count(tensor, payload_size(tensor.dims, _STRING_BITS, what), len(tensor.string_data), what)
        return
    bits = (_BITS | _PACKED_BITS).get(name)
    if bits is None:
        raise BadModel(f"{what} has numbers of the type {name}, which is not supported; export the model again")
    if tensor.HasField("raw_data"):
        check_payload(tensor.dims, bits, len(tensor.raw_data), what)
        return
    size = payload_size(tensor.dims, bits, what)
    needed = size if name in _PACKED_BITS else math.prod(tensor.dims) * (2 if name.startswith("COMPLEX") else 1)
    _check_count(tensor, needed, len(getattr(tensor, helper.tensor_dtype_to_field(tensor.data_type))), what)


def _check_count(tensor: onnx.TensorProto, needed: int, found: int, what: str) -> None:
    if tensor.HasField("raw_data") or found != needed:
        raise BadModel(
            f"{what} is a tensor of shape {list(tensor.dims)}, which needs {needed:,} numbers or texts, and the file "
            f"has {found:,} for it; export the model again"
        )


def _messages(message: Message) -> Iterator[Message]:
    """The message and all that are in it: weights, constants of nodes, of subgraphs and of functions."""
    yield message
    if isinstance(message, onnx.TensorProto):  # not looked into: that would copy its bytes
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in [value] if isinstance(value, Message) else value:
                yield from _messages(part)
