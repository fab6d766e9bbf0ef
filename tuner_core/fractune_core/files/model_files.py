"""Model files, read without the packages that made them.

The fields of an ONNX file are walked in place, by protobuf's wire format: its inputs, outputs, and graph without the
numbers of its weights. The package `onnx` is not needed, weights are never read, and no native code parses a
stranger's file. The number of fields is bounded.

TVMScript is Python code: neither a server nor a worker ever runs it, so they refuse it.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from fractune_core.errors import BadModel, BadRequest, shortened
from fractune_core.model_inputs import Dim, Formula, NamedSizes, constants_in, shapes_in

MOST_PARSED_BYTES = 2**31 - 1
"""of a message that protobuf parses: ONNX Runtime, and what else reads a whole model at once, take no larger file"""
MOST_MODEL_BYTES = 2**37
"""of a model whose weights fractune reads by mapping"""
_MOST_FIELDS = 500_000
"""visited in one file: the largest models that are tuned have 30,000 nodes and as many weights"""
_MOST_NAME_CHARACTERS = 10_000
_MOST_TENSORS = 1000
"""inputs, and outputs: the largest models with a cache for each layer have some hundred"""
_MOST_AXES = 64
"""of an input or output: NumPy has no more"""
_MOST_AXES_OF_ALL = 8000
_MOST_OUTLINE_BYTES = 64 << 20
_LARGE_BYTES = 4096
"""smaller parts are copied whole: constants that decide shapes have a few numbers"""
DEEPEST = 50
"""graphs in graphs; protobuf's own parser reads no more than 100 levels"""
_IR_VERSION_FIELD = b"\x08"
"""each exporter's files begin with field 1, a number"""
_DAMAGED = "is a damaged or truncated ONNX file; copy or export it again"
_HIDDEN, _OF_ENCODER = "encoder_hidden_states", "encoder_sequence_length_out"
"""how optimum calls what an encoder gives, and as many rows of a cache"""
_SHOWN = 80
_VARINT, _FIXED_64, MESSAGE, _FIXED_32 = 0, 1, 2, 5
_WIDTHS = {_FIXED_64: 8, _FIXED_32: 4}
_EXTERNAL = 1
"""where a tensor has its numbers: in another file"""
NUMBERS = frozenset({4, 5, 6, 7, 9, 10, 11})
"""fields of a tensor with its numbers, in each of their forms"""
_RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 9, 13, 14
_WHOLE_BYTES = frozenset({*range(1, 8), *range(9, 14), 16})
"""types of weights whose numbers in the file are those of an array"""
_MOST_APART_BYTES = 1 << 30
INSIDE = {
    "model": {7: "graph", 25: "function"},
    "function": {7: "node"},
    "graph": {1: "node", 5: "tensor"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph"},
}
"""by kind of message: the fields that may hold weights"""
_DTYPES = (
    *("", "float32", "uint8", "int8", "uint16", "int16", "int32", "int64", "", "bool", "float16", "float64", "uint32"),
    *("uint64", "complex64", "complex128", "bfloat16", "", "", "", "", "uint4", "int4"),
)
"""by TensorProto.DataType"""


@dataclass(frozen=True)
class Tensor:
    """An input or output of a model, as the file has it."""

    name: str
    dtype: str
    """as NumPy's; empty for text and other kinds of values, and for types that NumPy lacks"""
    shape: tuple[Dim, ...] | None
    """None = of unknown rank"""

    @property
    def is_open(self) -> bool:
        """Whether a job needs a shape for it."""
        return self.shape is None or not all(isinstance(dim, int) for dim in self.shape)

    @property
    def shape_text(self) -> str:
        """`[batch, 3, ?, ?]`"""
        dims = ", ".join("?" if dim is None else str(dim) for dim in self.shape or ())
        return shortened("of unknown rank" if self.shape is None else f"[{dims}]", _SHOWN)


@dataclass(frozen=True)
class Interface:
    """The inputs of a model, without its weights, and its outputs."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    in_another_file: str = ""
    """the name of a weight whose numbers are not in this file; empty if all are"""

    def sizes_with(self, relations: Mapping[str, Formula] = MappingProxyType({})) -> NamedSizes:
        """The open sizes by name. `relations` has the names that follow from others."""
        dims = {each.name: each.shape for each in self.inputs}
        rows = next(iter((dims.get(_HIDDEN) or ())[1:2]), None)
        known = {_OF_ENCODER: Formula.parse(rows)} if isinstance(rows, str) and rows != _OF_ENCODER else {}
        return NamedSizes(dims, {**known, **relations})


def shapes_by_name(
    held: Interface, inputs: Mapping[str, Sequence[int]], sizes: Mapping[str, int]
) -> dict[str, list[int]]:
    """The inputs of a job, with a shape for each that the model leaves open. Raises BadRequest for unknown names,
    contradictions, and sizes that stay open.
    """
    names = held.sizes_with()
    known = names.solved(shapes_in(inputs), sizes)
    given = {*shapes_in(inputs), *constants_in(inputs)}
    made = {name: list(shape) for name, shape in inputs.items()}
    for each in held.inputs:
        shape = names.shape(each.name, known)
        if each.is_open and each.dtype and each.name not in given:
            if each.shape is None or None in shape:
                raise BadRequest(
                    f"sizes: input '{shortened(each.name, _SHOWN)}' has open axes ({each.shape_text}); give all"
                )
            made[each.name] = [size for size in shape if size is not None]
    return made


class Torn(Exception):
    """These bytes are no message."""


class Field(NamedTuple):
    number: int
    begin: int
    first: int
    """of the content"""
    end: int
    value: int
    """of a number"""
    is_message: bool


def read_interface(path: Path) -> Interface | None:
    """The inputs and outputs of an ONNX file; None for another file. Raises BadModel for a damaged one, for an input
    without a name, for two of one name, for names that cannot be printed, and for too many tensors or axes.
    """
    with walk(path) as found:
        return None if found is None else found.interface()


def read_outline(path: Path) -> bytes:
    """The ONNX file without the numbers of its weights, for a parser. Raises BadModel for a file that is damaged, is
    not ONNX, or is too large without them.
    """
    with walk(path) as found:
        if found is None:
            raise BadModel(f"{path.name}: is not an ONNX file")
        return found.outline()


@contextmanager
def walk(path: Path) -> Iterator[Walk | None]:
    """A walk over an ONNX file; None for another file. Raises BadModel for a damaged one, also inside the block."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found = Walk(data)
            try:
                yield found if found.finds_a_graph() else None
            except Torn as error:
                raise BadModel(f"{path.name}: {_DAMAGED}") from error
            except BadModel as error:
                raise BadModel(f"{path.name}: {error}") from error
    except ValueError:  # an empty file cannot be mapped
        yield None
    except OSError as error:
        raise BadModel(f"{path}: cannot be read ({error.strerror})") from error


class Walk:
    """A walk over the fields of one file."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._left = _MOST_FIELDS
        self._graphs: list[Field] = []

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self._data)

    def has(self, text: bytes, field: Field) -> bool:
        """Whether these bytes stand anywhere in the field."""
        return self._data.find(text, field.first, field.end) >= 0

    def finds_a_graph(self) -> bool:
        """Whether the file is a model with a graph. Raises BadModel for a torn one."""
        try:
            self._graphs = [each for each in self.fields(0, len(self._data)) if each.number == 7 and each.is_message]
        except Torn as error:
            if self._data[:1] == _IR_VERSION_FIELD and self._data[1:2] < b"\x20":
                raise BadModel(_DAMAGED) from error
            return False
        return bool(self._graphs)

    def interface(self) -> Interface:
        parts = [part for graph in self._graphs for part in self.inside(graph)]
        weights = {self.text(self.last(part, 8)): part for part in parts if part.number == 5}
        apart = next((name for name, part in weights.items() if self.is_external(part)), "")
        inputs, outputs = ([self._tensor(part) for part in parts if part.number == number] for number in (11, 12))
        seen: set[str] = set()
        for each in inputs:
            if each.name in seen:
                raise BadModel(f"has two inputs named '{shortened(each.name, _SHOWN)}'; export it with a name for each")
            seen.add(each.name)
        inputs = [each for each in inputs if each.name not in weights]
        for kind, tensors in (("inputs", inputs), ("outputs", outputs)):
            axes = sum(len(each.shape or ()) for each in tensors)
            if len(tensors) > _MOST_TENSORS or axes > _MOST_AXES_OF_ALL:
                raise BadModel(
                    f"has {len(tensors):,} {kind} with {axes:,} axes; export it with at most {_MOST_TENSORS:,} of them "
                    f"with {_MOST_AXES_OF_ALL:,} axes"
                )
        if any(not each.name for each in inputs):
            raise BadModel("has an input without a name; export it with a name for each")
        return Interface(tuple(inputs), tuple(outputs), apart)

    def outline(self) -> bytes:
        return self._outline("model", 0, len(self._data), 0)

    def apart(self, least_bytes: int) -> tuple[bytes, dict[str, tuple[int, int]]]:
        """The file without the numbers of its large weights, and by name where in the file these are: the first byte,
        and how many. Such a weight of the outline says that its numbers lie in another file, and names none.
        """
        places: dict[str, tuple[int, int]] = {}
        parts: list[bytes] = []
        for field in self.fields(0, len(self._data)):
            if field.number != 7 or not field.is_message:
                parts.append(self._copied(field))
                continue
            body = [self._without_numbers(each, least_bytes, places) for each in self.inside(field)]
            parts += [varint_bytes(7 << 3 | MESSAGE), varint_bytes(sum(map(len, body))), *body]
        return b"".join(parts), places

    def _without_numbers(self, part: Field, least_bytes: int, places: dict[str, tuple[int, int]]) -> bytes:
        """A field of the graph."""
        raw = self.last(part, _RAW_DATA) if part.number == 5 and part.is_message else None
        elements = None if raw is None else self.last(part, 2)
        if raw is None or raw.end - raw.first < least_bytes or elements is None or elements.value not in _WHOLE_BYTES:
            return self._copied(part)
        places[self.text(self.last(part, 8))] = raw.first, raw.end - raw.first
        left_out = NUMBERS | {_EXTERNAL_DATA, _DATA_LOCATION}
        kept = b"".join(self._copied(each) for each in self.inside(part) if each.number not in left_out)
        body = kept + varint_bytes(_DATA_LOCATION << 3) + varint_bytes(_EXTERNAL)
        return varint_bytes(5 << 3 | MESSAGE) + varint_bytes(len(body)) + body

    def _copied(self, field: Field) -> bytes:
        if field.end - field.begin > _MOST_APART_BYTES:
            raise BadModel(
                f"has more than {_MOST_APART_BYTES >> 20} MiB in one part beside its weights; tune a part of it"
            )
        return self._data[field.begin : field.end]

    def _outline(self, kind: str, at: int, end: int, depth: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        for field in self.fields(at, end):
            inner = INSIDE.get(kind, {}).get(field.number) if field.is_message and depth < DEEPEST else None
            if field.end - field.first > _LARGE_BYTES and _is_numbers(kind, field):
                continue
            if field.end - field.first > _LARGE_BYTES and inner is not None:
                body = self._outline(inner, field.first, field.end, depth + 1)
                parts += [varint_bytes(field.number << 3 | MESSAGE), varint_bytes(len(body)), body]
                size += len(body)
            else:
                size += field.end - field.begin
                if size <= _MOST_OUTLINE_BYTES:  # one field may be as large as the file
                    parts.append(self._data[field.begin : field.end])
            if size > _MOST_OUTLINE_BYTES:
                raise BadModel(f"has more than {_MOST_OUTLINE_BYTES >> 20} MiB beside its weights")
        return b"".join(parts)

    def _tensor(self, field: Field) -> Tensor:
        name = self.text(self.last(field, 1))
        kind = self.last(self.last(field, 2), 1)
        elements, shape = self.last(kind, 1), self.last(kind, 2)
        dims = None if shape is None else tuple(self._dim(dim) for dim in self.inside(shape) if dim.number == 1)
        if dims is not None and len(dims) > _MOST_AXES:
            raise BadModel(
                f"has {len(dims):,} axes in '{shortened(name, _SHOWN)}'; export it with at most {_MOST_AXES}"
            )
        number = 0 if elements is None else elements.value
        return Tensor(name, _DTYPES[number] if number < len(_DTYPES) else "", dims)

    def _dim(self, field: Field) -> Dim:
        """Exporters write 0 and negative sizes for open axes too."""
        value = self.last(field, 1)
        size = 0 if value is None else value.value
        return size if 0 < size < 1 << 63 else self.text(self.last(field, 2)) or None

    def is_external(self, weight: Field) -> bool:
        place = self.last(weight, 14)
        return place is not None and place.value == _EXTERNAL

    def text(self, field: Field | None) -> str:
        if field is None:
            return ""
        text = self._data[field.first : min(field.end, field.first + 4 * _MOST_NAME_CHARACTERS + 4)].decode(
            errors="backslashreplace"
        )
        if not text.isprintable() or len(text) > _MOST_NAME_CHARACTERS:
            raise BadModel(
                f"has the name {shortened(ascii(text), _SHOWN)}; export the model with names of at most "
                f"{_MOST_NAME_CHARACTERS:,} printable characters"
            )
        return text

    def last(self, field: Field | None, number: int) -> Field | None:
        found = None
        if field is not None and field.is_message:
            for each in self.inside(field):
                found = each if each.number == number else found
        return found

    def inside(self, field: Field) -> Iterator[Field]:
        return self.fields(field.first, field.end)

    def fields(self, at: int, end: int) -> Iterator[Field]:
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise BadModel(f"has more than {_MOST_FIELDS:,} parts, and is not read here")
            begin, value = at, 0
            key, at = self._varint(at, end)
            first, kind = at, key & 7
            if kind == _VARINT:
                value, at = self._varint(at, end)
            elif kind == MESSAGE:
                size, first = self._varint(at, end)
                at = first + size
            elif kind in _WIDTHS:
                at += _WIDTHS[kind]
            else:
                raise Torn
            if at > end or key < 8:
                raise Torn
            yield Field(key >> 3, begin, first, at, value, kind == MESSAGE)

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        value = 0
        for shift in range(0, 70, 7):
            if at >= end:
                break
            byte = self._data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
        raise Torn


def _is_numbers(kind: str, field: Field) -> bool:
    return kind == "tensor" and field.is_message and field.number in NUMBERS


def varint_bytes(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


SCRIPT_REFUSED = (
    "is TVMScript, which is Python code, and neither servers nor workers run that; write its module with "
    "tvm.ir.save_json, or pass --run-script, which runs the file on your own machine"
)

_SCRIPT_BYTES = 1 << 16
_SCRIPT_WORDS = (b"ir_module", b"prim_func", b"tvm.script", b"R.function")
_BINARY = frozenset(range(32)) - frozenset(b"\t\n\r\f")
_OTHER_TEXT = (b"{", b"version https://git-lfs")


def is_script(start: bytes) -> bool:
    """Whether the file that begins with `start` is TVMScript, by words that stand there: nothing is parsed."""
    read = start[:_SCRIPT_BYTES]
    if read.lstrip().startswith(_OTHER_TEXT) or not _BINARY.isdisjoint(read[:4096]):
        return False
    return any(word in read for word in _SCRIPT_WORDS)
