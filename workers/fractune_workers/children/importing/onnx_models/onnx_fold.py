"""Infers the shapes of an ONNX graph with fixed inputs, and folds its shape arithmetic.

`onnxslim` folds most of it. It stops at chains like Shape -> Slice -> Cast -> Concat -> Reshape, where one link is a
`ConstantOfShape` or a `Cast`. TVM's importer then sees a computed shape and gives up. Here every node is visited once,
in order. ONNX infers the node's output shapes from its input shapes and the small constants among its inputs. ONNX's
own reference implementation runs a small node over constants.

A node's outputs are sized before any step computes them, and a model with too large tensors or constants is refused.
ONNX's own data propagation (`infer_shapes(data_prop=True)`) does not help here: it holds every element of a propagated
shape, and a chain of `Concat` doubles them with each node.
"""

import math
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from fractune_core.errors import BadModel
from fractune_workers.children.importing import onnx_graph
from fractune_workers.children.importing.decomposing.decomposition import FIRST, LAST
from fractune_workers.children.importing.limits import ComputedConstants, Limits, check_tensor
from fractune_workers.children.importing.onnx_models.decompositions import decomposed, renewed
from fractune_workers.children.importing.onnx_models.onnx_loops import unrolled
from fractune_workers.children.importing.operators import group_query, packed_weights, whole_attention
from fractune_workers.children.importing.operators.quantization import QUANTIZED_LSTM, as_lstm

_LARGEST = 65_536
"""Elements of a constant that still is shape arithmetic; larger ones are weights and stay as they are"""
_MOST_SHAPE_ELEMENTS = 4096
"""Of a constant that ONNX may need to infer a shape: a shape, scales, the sizes of a split"""
UNROLLED = frozenset({"Loop", "Scan"})
_REFUSED_LOOP = "SequenceMap"
_SUM_OF_PRODUCTS = "Einsum"
_PAIR = 2
"""Operands that need no memory but the result's; of more, the products of two are kept"""
_PRODUCT_BYTES = 8
_SHAPE_ARITHMETIC = """
    Abs Add And ArgMax ArgMin BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil Clip Compress
    Concat Constant ConstantOfShape Cos CumSum Div Equal Erf Exp Expand EyeLike Flatten Floor Gather GatherElements
    GatherND Gemm Greater GreaterOrEqual Identity IsInf IsNaN Less LessOrEqual Log MatMul Max Mean Min Mod Mul Neg
    NonZero Not OneHot Or Pad Pow Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean
    ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Round Scatter ScatterElements ScatterND Sigmoid Sign
    Sin Size Slice Softmax Split Sqrt Squeeze Sub Sum Tan Tanh Tile TopK Transpose Trilu Unique Unsqueeze Where Xor
"""
_FOLDED = frozenset(_SHAPE_ARITHMETIC.split())
"""Operators whose reference implementation needs no more memory than their inputs and outputs"""
_SIZED_BY_INPUTS = frozenset({"Compress", "NonZero", "Unique"})
"""Operators with outputs of shapes that depend on values, and with no more elements than their inputs (each
indexed)."""
_NEVER_COMPUTED = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "SequenceEmpty"})
"""Operators over constants that slimming leaves as they are"""


_INFERRED: Mapping[str, Callable[..., dict[str, onnx.TypeProto]]] = {
    **dict.fromkeys(packed_weights.PACKED_WEIGHTS, packed_weights.inferred),
    "com.microsoft.GatherBlockQuantized": packed_weights.inferred_rows,
    "com.microsoft.GroupQueryAttention": group_query.inferred,
    "com.microsoft.RotaryEmbedding": group_query.inferred_turned,
    **dict.fromkeys(whole_attention.UNUSED, whole_attention.inferred),
}
"""By operator of other domains: the types of its outputs from those of its inputs, and from constant inputs"""


@dataclass(frozen=True)
class _TensorFacts:
    """The known facts about a tensor."""

    type: onnx.TypeProto | None = None
    constant: bool = False
    """whether it follows from constants alone"""
    tensor: onnx.TensorProto | None = None
    """its numbers, of a small constant"""

    @property
    def shape(self) -> list[int] | None:
        """Its dimensions when every one is fixed. An inferred 0 counts too: it is an empty tensor."""
        if self.type is None or not self.type.HasField("tensor_type") or not self.type.tensor_type.HasField("shape"):
            return None
        dims = self.type.tensor_type.shape.dim
        return [dim.dim_value for dim in dims] if all(dim.HasField("dim_value") for dim in dims) else None

    @property
    def is_sized(self) -> bool:
        """Whether its size is known. A sequence has no bytes itself: it refers to tensors."""
        return self.shape is not None or (self.type is not None and self.type.HasField("sequence_type"))


class Folding:
    """One walk over a model's graph.

    Raises BadModel for a tensor or constants that would be too large, for a constant of unknown size, and for a
    malformed graph. Raises it also for a loop whose number of iterations is not known.
    """

    def __init__(self, model: onnx.ModelProto, limits: Limits) -> None:
        self._model = model
        self._limits = limits
        self._computed = ComputedConstants(limits)
        self._opset = onnx_graph.opset_of(model)
        """of the file; its own nodes are visited in the words of `_opsets`"""
        if self._opset < FIRST:
            onnx_graph.set_opset(model, LAST)
        self._opsets = {onnx_graph.domain_of(entry.domain): entry.version for entry in model.opset_import}
        self._known: ChainMap[str, _TensorFacts] = ChainMap()
        self._parts = 0
        self._nodes = len(model.graph.node)

    def run(self) -> None:
        """Fold the shape arithmetic of the model, in place, and write down the shapes of its tensors."""
        graph = self._model.graph
        for value in graph.input:
            self._learn(value.name, _TensorFacts(value.type), f"input '{value.name}'")
        self._take_weights(graph.initializer)
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in self.walk(graph.node)]
        del graph.node[:]
        graph.node.extend(nodes)
        self._write(graph)

    def _write(self, graph: onnx.GraphProto) -> None:
        """Write the folded constants that are used into the graph, and the shapes of all other tensors."""
        used = {name for node in graph.node for name in onnx_graph.names_read(node)} | {
            value.name for value in graph.output
        }
        present = {tensor.name for tensor in graph.initializer}
        for name in sorted(used - present):
            value = self._known.get(name)
            if value and value.tensor:
                graph.initializer.append(value.tensor)
        outputs = {value.name: value for value in graph.output}
        del graph.value_info[:]
        for node in graph.node:
            for name in node.output:
                known = self._known.get(name)
                if known and known.type and name in outputs:
                    _complete(outputs[name].type, known.type)
                elif known and known.type:
                    graph.value_info.add(name=name, type=known.type)

    def _take_weights(self, tensors: Iterable[onnx.TensorProto]) -> None:
        for tensor in tensors:
            kind = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
            small = math.prod(tensor.dims) <= _LARGEST
            self._learn(
                tensor.name,
                _TensorFacts(kind, constant=True, tensor=tensor if small else None),
                f"weight '{tensor.name}'",
            )

    def _learn(self, name: str, value: _TensorFacts, what: str) -> int:
        """Bytes of the value, 0 when they are not known."""
        if name in self._known.maps[0]:
            raise BadModel(f"'{name}' is the name of two tensors; export the model again")
        self._known[name] = value
        if value.type is None or value.shape is None:
            return 0
        return check_tensor(value.shape, _element_bytes(value.type.tensor_type.elem_type), what)

    def numbers(self, name: str) -> np.ndarray[Any, Any] | None:
        """The numbers of a small constant; None for any other tensor."""
        known = self._known.get(name)
        return None if known is None or known.tensor is None else numpy_helper.to_array(known.tensor)

    def shape(self, name: str) -> list[int] | None:
        """The dimensions of a tensor if all are fixed, else None."""
        return self._known.get(name, _TensorFacts()).shape

    def sources(self, name: str) -> list[str]:
        """The inputs of the model that a tensor follows from; none where a subgraph computes it."""
        nodes = self._model.graph.node
        found = {name}.union(*(onnx_graph.names_read(nodes[at]) for at in onnx_graph.needed_for([name], nodes)))
        return [value.name for value in self._model.graph.input if value.name in found]

    def add_constant(self, name: str, numbers: np.ndarray[Any, Any]) -> None:
        tensor = numpy_helper.from_array(numbers, name)
        kind = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
        self._learn(name, _TensorFacts(kind, constant=True, tensor=tensor), f"constant '{name}'")

    def add_weights(self, tensors: Iterable[onnx.TensorProto]) -> None:
        """Take weights of a subgraph whose nodes come into the graph around it."""
        added = list(tensors)
        self._take_weights(added)
        if len(self._known.maps) == 1:  # nodes within a subgraph stay
            self._model.graph.initializer.extend(added)

    def count(self, nodes: int, what: str) -> None:
        """Raises BadModel when the model has too many nodes with these."""
        self._nodes += nodes
        self._limits.check_nodes(self._nodes, what)

    def foresee(self, nodes: int, what: str) -> None:
        """Raises BadModel when the model would have too many nodes with these, which are counted later."""
        self._limits.check_nodes(self._nodes + nodes, what)

    def walk(self, nodes: Sequence[onnx.NodeProto]) -> Iterable[onnx.NodeProto]:
        """The nodes that stay of nodes in the words of the file's opset."""
        for node in onnx_graph.in_order(nodes):
            if self._opset >= FIRST or onnx_graph.domain_of(node.domain) or onnx_graph.subgraphs(node):
                yield from self._visit(node)
            else:
                for each in renewed(node, self._types_of_inputs(node), self._opset):
                    yield from self._visit(each)

    def _visit(self, node: onnx.NodeProto) -> Iterable[onnx.NodeProto]:
        if node.op_type in UNROLLED and not onnx_graph.domain_of(node.domain):
            yield from unrolled(node, self._opset, self)
            return
        if node.op_type == _REFUSED_LOOP:
            raise onnx_graph.refusal(node, self._opset, "no loop over a sequence can be imported; export without it")
        branch = self._taken_branch(node)
        if branch is not None:
            self.add_weights(branch.initializer)
            yield from self.walk(branch.node)
            for inner, outer in zip(branch.output, node.output, strict=True):
                if inner.name != outer:
                    yield from self._visit(helper.make_node("Identity", [inner.name], [outer]))
        elif (nodes := self._decomposed(node)) is not None:
            for each in nodes:
                yield from self._visit(each)
        elif not self._fold(node):
            yield node

    def _types_of_inputs(self, node: onnx.NodeProto) -> dict[str, onnx.TypeProto | None]:
        return {name: self._known.get(name, _TensorFacts()).type for name in node.input if name}

    def _decomposed(self, node: onnx.NodeProto) -> Sequence[onnx.NodeProto] | None:
        """The nodes that a node is decomposed into; None where it stays."""
        nodes = decomposed(node, self._types_of_inputs(node), self._opsets.get("", 1))
        if nodes is not None:
            self.count(len(nodes), f"the model, with operators like {onnx_graph.described(node)} decomposed,")
        return nodes

    def _taken_branch(self, node: onnx.NodeProto) -> onnx.GraphProto | None:
        """The branch that an `If` with a constant condition takes."""
        known = self._known.get(node.input[0]) if node.op_type == "If" and node.input else None
        if known is None or known.tensor is None:
            return None
        name = "then_branch" if bool(numpy_helper.to_array(known.tensor).item()) else "else_branch"
        return next((each.g for each in node.attribute if each.name == name), None)

    def _fold(self, node: onnx.NodeProto) -> bool:
        """Learn the node's outputs; whether all of them are known numbers now."""
        inputs = {name: self._known.get(name, _TensorFacts()) for name in node.input if name}
        types = self._types(node, inputs)
        self._count_parts(node, inputs)
        sized = all(_TensorFacts(types.get(name)).shape is not None for name in node.output if name)
        constant = all(value.constant for value in inputs.values()) and (sized or node.op_type not in _NEVER_COMPUTED)
        if not constant:
            # A step of 0 or a scale that is NaN: the converter has the reason.
            types = {name: kind for name, kind in types.items() if min(_TensorFacts(kind).shape or [0]) >= 0}
        tensors = self._tensors(node, inputs, types) if constant or node.op_type == "Shape" else []
        for index, name in enumerate(node.output):
            tensor = tensors[index] if tensors else None
            kind = helper.make_tensor_type_proto(tensor.data_type, tensor.dims) if tensor else types.get(name)
            value = _TensorFacts(kind, constant or tensor is not None, tensor)
            size = self._learn(name, value, onnx_graph.described(node)) if name else 0
            if constant:
                self._computed.take(size, onnx_graph.described(node))
        if constant:
            self._count_work(node, inputs)
        return bool(tensors)

    def _types(self, node: onnx.NodeProto, inputs: dict[str, _TensorFacts]) -> dict[str, onnx.TypeProto]:
        """The types of its outputs, as far as ONNX can infer them."""
        inner = [self._inner_types(graph) for graph in onnx_graph.subgraphs(node)]
        if inner:  # the types that both branches share
            found = zip(node.output, *inner, strict=False)
            return {name: kinds[0] for name, *kinds in found if all(kind == kinds[0] for kind in kinds)}
        if any(value.type is None for value in inputs.values()):
            return {}
        tensors = {name: value.tensor for name, value in inputs.items() if value.tensor}
        kinds = {name: value.type for name, value in inputs.items() if value.type}
        if onnx_graph.operator_of(node) in QUANTIZED_LSTM:
            node, kinds = as_lstm(node, kinds)
        try:
            if onnx_graph.operator_of(node) in _INFERRED:
                return _INFERRED[onnx_graph.operator_of(node)](node, kinds, tensors)
            return dict(
                shape_inference.infer_node_outputs(
                    self._schema(node),
                    node,
                    kinds,
                    {name: each for name, each in tensors.items() if math.prod(each.dims) <= _MOST_SHAPE_ELEMENTS},
                    opset_imports=list(self._model.opset_import),
                    ir_version=self._model.ir_version,
                )
            )
        except Exception:  # noqa: BLE001  an operator that ONNX does not know, or whose inputs do not fit it
            return {}

    def _schema(self, node: onnx.NodeProto) -> defs.OpSchema:
        """ONNX's description of the operator, in the newest version for one that the model's opset lacks."""
        try:
            return defs.get_schema(node.op_type, self._opsets.get(node.domain, 1), node.domain)
        except defs.SchemaError:
            return defs.get_schema(node.op_type, node.domain)

    def _inner_types(self, graph: onnx.GraphProto) -> list[onnx.TypeProto]:
        """The types of a subgraph's outputs. The nodes in it are sized, and stay."""
        outer = self._known
        self._known = outer.new_child()
        try:
            self._take_weights(graph.initializer)
            for _ in self.walk(graph.node):
                pass
            known = [self._known.get(value.name, _TensorFacts()) for value in graph.output]
        finally:
            self._known = outer
        return [value.type or onnx.TypeProto() for value in known]

    def _tensors(
        self, node: onnx.NodeProto, inputs: dict[str, _TensorFacts], types: dict[str, onnx.TypeProto]
    ) -> list[onnx.TensorProto]:
        """The numbers of its outputs where they are small and follow from known values; else none."""
        if onnx_graph.domain_of(node.domain) or "" in node.output:
            return []
        if node.op_type == "Shape":
            shape = inputs[node.input[0]].shape
            return [] if shape is None else [numpy_helper.from_array(_shape_slice(node, shape), node.output[0])]
        if node.op_type not in _FOLDED or any(value.tensor is None for value in inputs.values()):
            return []
        shapes = [_TensorFacts(types.get(name)).shape for name in node.output]
        small = all(shape is not None and math.prod(shape) <= _LARGEST for shape in shapes)
        if not small and node.op_type not in _SIZED_BY_INPUTS:
            return []
        try:
            values = zip(node.output, self._evaluate(node, inputs), strict=True)
            return [numpy_helper.from_array(np.asarray(each), name) for name, each in values]
        except Exception:  # noqa: BLE001  the reference implementation raises anything; the node stays
            return []

    def _evaluate(self, node: onnx.NodeProto, inputs: dict[str, _TensorFacts]) -> Iterable[object]:
        anything = onnx.TypeProto()
        graph = helper.make_graph(
            [node],
            "node",
            [helper.make_value_info(name, anything) for name in inputs],
            [helper.make_value_info(name, anything) for name in node.output],
        )
        alone = helper.make_model(graph, opset_imports=self._model.opset_import, ir_version=self._model.ir_version)
        arrays = {name: numpy_helper.to_array(value.tensor) for name, value in inputs.items() if value.tensor}
        return list(ReferenceEvaluator(alone).run(None, arrays))

    def _count_work(self, node: onnx.NodeProto, inputs: dict[str, _TensorFacts]) -> None:
        """Count the memory that a constant's computation needs beside its result. Raises BadModel where its size is not
        known.
        """
        if any(not self._known[name].is_sized for name in node.output if name):
            raise BadModel(
                f"{onnx_graph.described(node)} computes a constant whose size is not known before; export it as a "
                "weight"
            )
        shapes = [value.shape or [] for value in inputs.values()]
        if node.op_type == _SUM_OF_PRODUCTS and len(shapes) > _PAIR:
            products = math.prod(math.prod(shape) for shape in shapes)
            self._computed.take(products * _PRODUCT_BYTES, onnx_graph.described(node))

    def _count_parts(self, node: onnx.NodeProto, inputs: dict[str, _TensorFacts]) -> None:
        """Count the parts of splits: the importer makes a node of each."""
        numbers = {each.name: each.i for each in node.attribute}
        if node.op_type == "Split":
            self._parts += max(numbers.get("num_outputs", 0), len(node.output))
        elif node.op_type == "SplitToSequence":
            shape = inputs[node.input[0]].shape if node.input else None
            axis = numbers.get("axis", 0)
            self._parts += shape[axis] if shape and -len(shape) <= axis < len(shape) else 1
        self._limits.check_nodes(self._parts, f"the model, up to {onnx_graph.described(node)}, split into parts")


def _shape_slice(node: onnx.NodeProto, shape: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    bounds = {each.name: each.i for each in node.attribute}
    return np.asarray(shape[bounds.get("start", 0) : bounds.get("end", len(shape))], dtype=np.int64)


def _complete(declared: onnx.TypeProto, inferred: onnx.TypeProto) -> None:
    """Give a graph's output the shape that was inferred, and the type where the graph states none."""
    if declared.WhichOneof("value") is None:
        declared.CopyFrom(inferred)
    if declared.HasField("tensor_type") and inferred.HasField("tensor_type"):
        declared.tensor_type.shape.CopyFrom(inferred.tensor_type.shape)


def _element_bytes(kind: int) -> int:
    try:
        return max(1, helper.tensor_dtype_to_np_dtype(kind).itemsize)
    except KeyError:
        return 1
