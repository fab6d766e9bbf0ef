"""TVM's ONNX importer with our converters before its own.

TVM's importer knows operators by their names alone. Here an operator of another domain is another operator, a node's
converter is looked up in `CONVERTERS` first, and a refusal names the node.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import onnx
import onnx.numpy_helper
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from fractune_core.errors import BadModel, first_line
from fractune_core.refusals import unknown_text
from fractune_workers.children.importing.onnx_graph import (
    described,
    domain_of,
    operator_of,
    opset_of,
    refusal,
    refusal_of,
)
from fractune_workers.children.importing.onnx_models.onnx_branches import Branches
from fractune_workers.children.importing.onnx_models.onnx_converters import CONVERTERS
from fractune_workers.children.importing.onnx_models.sections import with_sections
from fractune_workers.children.importing.onnx_models.unfit import (
    LATE,
    has_open_shape,
    mistyped_attributes,
    why_unfit,
)
from fractune_workers.children.importing.operators.corrected import CORRECTED
from fractune_workers.children.importing.operators.element_types import AS_BYTES, WITHOUT_KERNELS, kind_name, takes
from fractune_workers.children.importing.operators.half_precision import is_widened, widened
from fractune_workers.children.importing.operators.onnx_node import OnnxNode, is_empty
from fractune_workers.children.rewriting.origins import with_origins

_log = logging.getLogger(__name__)
_SEQUENCES = """
    Optional OptionalGetElement SequenceConstruct SequenceEmpty SequenceErase SequenceInsert ConcatFromSequence
    SplitToSequence
"""
"""Operators with one output that is a tuple in Relax"""
_TAKE_SHAPES = "Cast CastLike Concat ConstantOfShape Equal Expand Gather Reshape Resize Shape Slice Squeeze Where"
"""Operators whose converters in TVM take a shape in place of a tensor"""
_TAKE_EMPTY = "Cast CastLike Concat Flatten Identity Pad Reshape Shape Size Slice Squeeze Tile Transpose Unsqueeze"
"""Operators that only move what they read. A kernel that sums over no element would leave its result unset."""
_NOT_ONNX = "AllClassNMS Attention BiasGelu EmbedLayerNormalization FastGelu MatMulInteger16 SkipLayerNormalization"
"""Names by which TVM's importer knows operators of other domains; it looks at no domain."""


def from_onnx(model: onnx.ModelProto, branches: Branches) -> tvm.IRModule:
    """The model as a Relax module with the entry `main`. Raises BadModel for a node that cannot be imported, and other
    errors where the graph around the nodes cannot be read.
    """
    importer = Importer(element_types(model.graph), branches)
    mod = importer.from_onnx(model.graph, opset_of(model))
    return with_sections(with_origins(mod, importer.origins))


def is_known(node: onnx.NodeProto) -> bool:
    """Whether there is a converter for the node's operator."""
    if operator_of(node) in CONVERTERS:
        return True
    known = onnx_frontend._get_convert_map()  # noqa: SLF001  TVM offers no other list
    return not domain_of(node.domain) and node.op_type in known and node.op_type not in _NOT_ONNX.split()


def _is_checked(node: onnx.NodeProto) -> bool:
    """Whether the types of a node's inputs are checked before it is converted: our other converters say more."""
    return operator_of(node) not in CONVERTERS or operator_of(node) in CORRECTED


def element_types(graph: onnx.GraphProto) -> dict[str, int]:
    """By name: ONNX's number of the type of a tensor's elements, as far as the graph states it."""
    values = [*graph.input, *graph.output, *graph.value_info]
    stated = {value.name: value.type.tensor_type.elem_type for value in values}
    return {**stated, **{tensor.name: tensor.data_type for tensor in graph.initializer}}


class Importer(onnx_frontend.ONNXGraphImporter):
    _nodes: dict[str, Any]
    """by name: the values so far"""

    def __init__(self, element_types: dict[str, int], branches: Branches) -> None:
        """`element_types`: ONNX's numbers of the types of tensors, by name."""
        as_bytes = {name: AS_BYTES[kind] for name, kind in element_types.items() if kind in AS_BYTES}
        super().__init__({}, as_bytes)
        self.element_types = element_types
        self.branches = branches
        self.origins: list[tuple[Any, str]] = []
        """Values of outputs, and the beginning of a refusal of their nodes"""
        self.packed_weights: dict[str, tuple[int, list[relax.Expr]]] = {}
        """By the name of a dequantized constant matrix that is kept with four bits (`keep_packed`): its depth, and the
        operands of a product with it"""

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        unknown = [node for node in graph.node if not is_known(node)]
        if unknown:
            others = sorted({operator_of(node) for node in unknown} - {operator_of(unknown[0])})
            raise self.refused(unknown[0], unknown_text(others))

        for node in graph.node:
            self._check_types(node)

    def _check_types(self, node: onnx.NodeProto) -> None:
        """Raises BadModel where the node reads or makes numbers of a type that no kernel computes with."""
        for at, name in enumerate(node.input):
            kind = self.element_types.get(name, 0)
            if _is_checked(node) and not takes(node, at, kind):
                given = f"'{name}' has elements of type {kind_name(kind)}"
                raise self.refused(node, f"{given}, which ONNX's operator does not take; cast it before")
        for name in [*node.input, *node.output]:
            unreadable = WITHOUT_KERNELS.get(self.element_types.get(name, 0))
            if unreadable:
                given = f"'{name}' has elements of type {unreadable}"
                raise self.refused(node, f"{given}, which no kernel reads; export it with float32 or as int8")

    def _construct_nodes(self, graph: onnx.GraphProto) -> None:
        for node in graph.node:
            self.convert(node)
        missing = next((value.name for value in graph.output if value.name not in self._nodes), None)
        if missing is not None:
            raise BadModel(f"no node makes its output '{missing}'; export the model again")
        results = {value.name for value in graph.output if is_empty(self._nodes[value.name])}
        for node in graph.node:
            empty = next((name for name in node.output if name in results), None)
            if empty is not None:
                raise self.refused(node, f"the model's output '{empty}' is empty; export it without this output")

    def convert(self, node: onnx.NodeProto) -> None:
        """Convert one node, and name its outputs."""
        unknown = next((name for name in node.input if name and name not in self._nodes), None)
        if unknown is not None:
            known = self.branches.original(node)
            raise self.refused(known, f"it reads '{unknown}', which no node makes; export the model again")
        inputs = onnx_frontend.onnx_input(self._nodes[name] if name else None for name in node.input)
        mistyped = next(mistyped_attributes(node), None)
        if mistyped is not None:
            raise self.refused(
                node, f"its attribute '{mistyped}' is of another type than ONNX's; export the model again"
            )
        empty = next((name for name, value in zip(node.input, inputs, strict=True) if is_empty(value)), None)
        if empty is not None and node.op_type not in _TAKE_EMPTY.split():
            raise self.refused(node, f"its input '{empty}' is empty, and no kernel computes with it; export without it")
        try:
            self._name_outputs(node, self._converted(node, inputs))
        except BadModel:
            raise
        except Exception as error:
            _log.info("%s: %s", described(node), first_line(error))
            raise self.refused(node, why_unfit(node, inputs, self.opset)) from error

    def _converted(self, node: onnx.NodeProto, inputs: list[relax.Expr | None]) -> Any:
        """The outputs of a node; errors are of any kind, because attributes are."""
        attributes = self._parse_attr(node.attribute)
        convert = CONVERTERS.get(operator_of(node), OnnxNode.by_tvm)
        converted = OnnxNode(node, inputs, attributes, self.opset, self.bb, self)
        return widened(convert, converted) if is_widened(node) else convert(converted)

    def refused(self, node: onnx.NodeProto, why: str) -> BadModel:
        """The error for a node that cannot be imported. `why` says what is wrong, and what to do."""
        return refusal(node, self.opset, why)

    def convert_by_tvm(self, node: onnx.NodeProto, inputs: list[relax.Expr | None], attributes: dict[str, Any]) -> Any:
        """The outputs of a node by TVM's own converter."""
        for value in inputs:
            is_shape = isinstance(value, relax.Expr) and isinstance(value.ty, relax.ShapeType)
            if is_shape and node.op_type not in _TAKE_SHAPES.split():
                raise ValueError("one of its inputs is a shape")
        attributes["tvm_custom"] = {"name": node.name, "num_outputs": len(node.output)}
        value = self._convert_operator(node.op_type, inputs, attributes, self.opset)
        return [value] if node.op_type in _SEQUENCES.split() else value

    def _name_outputs(self, node: onnx.NodeProto, result: Any) -> None:
        values = self._fields(result)
        if len(values) < len(node.output) and any(node.output[len(values) :]):
            left = next(filter(None, node.output[len(values) :]))
            raise self.refused(node, f"its output '{left}' is not computed; export it without this output")
        for name, value in zip(node.output, values, strict=False):
            if has_open_shape(value):
                raise self.refused(node, f"'{name}' has a size that {LATE}")
            if name:
                self._nodes[name] = value
                self.origins.append((value, refusal_of(node, self.opset)))

    def _fields(self, result: Any) -> Sequence[Any]:
        """The values of a node's outputs."""
        if isinstance(result, list | tuple):
            return [self.bb.normalize(value) if isinstance(value, relax.Expr) else value for value in result]
        if isinstance(result, relax.Tuple):
            return [self.bb.normalize(field) for field in result.fields]
        if isinstance(result, relax.Expr) and isinstance(self.bb.normalize(result).ty, relax.TupleType):
            bound = self.bb.normalize(result)
            return [self.bb.emit(relax.TupleGetItem(bound, index)) for index in range(len(bound.ty.fields))]
        return [self.bb.normalize(result) if isinstance(result, relax.Expr) else result]

    def _parse_array(self, tensor: onnx.TensorProto) -> tvm.runtime.Tensor:
        array = onnx.numpy_helper.to_array(tensor)
        as_bytes = AS_BYTES.get(tensor.data_type)
        return tvm.runtime.tensor(array.astype(as_bytes) if as_bytes else array)
