"""Real-world ONNX -> Relax.

Exporters leave dynamic dimensions, old opsets and shape arithmetic in the graph, and TVM's importer fails on them. The
steps, in this order:

    1. parse, and refuse a torn file, weights in other files or of other sizes than their shapes, odd names;
    2. count the nodes, and inline the model's own functions;
    3. fix every dimension of every input, and drop the shapes that were inferred from open dimensions;
    4. fold the shape arithmetic, which over fixed shapes is constants, and refuse a model that would grow too large;
    5. roll up unrolled recurrences, unless the model is for a GPU, which has no kernel for them;
    6. slim: merge and drop nodes, put batch normalization into convolutions;
    7. import.

Folding reads the nodes of an old opset in the words of a later one. Slimming is optional: where it fails, the model
goes on without it. Slimming and the importer compute constants, so a model with constants of unknown size is refused
before.
"""

import contextlib
import copy
import gc
import hashlib
import io
import itertools
import logging
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from functools import partial
from types import MappingProxyType
from typing import Any

import onnx
import onnx.inliner
import onnxslim
import tvm
from onnx import defs, helper
from onnxslim.core.pattern.registry import DEFAULT_FUSION_PATTERNS

from fractune_core.errors import BadModel, first_line
from fractune_core.model_inputs import constants_in, shapes_in
from fractune_workers.children.importing import onnx_graph
from fractune_workers.children.importing.limits import ComputedConstants, Limits
from fractune_workers.children.importing.onnx_models import onnx_shapes
from fractune_workers.children.importing.onnx_models.onnx_branches import Branches
from fractune_workers.children.importing.onnx_models.onnx_fold import Folding
from fractune_workers.children.importing.onnx_models.onnx_importer import from_onnx
from fractune_workers.children.importing.onnx_models.unmasked_caches import hide_unused_rows
from fractune_workers.children.importing.rolling.places import PRODUCTS
from fractune_workers.children.importing.rolling.rolled import roll_up
from fractune_workers.children.tvm_api.keep_out import hushed
from fractune_workers.children.tvm_api.scratch_tensors import LEAST_BYTES, Weights, errors_of_the_disk

# The functions of a model, put in the place of their calls.
#
# ONNX's own step leaves out a function of another opset than the model's. Here it is read in the words of the model's
# opset where all its operators have one form in both.


def without_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the functions that it calls inlined. Raises BadModel, which names the call."""
    version = onnx_graph.opset_of(model)
    calling = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    for function in model.functions:
        own = onnx_graph.opset_of(function)
        changed = next(_changed(function.node, own, version), None)
        call = next(_calls(calling, function), None)
        if changed is not None and call is not None:
            raise onnx_graph.refusal(
                call,
                version,
                f"it is a function of opset {own}, in which {changed} has another form than in the model's; export the "
                "model and its functions with one opset",
            )
        onnx_graph.set_opset(function, version)
    return onnx.inliner.inline_local_functions(model) if model.functions else model


def _changed(nodes: Iterable[onnx.NodeProto], own: int, version: int) -> Iterator[str]:
    """ONNX's operators that have other attributes, defaults or inputs in the model's opset."""
    if own != version:
        for node in onnx_graph.all_nodes(nodes):
            if not onnx_graph.domain_of(node.domain) and _form(node.op_type, own) != _form(node.op_type, version):
                yield str(node.op_type)


def _form(operator: str, opset: int) -> Any:
    """Of an operator in this opset: all that a node may state. None for an unknown one."""
    try:
        schema = defs.get_schema(operator, opset)
    except defs.SchemaError:
        return None
    attributes = {name: (each.type, each.required, str(each.default_value)) for name, each in schema.attributes.items()}
    return [each.option for each in schema.inputs], [each.option for each in schema.outputs], attributes


def _calls(nodes: Iterable[onnx.NodeProto], function: onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    for node in onnx_graph.all_nodes(nodes):
        if (node.op_type, onnx_graph.domain_of(node.domain)) == (function.name, onnx_graph.domain_of(function.domain)):
            yield node


_log = logging.getLogger(__name__)
_SEPARATE_INITIALIZERS_IR = 4
"""From this IR version on, weights need not be inputs as well"""
_MOST_PAIRS_OF_READERS = 20_000_000
"""Pairs of nodes that read the same tensor: `onnxslim` compares all of them when it removes one after the other. This
many pairs take some 20 s; one tensor with 4,000 readers is within the limit."""
_SHARED_BYTES = 4096
"""of a weight, from which on a copy is worth a look"""
_IN_MEMORY_BYTES = 1 << 24
"""of a model that is kept until it is slimmed; a larger one is in a file meanwhile"""
_ALONE_FROM_BYTES = 1 << 28
_READERS = {"MatMul", "MatMulNBits", "Gather", "GatherBlockQuantized"}
_IR_VERSION_FIELD = b"\x08"
"""Each exporter's models begin with field 1, a number."""


def load_onnx(
    data: bytes,
    shapes: Mapping[str, Sequence[int]],
    limits: Limits,
    *,
    recurrences: bool = True,
    apart: Weights = MappingProxyType({}),
) -> tvm.IRModule:
    """The ONNX model in `data` as a Relax module. Weights `apart` are not in `data`; those of a large model stay in
    files. `recurrences`: whether unrolled ones are rolled up, which reads weights: none is then. Raises BadModel, also
    for a model that would exceed `limits`.
    """
    in_memory = {name: each for name, each in apart.items() if each.scratch is None}
    in_files = {name: each for name, each in apart.items() if name not in in_memory}
    return _read(
        # No name here holds it, so that its weights are freed when the slimmed model has them.
        _fixed(data, shapes, limits, apart, in_memory),
        limits=limits,
        captured=ComputedConstants(limits),
        recurrences=recurrences and not in_files,
        apart=in_files,
        is_branch=False,
    )


def _fixed(
    data: bytes, shapes: Mapping[str, Sequence[int]], limits: Limits, apart: Weights, in_memory: Weights
) -> onnx.ModelProto:
    """The model with fixed shapes, and with the numbers of weights `in_memory`."""
    model = _parse(data)
    onnx_shapes.check_count(model, limits)
    onnx_shapes.check_contents(model, {name: each.size for name, each in apart.items()})
    _read_weights(model.graph, in_memory)
    model = without_functions(model)
    _drop_weights_from_inputs(model)
    fixed, constants = shapes_in(shapes), constants_in(shapes)
    onnx_shapes.check_inputs(model.graph, fixed, constants)
    onnx_shapes.fix_shapes(model.graph, fixed, constants)
    onnx_shapes.fix_constants(model.graph, constants)
    if _has(model, "Concat"):  # each cache ends with one
        hide_unused_rows(model, limits)
    return model


def _has(model: onnx.ModelProto, *operators: str) -> bool:
    """Whether a node of the model, or of its subgraphs, is one of these operators."""
    return any(node.op_type in operators for node in onnx_graph.all_nodes(model.graph.node))


def _read(
    model: onnx.ModelProto,
    *,
    limits: Limits,
    captured: ComputedConstants,
    recurrences: bool,
    apart: Weights,
    is_branch: bool,
) -> tvm.IRModule:
    """Fold, slim and import a model with fixed shapes, or a branch of one; `captured` are constants of branches."""
    inputs = [copy.deepcopy(value) for value in model.graph.input]
    # A part of a message would hold all weights.
    last = onnx_graph.described(model.graph.node[-1]) if model.graph.node else ""
    opset = onnx_graph.opset_of(model)
    try:
        Folding(model, limits).run()
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise BadModel(f"has a graph that cannot be read: {first_line(error)}; export the model again") from error
    if recurrences and _has(model, *PRODUCTS):
        roll_up(model, limits)
    read = partial(_read, limits=limits, captured=captured, recurrences=recurrences, apart={}, is_branch=True)
    branches = Branches(model, opset, read, captured) if _has(model, "If") else None
    outlines = _set_aside(model.graph, {*apart, *_left_alone(model)})
    model = _slimmed(model)
    model.graph.initializer.extend(outlines)
    if outlines:
        del outlines
        gc.collect()  # cycles hold the model as it was, with all weights
    _share_weights(model.graph)
    _restore_inputs(model.graph, inputs)
    if not model.graph.node and not is_branch:
        where = f", such as that of {last}" if last else ""
        raise BadModel(f"has nothing to tune: its outputs are constants{where}; tune a model that computes from inputs")
    return _import(model, branches, apart)


def _read_weights(graph: onnx.GraphProto, weights: Weights) -> None:
    for tensor in graph.initializer:
        if tensor.name in weights:
            tensor.ClearField("data_location")
            tensor.raw_data = weights[tensor.name].read()


def _left_alone(model: onnx.ModelProto) -> set[str]:
    """Large weights that only products and tables read: slimming, which copies all that it sees, does not change them.
    None of a model that is not large.
    """
    if model.ByteSize() < _ALONE_FROM_BYTES:
        return set()
    large = {each.name for each in model.graph.initializer if len(each.raw_data) >= LEAST_BYTES}
    others = (node for node in onnx_graph.all_nodes(model.graph.node) if node.op_type not in _READERS)
    return large.difference(
        *(onnx_graph.names_read(node) for node in others), (each.name for each in model.graph.output)
    )


def _set_aside(graph: onnx.GraphProto, apart: AbstractSet[str]) -> list[onnx.TensorProto]:
    """The weights of these names, which are inputs of the graph while it is slimmed."""
    outlines = [tensor for tensor in graph.initializer if tensor.name in apart]
    others = [tensor for tensor in graph.initializer if tensor.name not in apart]
    if outlines:
        del graph.initializer[:]
        graph.initializer.extend(others)
    for each in outlines:
        graph.input.append(helper.make_tensor_value_info(each.name, each.data_type, each.dims))
    return outlines


def _parse(data: bytes) -> onnx.ModelProto:
    model = onnx_graph.parsed(data)
    if model is None:
        if data.startswith(_IR_VERSION_FIELD) and len(data) > 1 and data[1] < 32:
            raise BadModel("is a damaged or truncated ONNX file; copy or export it again")
        raise BadModel("is not an ONNX file; export the model to ONNX first")
    if not model.ir_version:
        raise BadModel("is not an ONNX file: it names no IR version; export the model to ONNX first")
    if not model.graph.node:
        raise BadModel("has nothing to tune: its graph has no node (or the file is truncated)")
    return model


def _drop_weights_from_inputs(model: onnx.ModelProto) -> None:
    inputs = onnx_graph.inputs_of(model.graph)
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, _SEPARATE_INITIALIZERS_IR)


def _slimmed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The slimmed model, or as it was when slimming fails, which may change its argument half-way."""
    size = model.ByteSize()
    with errors_of_the_disk(), io.BytesIO() if size < _IN_MEMORY_BYTES else tempfile.TemporaryFile() as before:
        before.write(model.SerializeToString())
        try:
            with hushed():
                made = _slim(model)
            _check_names(made.graph)
            return made
        except Exception as error:  # noqa: BLE001  third-party graph rewriting raises anything; it goes on unslimmed
            _log.info("slimming failed: %s", first_line(error))
            before.seek(0)
            return onnx.load_from_string(before.read())
        finally:
            if size >= _IN_MEMORY_BYTES:
                _forget_slimmed()


def _check_names(graph: onnx.GraphProto) -> None:
    """Raises ValueError where slimming has dropped a node whose output is read."""
    made = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    made.update(name for node in graph.node for name in node.output)
    missing = next(
        (name for node in graph.node for name in onnx_graph.names_read(node) if name and name not in made), None
    )
    if missing is not None:
        raise ValueError(f"'{missing}' is dropped")


def _forget_slimmed() -> None:
    """Free the graph of `onnxslim`, which holds all weights: it is full of cycles, and patterns keep the last nodes
    that they were compared with.
    """
    for pattern in itertools.chain.from_iterable(DEFAULT_FUSION_PATTERNS.values()):
        for name in pattern.pattern_dict:
            vars(pattern).pop(name, None)
    gc.collect()


def _slim(model: onnx.ModelProto) -> onnx.ModelProto:
    """Raises ValueError for a model that could take unbounded time to slim."""
    readers = Counter(name for node in model.graph.node for name in node.input if name)
    if sum(count**2 for count in readers.values()) > _MOST_PAIRS_OF_READERS:
        name, count = readers.most_common(1)[0]
        raise ValueError(f"'{name}' is read by {count:,} nodes, which takes onnxslim a time that grows with the square")
    with _one_thread():
        # It would make one constant of 0.0 and -0.0. All shapes are known: to infer them again, it copies the weights
        # for many a node.
        return onnxslim.slim(model, no_shape_infer=True, skip_optimizations=["weight_tying"])


def _share_weights(graph: onnx.GraphProto) -> None:
    """Keep one of several weights with the same bytes. `onnxslim` makes a Gemm of a product and a sum, with a weight of
    its own: where layers share their weights, each would have a copy.
    """
    first: dict[tuple[int, tuple[int, ...], bytes], str] = {}
    own_names: dict[str, str] = {}
    for tensor in graph.initializer:
        if len(tensor.raw_data) >= _SHARED_BYTES:
            key = tensor.data_type, tuple(tensor.dims), hashlib.sha256(tensor.raw_data).digest()
            own_names[tensor.name] = first.setdefault(key, tensor.name)
    for node in onnx_graph.all_nodes(graph.node):
        for at, name in enumerate(node.input):
            node.input[at] = own_names.get(name, name)
    outputs = {value.name for value in graph.output}
    for at in reversed(range(len(graph.initializer))):
        name = graph.initializer[at].name
        if name not in outputs and own_names.get(name, name) != name:
            del graph.initializer[at]


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Within the block, sessions of ONNX Runtime have one thread. Where it is installed, `onnxslim` computes constants
    with it. By default it places a thread on each core, which a sandbox refuses.
    """
    try:
        import onnxruntime
    except ImportError:
        yield
        return
    session, options = onnxruntime.InferenceSession, onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    onnxruntime.InferenceSession = partial(session, sess_options=options)
    try:
        yield
    finally:
        onnxruntime.InferenceSession = session


def _restore_inputs(graph: onnx.GraphProto, inputs: Sequence[onnx.ValueInfoProto]) -> None:
    """Put back the inputs that slimming dropped, because callers pass them. Inputs without numbers stay out."""
    left = {value.name for value in graph.input}
    kept = [value for value in inputs if value.name in left or _is_numeric(value)]
    del graph.input[:]
    graph.input.extend(kept)


def _is_numeric(value: onnx.ValueInfoProto) -> bool:
    kind = value.type.tensor_type.elem_type
    return bool(kind) and helper.tensor_dtype_to_np_dtype(kind).kind in "biuf"


def _import(model: onnx.ModelProto, branches: Branches | None, apart: Weights) -> tvm.IRModule:
    try:
        with hushed():
            return from_onnx(model, branches, apart)
    except BadModel:
        raise
    except Exception as error:
        _log.info("the graph cannot be read: %s", first_line(error))
        raise BadModel("has inputs, weights or outputs that cannot be read; export it again") from error
