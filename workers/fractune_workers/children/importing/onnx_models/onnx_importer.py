"""TVM's ONNX importer with our converters before its own.

TVM's importer knows operators by their names alone. Here an operator of another domain is another operator, a node's
converter is looked up in `CONVERTERS` first, and a refusal names the node.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx
import onnx.numpy_helper
import tvm
from onnx import checker, defs, helper
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from fractune_core.errors import BadModel, first_line
from fractune_core.operators import unknown_text
from fractune_workers.children.importing import onnx_graph
from fractune_workers.children.importing.onnx_models.onnx_branches import BRANCHES, Branches, with_sections
from fractune_workers.children.importing.operators import onnx_node
from fractune_workers.children.importing.operators.corrected import CORRECTED
from fractune_workers.children.importing.operators.fourier import FOURIER
from fractune_workers.children.importing.operators.group_query import GROUP_QUERY, ROTARY
from fractune_workers.children.importing.operators.packed_weights import GATHER_BLOCKS, PACKED_WEIGHTS
from fractune_workers.children.importing.operators.quantization import INTEGER_PRODUCTS, QUANTIZATION, QUANTIZED_LSTM
from fractune_workers.children.importing.operators.recurrent import RECURRENT
from fractune_workers.children.importing.operators.whole_attention import UNUSED, WHOLE_ATTENTION
from fractune_workers.children.rewriting.accumulators import HALVES
from fractune_workers.children.rewriting.expressions import is_constant, type_text, with_origins
from fractune_workers.children.tvm_api.scratch_tensors import Weights

# The operators of ONNX that are converted here, by name: those that TVM's importer lacks, or converts with another
# meaning. An operator of another domain than ONNX's own has its domain in front: `com.microsoft.QGemm`.

CONVERTERS: Mapping[str, onnx_node.Converter] = {
    **BRANCHES,
    **CORRECTED,
    **FOURIER,
    **GATHER_BLOCKS,
    **GROUP_QUERY,
    **INTEGER_PRODUCTS,
    **PACKED_WEIGHTS,
    **QUANTIZATION,
    **QUANTIZED_LSTM,
    **RECURRENT,
    **ROTARY,
    **UNUSED,
    **WHOLE_ATTENTION,
}

LATE = (
    "is known only when the model runs; make the input that decides it a constant with --input NAME=const:VALUE, or "
    "export with fixed shapes"
)
_PARAMETERS: Mapping[str, Sequence[int]] = {
    "ConstantOfShape": (0,),
    "CumSum": (1,),
    "Expand": (1,),
    "MaxUnpool": (2,),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}
"""By operator: the inputs that decide sizes and places, which kernels have as constants"""
_MOST_NUMBERS = 8
"""of a constant"""
_MOST_CHARACTERS = 60
"""of an attribute's value"""


def why_unfit(node: onnx.NodeProto, inputs: Sequence[Any], opset: int) -> str:
    """The reason and a remedy for a node at which a converter fails without one. `inputs`: its values in Relax."""
    invalid = what_is_invalid(node, opset)
    if invalid:
        return f"it is not valid ONNX ({invalid}); export the model again"
    named = {name: value for name, value in zip(node.input, inputs, strict=False) if name and value is not None}
    late = next((name for name, value in named.items() if has_open_shape(value)), None)
    if late is not None:
        return f"its input '{late}' has a size that {LATE}"
    parameters = [node.input[at] for at in _parameters(node) if at < len(node.input) and node.input[at]]
    computed = next((name for name, value in named.items() if name in parameters and not _is_fixed(value)), None)
    if computed is not None:
        return f"its input '{computed}' is computed, and {LATE}"
    given = ", ".join([*(f"'{name}' {_type(value)}" for name, value in named.items()), *_attributes(node)])
    return f"no kernel takes {given or 'nothing'}; export it with other types, shapes or attributes"


def has_open_shape(value: Any) -> bool:
    """Whether the value is a computed shape, or a tensor of the shape that a variable holds."""
    kind = getattr(value, "ty", None)
    if isinstance(kind, relax.ShapeType):
        return not isinstance(value, relax.ShapeExpr)
    return isinstance(kind, relax.TensorType) and isinstance(kind.shape, relax.Var)


def mistyped_attributes(node: onnx.NodeProto) -> Iterator[str]:
    """Names of attributes whose type is not that of ONNX's operator in its newest version."""
    if onnx_graph.domain_of(node.domain) or not defs.has(node.op_type):
        return
    known: Any = defs.get_schema(node.op_type).attributes
    for each in node.attribute:
        if each.name in known and each.type not in (each.UNDEFINED, int(known[each.name].type.value)):
            yield each.name


def _parameters(node: onnx.NodeProto) -> Sequence[int]:
    return (1,) if node.op_type.startswith("Reduce") else _PARAMETERS.get(node.op_type, ())


def _is_fixed(value: Any) -> bool:
    return is_constant(value) or isinstance(value, relax.ShapeExpr)


def what_is_invalid(node: onnx.NodeProto, opset: int) -> str:
    """What ONNX's own checker finds wrong with the node; empty for nothing, and for a node of another domain."""
    if onnx_graph.domain_of(node.domain):
        return ""
    context = checker.C.CheckerContext()
    context.ir_version = onnx.IR_VERSION
    context.opset_imports = {"": opset, "ai.onnx": opset}
    try:
        checker.check_node(node, context)
    except Exception as error:  # noqa: BLE001  the checker raises several unrelated types
        return first_line(error)
    return ""


def _type(value: Any) -> str:
    kind: Any = getattr(value, "ty", None)
    if is_constant(value) and kind.ndim <= 1 and value.value.numpy().size <= _MOST_NUMBERS:
        return f"{kind.dtype} = {value.value.numpy().tolist()}"
    return type_text(kind)


def _attributes(node: onnx.NodeProto) -> Iterator[str]:
    for each in node.attribute:
        if each.type in (each.INT, each.INTS, each.FLOAT, each.FLOATS, each.STRING):
            value = helper.get_attribute_value(each)
            yield f"{each.name}={onnx_graph.text_of(value)[:_MOST_CHARACTERS]}"


# Operators of half precision that are computed in float32 and rounded once, as ONNX Runtime computes them.
#
# They become several operators of Relax, or have no kernel of half precision. A square of half precision is infinite
# from 256 on, and an exponential from 12 on, though the result would fit.

_WIDE = "float32"
_SEVERAL = """
    Celu Det Elu GlobalLpPool GridSample HardSigmoid HardSwish InstanceNormalization IsInf IsNaN LpNormalization LpPool
    LRN MeanVarianceNormalization Mish PRelu ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare Resize Selu
    Sign Softsign Swish ThresholdedRelu Upsample
"""
"""by ONNX's names"""


def is_widened(node: onnx.NodeProto) -> bool:
    """Whether the operator is computed in float32 where it has half precision."""
    return onnx_graph.operator_of(node) in _SEVERAL.split()


def widened(convert: onnx_node.Converter, node: onnx_node.OnnxNode) -> Any:
    """The node's outputs, converted from its inputs in float32 and rounded to their type."""
    halves = [each for each in map(node.optional, range(len(node.inputs))) if each is not None and _is_half(each)]
    if not halves:
        return convert(node)
    inputs = [
        node.emit(relax.op.astype(each, _WIDE)) if each is not None and _is_half(each) else each
        for each in map(node.optional, range(len(node.inputs)))
    ]
    made = convert(node.with_inputs(inputs))
    outputs = list(made) if isinstance(made, list | tuple | relax.Tuple) else [made]
    return [
        _rounded(node, at, node.builder.normalize(each), onnx_node.dtype_of(halves[0]))
        for at, each in enumerate(outputs)
    ]


def _is_half(value: relax.Expr) -> bool:
    return isinstance(value.ty, relax.TensorType) and onnx_node.dtype_of(value) in HALVES


def _rounded(node: onnx_node.OnnxNode, at: int, value: relax.Expr, dtype: str) -> relax.Expr:
    """An output in its type: statistics of a normalisation are in float32."""
    name = node.proto.output[at] if at < len(node.proto.output) else ""
    is_kept = onnx_node.dtype_of(value) != _WIDE or node.importer.element_types.get(name) == onnx.TensorProto.FLOAT
    return value if is_kept else relax.op.astype(value, dtype)


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


def from_onnx(model: onnx.ModelProto, branches: Branches | None, apart: Weights) -> tvm.IRModule:
    """The model as a Relax module with the entry `main`; the numbers of weights `apart` are not in the model. Raises
    BadModel for a node that cannot be imported, and other errors where the graph around the nodes cannot be read.
    """
    importer = Importer(element_types(model.graph), branches, apart)
    mod = importer.from_onnx(model.graph, onnx_graph.opset_of(model))
    mod = with_origins(mod, importer.origins)
    return with_sections(mod) if branches else mod


def is_known(node: onnx.NodeProto) -> bool:
    """Whether there is a converter for the node's operator."""
    if onnx_graph.operator_of(node) in CONVERTERS:
        return True
    known = onnx_frontend._get_convert_map()  # noqa: SLF001  TVM offers no other list
    return not onnx_graph.domain_of(node.domain) and node.op_type in known and node.op_type not in _NOT_ONNX.split()


def _is_checked(node: onnx.NodeProto) -> bool:
    """Whether the types of a node's inputs are checked before it is converted: our other converters say more."""
    return onnx_graph.operator_of(node) not in CONVERTERS or onnx_graph.operator_of(node) in CORRECTED


def element_types(graph: onnx.GraphProto) -> dict[str, int]:
    """By name: ONNX's number of the type of a tensor's elements, as far as the graph states it."""
    values = [*graph.input, *graph.output, *graph.value_info]
    stated = {value.name: value.type.tensor_type.elem_type for value in values}
    return {**stated, **{tensor.name: tensor.data_type for tensor in graph.initializer}}


class Importer(onnx_frontend.ONNXGraphImporter):
    _nodes: dict[str, Any]
    """by name: the values so far"""

    def __init__(self, element_types: dict[str, int], branches: Branches | None, apart: Weights) -> None:
        """`element_types`: ONNX's numbers of the types of tensors, by name."""
        self._apart = apart
        as_bytes = {
            name: onnx_node.AS_BYTES[kind] for name, kind in element_types.items() if kind in onnx_node.AS_BYTES
        }
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
            others = sorted({onnx_graph.operator_of(node) for node in unknown} - {onnx_graph.operator_of(unknown[0])})
            raise self.refused(unknown[0], unknown_text(others))

        for node in graph.node:
            self._check_types(node)

    def _check_types(self, node: onnx.NodeProto) -> None:
        """Raises BadModel where the node reads or makes numbers of a type that no kernel computes with."""
        for at, name in enumerate(node.input):
            kind = self.element_types.get(name, 0)
            if _is_checked(node) and not onnx_node.takes(node, at, kind):
                given = f"'{name}' has elements of type {onnx_node.kind_name(kind)}"
                raise self.refused(node, f"{given}, which ONNX's operator does not take; cast it before")
        for name in [*node.input, *node.output]:
            unreadable = onnx_node.WITHOUT_KERNELS.get(self.element_types.get(name, 0))
            if unreadable:
                given = f"'{name}' has elements of type {unreadable}"
                raise self.refused(node, f"{given}, which no kernel reads; export it with float32 or as int8")

    def _construct_nodes(self, graph: onnx.GraphProto) -> None:
        for node in graph.node:
            self.convert(node)
        missing = next((value.name for value in graph.output if value.name not in self._nodes), None)
        if missing is not None:
            raise BadModel(f"no node makes its output '{missing}'; export the model again")
        results = {value.name for value in graph.output if onnx_node.is_empty(self._nodes[value.name])}
        for node in graph.node:
            empty = next((name for name in node.output if name in results), None)
            if empty is not None:
                raise self.refused(node, f"the model's output '{empty}' is empty; export it without this output")

    def convert(self, node: onnx.NodeProto) -> None:
        """Convert one node, and name its outputs."""
        unknown = next((name for name in node.input if name and name not in self._nodes), None)
        if unknown is not None:
            known = self.branches.original(node) if self.branches else node
            raise self.refused(known, f"it reads '{unknown}', which no node makes; export the model again")
        inputs = onnx_frontend.onnx_input(self._nodes[name] if name else None for name in node.input)
        mistyped = next(mistyped_attributes(node), None)
        if mistyped is not None:
            raise self.refused(
                node, f"its attribute '{mistyped}' is of another type than ONNX's; export the model again"
            )
        empty = next((name for name, value in zip(node.input, inputs, strict=True) if onnx_node.is_empty(value)), None)
        if empty is not None and node.op_type not in _TAKE_EMPTY.split():
            raise self.refused(node, f"its input '{empty}' is empty, and no kernel computes with it; export without it")
        try:
            self._name_outputs(node, self._converted(node, inputs))
        except BadModel:
            raise
        except Exception as error:
            _log.info("%s: %s", onnx_graph.described(node), first_line(error))
            raise self.refused(node, why_unfit(node, inputs, self.opset)) from error

    def _converted(self, node: onnx.NodeProto, inputs: list[relax.Expr | None]) -> Any:
        """The outputs of a node; errors are of any kind, because attributes are."""
        attributes = self._parse_attr(node.attribute)
        convert = CONVERTERS.get(onnx_graph.operator_of(node), onnx_node.OnnxNode.by_tvm)
        converted = onnx_node.OnnxNode(node, inputs, attributes, self.opset, self.bb, self)
        return widened(convert, converted) if is_widened(node) else convert(converted)

    def refused(self, node: onnx.NodeProto, why: str) -> BadModel:
        """The error for a node that cannot be imported. `why` says what is wrong, and what to do."""
        return onnx_graph.refusal(node, self.opset, why)

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
                self.origins.append((value, onnx_graph.refusal_of(node, self.opset)))

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
        if tensor.name in self._apart:
            dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type).name
            return self._apart[tensor.name].tensor(dtype, tensor.dims)
        array = onnx.numpy_helper.to_array(tensor)
        as_bytes = onnx_node.AS_BYTES.get(tensor.data_type)
        return tvm.runtime.tensor(array.astype(as_bytes) if as_bytes else array)
