"""What an ONNX file states, before other libraries read it: its tensors and names are checked, its nodes counted, and
its inputs get the user's shapes or become constants.

Each tensor must lie in the file itself, with exactly the numbers that its shape needs. ONNX's own readers in C++ take
the numbers that are there, and not all of them count. Names must be printable text: protobuf takes any bytes for one.
"""

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import onnx
from google.protobuf.message import Message
from onnx import helper, numpy_helper

from fractune_core.errors import BadModel, BadRequest, shortened
from fractune_core.model_inputs import CONSTANT, NAMELESS, NamedSizes, fitting_shape, parse_numbers
from fractune_workers.children.importing.limits import Limits, check_payload, check_tensor, payload_size
from fractune_workers.children.importing.onnx_graph import described, domain_of, names_read, subgraphs

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


# The number of nodes of an ONNX model with its functions inlined, counted without inlining them.
#
# A call of a function counts as at least one node, because inlining visits even an empty function. A node of many
# inputs and outputs counts as several nodes, because the importer makes an operator, or a field of a tuple, of each
# of them.

MOST_CONNECTIONS = 2_048
"""Inputs and outputs of one node: the importer takes a time that grows with their square"""
_CONNECTIONS = 8
"""Inputs and outputs that count as one node. Only LSTM and similar nodes have more, and nodes that join or split."""

_Name = tuple[str, str, str]
"""domain, name and overload of a function"""


def check_count(model: onnx.ModelProto, limits: Limits) -> None:
    """Raises BadModel for too many nodes or values, for sparse weights, and for functions that call themselves."""
    functions = {(domain_of(each.domain), each.name, each.overload): each for each in model.functions}
    counts: dict[_Name, int] = {}
    for each, function in functions.items():
        _count_function(each, functions, counts)
        limits.check_nodes(counts[each], f"function '{function.name}', with the functions it calls inlined,")
    limits.check_nodes(_count(model.graph.node, counts), "the graph, with all functions inlined,")
    for what, values in (
        ("weights", model.graph.initializer),
        ("inputs", model.graph.input),
        ("outputs", model.graph.output),
    ):
        limits.check_nodes(len(values), f"the list of the graph's {what}")
    if model.graph.sparse_initializer:
        name = model.graph.sparse_initializer[0].values.name
        raise BadModel(f"weight '{name}' is sparse; save the model with dense weights")


def count_nodes(nodes: Iterable[onnx.NodeProto]) -> int:
    """The count of nodes that call no functions."""
    return _count(nodes, {})


def _count_function(name: _Name, functions: dict[_Name, onnx.FunctionProto], counts: dict[_Name, int]) -> None:
    """Fill in the count of a function, and of all that it calls. Raises BadModel for a cycle."""
    waiting, open_names = [name], set[_Name]()
    while waiting:
        current = waiting[-1]
        called = {each for each in _called(functions[current].node) if each in functions and each not in counts}
        if current in counts or not called:
            counts.setdefault(current, _count(functions[current].node, counts))
            open_names.discard(waiting.pop())
        elif current in open_names:
            raise BadModel(f"function '{current[1]}' calls itself, by way of others or directly; export without it")
        else:
            open_names.add(current)
            waiting.extend(called)


def _count(nodes: Iterable[onnx.NodeProto], counts: dict[_Name, int]) -> int:
    return sum(max(_count_one(node), counts.get(_name(node), 1)) + _count_inside(node, counts) for node in nodes)


def _count_one(node: onnx.NodeProto) -> int:
    """The count of a node without its subgraphs. Raises BadModel for too many inputs and outputs."""
    connections = len(node.input) + len(node.output)
    if connections > MOST_CONNECTIONS:
        raise BadModel(
            f"{described(node)} has {connections:,} inputs and outputs, and {MOST_CONNECTIONS:,} is the limit; "
            "join or split in several steps"
        )
    return math.ceil(connections / _CONNECTIONS)


def _count_inside(node: onnx.NodeProto, counts: dict[_Name, int]) -> int:
    return sum(_count(graph.node, counts) for graph in subgraphs(node))


def _called(nodes: Iterable[onnx.NodeProto]) -> Iterable[_Name]:
    for node in nodes:
        yield _name(node)
        for graph in subgraphs(node):
            yield from _called(graph.node)


def _name(node: onnx.NodeProto) -> _Name:
    return domain_of(node.domain), node.op_type, node.overload


_TENSOR = "tensor_type"
_ELEMENT_TYPES = frozenset(onnx.TensorProto.DataType.values()) - {onnx.TensorProto.UNDEFINED}


def check_inputs(graph: onnx.GraphProto, fixed: Container[str], constants: Container[str]) -> None:
    """Check that every input that a node reads is a tensor of numbers. Raises BadModel for any other input.

    An input in `fixed` becomes a tensor, because the user gives its shape. Those in `constants` become weights.
    """
    for value in graph.input:
        if value.name in constants:
            continue
        kind = str(value.type.WhichOneof("value") or _TENSOR)
        elements = value.type.tensor_type.elem_type
        if kind == _TENSOR and elements not in _ELEMENT_TYPES:
            raise BadModel(f"input '{value.name}' has elements of no type that ONNX defines; export the model again")
        is_text = kind == _TENSOR and elements == onnx.TensorProto.STRING
        if (kind == _TENSOR or value.name in fixed) and not is_text:
            continue
        reader = next((node for node in graph.node if value.name in names_read(node)), None)
        if reader is None:
            continue
        what = "text" if is_text else f"of kind {kind.removesuffix('_type')}"
        raise BadModel(
            f"input '{value.name}' of {described(reader)} is {what}, and inputs are tensors of numbers; "
            "export the model without it"
        )


def fix_shapes(graph: onnx.GraphProto, shapes: Mapping[str, Sequence[int]], constants: Mapping[str, str]) -> None:
    """Write `shapes` (input name -> dimensions) into the graph's inputs, in place.

    A dimension that the exporter named (`batch`) is the same number everywhere, so naming it at one input settles the
    others, and sums and products of names. Raises BadModel for an unknown input, for a shape that contradicts the model
    or another shape, and for inputs that are left open. Inputs in `constants` (name -> numbers as text) need a fixed
    shape too.
    """
    inputs = {value.name: value for value in graph.input}
    for name in (*shapes, *constants):
        if name not in inputs:
            raise BadModel(f"no input is named '{name}'; the inputs are {describe(graph)}")
    for name, shape in shapes.items():
        _check_sizes(name, shape)
    for name, shape in shapes.items():
        _fix(inputs[name], shape)
    _settle(graph.input, shapes)
    left_open = [
        value for value in graph.input if _is_open(value) and not _fixes_itself(value, constants.get(value.name, ""))
    ]
    empty = [value.name for value in left_open if any(map(_is_zero, value.type.tensor_type.shape.dim))]
    if empty:
        raise BadModel(
            f"input '{empty[0]}' has a dimension of 0: the inputs are {describe(graph)}; no tensor may be empty, so "
            f"fix it with --input {empty[0]}=DIM,DIM,..., or export the model with another size"
        )
    if left_open:
        raise BadModel(
            f"input '{left_open[0].name}' has open dimensions: the inputs are {describe(graph)}; "
            f"fix them with {_options(left_open, constants)}"
        )
    _forget_inferred(graph)


def fix_constants(graph: onnx.GraphProto, constants: Mapping[str, str]) -> None:
    """Make the inputs in `constants` (name -> numbers as text), whose shapes are fixed, weights of the graph, in place.
    Raises BadModel for numbers that do not fit an input's type or shape.
    """
    inputs = {value.name: value for value in graph.input}
    for name, text in constants.items():
        tensor = inputs[name].type.tensor_type
        kind = tensor.elem_type or onnx.TensorProto.FLOAT
        dtype = helper.tensor_dtype_to_np_dtype(kind) if kind in onnx.TensorProto.DataType.values() else None
        if dtype is None or dtype.kind not in "biuf":
            what = dtype or f"{kind}, which ONNX does not define"
            raise BadModel(f"input '{name}' has elements of type {what}, and a constant has numbers; leave it open")
        dims = [_size(dim) for dim in tensor.shape.dim] if tensor.HasField("shape") else [None]
        try:
            numbers = parse_numbers(name, text, dtype.name)
            shape = fitting_shape(name, len(numbers), dims)
        except BadRequest as error:
            raise BadModel(str(error)) from error
        check_tensor(shape, dtype.itemsize, f"input '{name}'")
        whole = np.full(shape, numbers[0], dtype) if len(numbers) == 1 else np.asarray(numbers, dtype).reshape(shape)
        graph.initializer.append(numpy_helper.from_array(whole, name))
        graph.input.remove(inputs[name])


def _options(left_open: Sequence[onnx.ValueInfoProto], constants: Mapping[str, str]) -> str:
    """The options that fix these inputs. A dimension's name at one of them settles the others."""
    settled: set[str] = set()
    options = []
    for value in left_open:
        tensor = value.type.tensor_type
        open_names = {dim.dim_param for dim in tensor.shape.dim if _size(dim) is None}
        if tensor.HasField("shape") and open_names <= settled:
            continue
        settled |= open_names - NAMELESS
        dims = ",".join(str(_size(dim) or "DIM") for dim in tensor.shape.dim) or "DIM,DIM,..."
        options.append(f"--input {value.name}={dims}")
        if value.name in constants:
            options.append(f"--input {value.name}={CONSTANT}{constants[value.name]}")
    return " ".join(options)


def describe(graph: onnx.GraphProto) -> str:
    """The inputs with their shapes on one line: `ids [batch, 128], mask [?, 128]`."""
    return ", ".join(f"{value.name} {_shape_text(value)}" for value in graph.input) or "none"


def _shape_text(value: onnx.ValueInfoProto) -> str:
    if not value.type.tensor_type.HasField("shape"):
        return "[rank unknown]"
    dims = (
        str(_size(dim) or dim.dim_param or ("0" if _is_zero(dim) else "?")) for dim in value.type.tensor_type.shape.dim
    )
    return f"[{', '.join(dims)}]"


def _size(dim: onnx.TensorShapeProto.Dimension) -> int | None:
    """The fixed size, or None; exporters write 0 and -1 for open dimensions too, and ONNX 0 for an empty tensor."""
    size = int(dim.dim_value)
    return size if dim.HasField("dim_value") and size > 0 else None


def _is_zero(dim: onnx.TensorShapeProto.Dimension) -> bool:
    return bool(dim.HasField("dim_value") and dim.dim_value == 0)


def _check_sizes(name: str, shape: Sequence[int]) -> None:
    wrong = [dim for dim in shape if dim < 1]
    if wrong:
        raise BadModel(f"input '{name}': dimension {wrong[0]} is not a size; every dimension is 1 or more")


def _fix(value: onnx.ValueInfoProto, shape: Sequence[int]) -> None:
    """Give it so many dimensions if the model does not say how many, and check those that have a size."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        tensor.shape.SetInParent()
        for _ in shape:
            tensor.shape.dim.add()
    dims = tensor.shape.dim
    wanted = ",".join(map(str, shape))
    if len(dims) != len(shape):
        raise BadModel(f"input '{value.name}' has rank {len(dims)} {_shape_text(value)}, but {wanted} has {len(shape)}")
    for index, (dim, size) in enumerate(zip(dims, shape, strict=True)):
        fixed = _size(dim)
        if fixed is not None and fixed != size:
            raise BadModel(
                f"input '{value.name}': dimension {index} is {fixed} in the model {_shape_text(value)}, "
                f"but {wanted} makes it {size}"
            )


def _settle(values: Sequence[onnx.ValueInfoProto], shapes: Mapping[str, Sequence[int]]) -> None:
    """Write all sizes that follow from the shapes. Raises BadModel for shapes that contradict each other."""
    dims = {each.name: each.type.tensor_type.shape.dim for each in values}
    names = NamedSizes({name: [_size(dim) or dim.dim_param for dim in found] for name, found in dims.items()})
    try:
        known = names.solved(shapes, {})
    except BadRequest as error:
        raise BadModel(str(error)) from error
    for name, found in dims.items():
        for dim, size in zip(found, names.shape(name, known), strict=True):
            if size is not None:
                dim.dim_value = size


def _is_open(value: onnx.ValueInfoProto) -> bool:
    tensor = value.type.tensor_type
    return not tensor.HasField("shape") or any(_size(dim) is None for dim in tensor.shape.dim)


def _fixes_itself(value: onnx.ValueInfoProto, numbers: str) -> bool:
    """Whether the count of a constant's `numbers` is the size of its one open dimension."""
    return "," in numbers and len(value.type.tensor_type.shape.dim) <= 1


def _forget_inferred(graph: onnx.GraphProto) -> None:
    """Shapes inside the graph were inferred from the open dimensions, and would be believed."""
    del graph.value_info[:]
    for value in graph.output:
        for dim in value.type.tensor_type.shape.dim:
            if _size(dim) is None:
                dim.Clear()
