"""A TVM IRModule from a file, as the JSON that TVM writes.

An IRModule is a program that will be compiled and run. Like any native code, its loops may write past their buffers;
then the measuring process dies, which is what this process is for. But the program may not call out of the module by
name, nor carry code of another language (`fractune_core.tir.foreign_code`). Additions of a later TVM stay out until
somebody has read them.
"""

import base64
import binascii
import re
import struct
from dataclasses import dataclass
from typing import Any

import tvm
from tvm.ir import json_compact
from tvm_ffi.serialization import from_json_graph_str

from fractune_core.codec.plain_json import is_storable
from fractune_core.errors import BadModel, first_line, shortened
from fractune_core.tir.foreign_code import HINT, Node, at, field, objects_of, refuse_foreign_code
from fractune_workers.children.importing.limits import MOST_DIMENSIONS, check_payload
from fractune_workers.children.importing.passes import FROM_FILE

_MOST_TEXT_CHARACTERS = 10_000
_SHOWN = 80
_FUNCTION_NAME = re.compile(r"[A-Za-z_][\w.]*", re.ASCII)
"""TVM writes the name of a kernel into CUDA's source as it is"""
_WRITE_AGAIN = "write it with tvm.ir.save_json"
_NO_MODULE = f"is not an IRModule as JSON; {_WRITE_AGAIN}"

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


def load_json(text: str) -> tvm.IRModule:
    """The IRModule that `tvm.ir.save_json` wrote, with the names of its loops as an attribute (`passes.FROM_FILE`).
    Nothing of another kind is read. Raises BadModel.
    """
    current = _current(text)
    nodes = objects_of(current)
    refuse_foreign_code(nodes)
    _refuse_wrong_tensors(nodes)
    _refuse_unprintable_texts(nodes)
    try:
        mod = from_json_graph_str(current)
    except Exception as error:
        raise BadModel(f"is not an IRModule as JSON: {first_line(error)}; {_WRITE_AGAIN}") from error
    if not isinstance(mod, tvm.IRModule):
        raise BadModel(f"holds a {type(mod).__name__}, not an IRModule; save the whole module")
    _refuse_missing_functions(nodes, {var.name_hint for var in mod.functions})
    _refuse_strange_names(mod)
    loops = [var.name_hint for var, function in mod.functions.items() if isinstance(function, tvm.tirx.PrimFunc)]
    return mod.with_attr(FROM_FILE, loops)


def _current(text: str) -> str:
    """The text as TVM writes it today, and as Python's parser read it: the checked text is the loaded one."""
    try:
        return str(json_compact.upgrade_json(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadModel(_NO_MODULE) from error


def _refuse_wrong_tensors(nodes: list[Node]) -> None:
    headers: dict[int, TensorHeader] = {}
    for index, node in enumerate(nodes):
        if node.get("type") == "ffi.Tensor":
            headers[index] = read_header(node.get("data"), f"tensor {len(headers)}")
    for node in nodes:
        if node.get("type") == "ir.GenericConst":
            place = field(node.get("data"), "value")
            header = headers.get(place) if type(place) is int else None
            if header is None:
                raise BadModel(f"has a constant that is not a tensor; {_WRITE_AGAIN}")
            if header != _declared(nodes, field(node.get("data"), "ty")):
                raise BadModel(
                    f"has a constant whose numbers are {header.dtype} {list(header.shape)}, which its type does not "
                    f"say; {_WRITE_AGAIN}"
                )


def _refuse_unprintable_texts(nodes: list[Node]) -> None:
    """Texts are names, and C reads some of them up to the first NUL. Only the source of a program has several lines."""
    sources = {id(at(nodes, field(node.get("data"), "source"))) for node in nodes if node.get("type") == "ir.Source"}
    for node in nodes:
        if node.get("type") != "ffi.String":
            continue
        text = node.get("data")
        if not isinstance(text, str):
            raise BadModel(_NO_MODULE)
        if not is_storable(text) or not (text.isprintable() or id(node) in sources):
            raise BadModel(f"has the text {shortened(ascii(text), _SHOWN)}, which is not printable; {HINT}")
        if len(text) > _MOST_TEXT_CHARACTERS and id(node) not in sources:
            raise BadModel(
                f"has a text of {len(text):,} characters, and {_MOST_TEXT_CHARACTERS:,} is the limit: "
                f"'{shortened(text, _SHOWN)}'; shorten it"
            )


def _declared(nodes: list[Node], index: Any) -> TensorHeader | None:
    """The type of a constant; None where it is not that of a tensor of fixed shape."""
    kind = at(nodes, index)
    shape = at(nodes, field(kind.get("data"), "shape"))
    dims = at(nodes, field(shape.get("data"), "values")).get("data")
    if kind.get("type") != "relax.TensorType" or not isinstance(dims, list):
        return None
    dtype = field(at(nodes, field(kind.get("data"), "dtype")).get("data"), "dtype")
    sizes: list[Any] = [at(nodes, field(at(nodes, dim).get("data"), "value")).get("data") for dim in dims]
    return TensorHeader(str(dtype), tuple(sizes))


def _refuse_strange_names(mod: tvm.IRModule) -> None:
    for var, function in mod.functions.items():
        for name in (str(var.name_hint), str((function.attrs or {}).get("global_symbol", var.name_hint))):
            if not _FUNCTION_NAME.fullmatch(name):
                shown = shortened(ascii(name), _SHOWN)
                raise BadModel(f"has a function of the name {shown}; name it with letters, digits, '_' and '.'")


def _refuse_missing_functions(nodes: list[Node], functions: set[str]) -> None:
    for node in nodes:
        if node.get("type") == "ir.GlobalVar":
            name = at(nodes, field(node.get("data"), "name_hint")).get("data")
            if name not in functions:
                raise BadModel(f"calls the function '{name}', which is not in the module; {HINT}")


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
