"""The branches of an `If` whose condition is known only when the model runs.

Each branch is read like a model of its own: the values around it that it reads are its inputs, or constants. So it is
folded and slimmed by itself, and becomes a function that runs only when it is taken. TVM's importer computes both.

What lies before an `If` and after it becomes functions too (`with_sections`). TVM fuses operators within a dataflow
block, and an `If` stands in none. With the straight parts apart, each function has one dataflow block or none, as every
later pass expects.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import onnx
import tvm
import tvm_ffi
from onnx import helper, numpy_helper
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from fractune_core.errors import BadModel
from fractune_runtime.tvm_runtime.tensors import numpy_dtype
from fractune_workers.children.importing.limits import ComputedConstants
from fractune_workers.children.importing.onnx_graph import captured_by, described, set_opset, subgraphs
from fractune_workers.children.importing.operators.onnx_node import AS_BYTES, Converter, OnnxNode, dtype_of, shape_of
from fractune_workers.children.rewriting import expressions

_IF = "If"
_DOMAIN = "fractune"
_NUMBER = "number"
_SIDES = ("then_branch", "else_branch")
_SEPARATE_INITIALIZERS_IR = 4
_CONST_HINT = "if an input decides which branch is taken, make it a constant with --input NAME=const:VALUE"


class Branches:
    """The branches of one model, set aside while the model around them is slimmed: `onnxslim` breaks what is inside."""

    def __init__(
        self,
        model: onnx.ModelProto,
        opset: int,
        read: Callable[[onnx.ModelProto], tvm.IRModule],
        captured: ComputedConstants,
    ) -> None:
        """`opset`: in whose words the branches are. `read` is all that is done to a model from folding on. `captured`
        counts the constants that branches read.

        Each `If` of the model, in place, becomes a node of another domain that reads all that its branches read.
        """
        self._read, self._captured = read, captured
        self._opset, self._opsets, self._version = (
            opset,
            copy.deepcopy(list(model.opset_import)),  # parts of a message would hold all weights
            max(_SEPARATE_INITIALIZERS_IR, model.ir_version),
        )
        self._nodes: list[onnx.NodeProto] = []
        nodes = [
            self._set_aside(node) if node.op_type == _IF and not node.domain else node for node in model.graph.node
        ]
        if self._nodes:
            del model.graph.node[:]
            model.graph.node.extend(nodes)
            model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))

    def _set_aside(self, node: onnx.NodeProto) -> onnx.NodeProto:
        own = onnx.NodeProto()
        own.CopyFrom(node)
        captured = sorted(set().union(*map(captured_by, subgraphs(node))))
        made = helper.make_node(_IF, [*node.input[:1], *captured], node.output, node.name, domain=_DOMAIN)
        made.attribute.append(helper.make_attribute(_NUMBER, len(self._nodes)))
        self._nodes.append(own)
        return made

    def convert(self, node: OnnxNode) -> relax.Expr:
        """The `If` that the node stands for."""
        own = self.original(node.proto)
        node = replace(node, proto=own)
        condition = _condition(node)
        graphs = {each.name: each.g for each in own.attribute if each.HasField("g")}
        missing = next((name for name in _SIDES if name not in graphs), None)
        if missing is not None:
            raise node.refused(f"it has no graph '{missing}'; export the model again")
        names = sorted(set().union(*map(captured_by, graphs.values())))
        around = dict(zip(names, node.inputs[1:], strict=True))
        calls = [self._call(node, graphs[name], around) for name in _SIDES]
        types = [call.op.ty.ret for call in calls]
        if not tvm_ffi.structural_equal(*types):
            made = " and ".join(map(expressions.type_text, types))
            raise node.refused(f"its branches make {made}, which must be equal; {_CONST_HINT}")
        if shape_of(condition):
            condition = node.emit(relax.op.squeeze(condition))
        return node.emit(relax.If(condition, *(relax.SeqExpr(blocks=[], body=call) for call in calls)))

    def original(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """The `If` that the node stands for, or the node itself."""
        if node.domain != _DOMAIN:
            return node
        return self._nodes[next(each.i for each in node.attribute if each.name == _NUMBER)]

    def _call(self, node: OnnxNode, graph: onnx.GraphProto, values: Mapping[str, Any]) -> relax.Call:
        """A call of the branch, which becomes a function of the node's module. `values`: those around it, by name."""
        around = {name: values[name] for name in sorted(captured_by(graph))}
        try:
            module = self._read(self._model(node, graph, around))
        except BadModel as error:
            raise BadModel(f"a branch of {described(node.proto)}: {error}; {_CONST_HINT}") from error
        arguments = [value for value in around.values() if not expressions.is_constant(value)]
        return relax.Call(_Adopter(node.builder, module).main(), arguments)

    def _model(self, node: OnnxNode, graph: onnx.GraphProto, around: Mapping[str, Any]) -> onnx.ModelProto:
        inputs, constants = [], list(graph.initializer)
        for name, value in around.items():
            if node.importer.element_types.get(name) in AS_BYTES:
                raise node.refused(f"a branch reads '{name}', whose numbers have less than a byte; export without it")
            if expressions.is_constant(value):
                numbers = value.value.numpy()
                self._captured.take(numbers.nbytes, f"'{name}', which a branch of {described(node.proto)} reads,")
                constants.append(numpy_helper.from_array(numbers, name))
            else:
                kind = helper.np_dtype_to_tensor_dtype(numpy_dtype(dtype_of(value)))
                inputs.append(helper.make_tensor_value_info(name, kind, shape_of(value)))
        # An output may be a value from around the branch, which a model cannot pass on without a node.
        nodes, outputs = list(graph.node), []
        for at, output in enumerate(graph.output):
            nodes.append(helper.make_node("Identity", [output.name], [f"{output.name}/{at}"]))
            outputs.append(onnx.ValueInfoProto(name=f"{output.name}/{at}"))
        whole = helper.make_graph(nodes, graph.name or "branch", inputs, outputs, constants)
        made = helper.make_model(whole, opset_imports=self._opsets, ir_version=self._version)
        set_opset(made, self._opset)
        return made


def _condition(node: OnnxNode) -> relax.Expr:
    """Raises BadModel for a condition that is not one bool."""
    condition = node.input(0)
    dtype, shape = dtype_of(condition), shape_of(condition)
    if dtype != "bool" or math.prod(shape) != 1:
        raise node.refused(f"its condition has the type {dtype} and the shape {shape}; it must be one bool")
    return condition


@mutator
class _Adopter(PyExprMutator):
    """Takes the functions of a module into the one that is being built."""

    def __init__(self, builder: relax.BlockBuilder, module: tvm.IRModule) -> None:
        super().__init__()
        self._into, self._module = builder, module
        self._adopted: dict[Any, Any] = {}

    def main(self) -> Any:
        return self._adopt(self._module.get_global_var("main"), "branch")

    def visit_global_var_(self, op: Any) -> Any:
        return self._adopt(op, str(op.name_hint))

    def _adopt(self, name: Any, hint: str) -> Any:
        if name not in self._adopted:
            function = self._module[name]
            if isinstance(function, relax.Function):
                inner = self.visit_expr(function.body)
                function = relax.Function(function.params, inner, function.ret_ty, function.is_pure)
            self._adopted[name] = self._into.add_func(function, hint)
        return self._adopted[name]


BRANCHES: Mapping[str, Converter] = {f"{_DOMAIN}.{_IF}": lambda node: node.importer.branches.convert(node)}


def with_sections(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with the straight parts of each function that has an `If` as functions of their own."""
    branching = {name: function for name, function in expressions.relax_functions(mod).items() if _has_if(function)}
    if not branching:
        return mod
    builder = relax.BlockBuilder(mod)
    for name, function in branching.items():
        builder.update_func(name, _Sections(builder, function).made())
    return relax.transform.Normalize()(builder.get())


def _has_if(function: Any) -> bool:
    return any(isinstance(binding.value, relax.If) for binding in expressions.bindings_of(function))


class _Sections:
    def __init__(self, builder: relax.BlockBuilder, function: Any) -> None:
        self._builder, self._function = builder, function
        self._known: dict[Any, Any] = {}
        """by a variable of the function: the value in the new one"""
        self._made: list[Any] = []

    def made(self) -> Any:
        function = self._function
        bindings, run = expressions.bindings_of(function), list[Any]()
        for at, binding in enumerate(bindings):
            if isinstance(binding.value, relax.If):
                self._section(run, bindings[at:])
                self._bind(binding.var, binding.value)
                run = []
            else:
                run.append(binding)
        self._section(run, [])
        body = relax.SeqExpr([relax.BindingBlock(self._made)], _replaced(function.body.body, self._known))
        return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)

    def _bind(self, var: Any, value: Any) -> Any:
        bound = relax.Var(var.name, var.ty)
        self._made.append(relax.VarBinding(bound, _replaced(value, self._known)))
        self._known[var] = bound
        return bound

    def _section(self, run: Sequence[Any], later: Sequence[Any]) -> None:
        """A call of a function that computes the bindings in `run`; those that only take a tuple apart stay."""
        if not any(isinstance(binding.value, relax.Call) for binding in run):
            for binding in run:
                self._bind(binding.var, binding.value)
            return
        own = dict.fromkeys(binding.var for binding in run)
        read = [var for binding in run for var in _variables(binding.value)]
        free = [var for var in dict.fromkeys(read) if var not in own]
        used = {var for binding in later for var in _variables(binding.value)}
        used.update(_variables(self._function.body.body))
        results = [var for var in own if var in used]
        section = self._builder.add_func(_section_of(run, free, results), "section")
        made = relax.Var("section", relax.TupleType([var.ty for var in results]))
        arguments = [_replaced(var, self._known) for var in free]
        self._made.append(relax.VarBinding(made, relax.Call(section, arguments)))
        for at, var in enumerate(results):
            self._known[var] = relax.Var(var.name, var.ty)
            self._made.append(relax.VarBinding(self._known[var], relax.TupleGetItem(made, at)))


def _section_of(run: Sequence[Any], free: Sequence[Any], results: Sequence[Any]) -> Any:
    """A function of the variables in `free` that returns the `results` of the bindings."""
    params = [relax.Var(var.name, var.ty) for var in free]
    known = dict(zip(free, params, strict=True))
    builder = relax.BlockBuilder()
    with builder.function("section", params, private=True):
        with builder.dataflow():
            for binding in run:
                known[binding.var] = builder.emit(_replaced(binding.value, known), binding.var.name)
            made = builder.emit_output(relax.Tuple([known[var] for var in results]))
        builder.emit_func_output(made)
    return next(iter(builder.get().functions.values()))


def _variables(expr: Any) -> Iterator[Any]:
    if isinstance(expr, relax.Var):
        yield expr
    elif isinstance(expr, relax.If):
        yield from _variables(expr.cond)
        yield from _variables(expr.true_branch)
        yield from _variables(expr.false_branch)
    elif isinstance(expr, relax.SeqExpr):
        for block in expr.blocks:
            for binding in block.bindings:
                yield from _variables(binding.value)
        yield from _variables(expr.body)
    else:
        for part in expressions.operands_of(expr):
            yield from _variables(part)


def _replaced(expr: Any, known: dict[Any, Any]) -> Any:
    """The expression with other variables."""
    if isinstance(expr, relax.Var):
        return known.get(expr, expr)
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([_replaced(field, known) for field in expr.fields])
    if isinstance(expr, relax.TupleGetItem):
        return relax.TupleGetItem(_replaced(expr.tuple_value, known), expr.index)
    if isinstance(expr, relax.Call):
        return relax.Call(expr.op, [_replaced(each, known) for each in expr.args], expr.attrs, expr.ty_args)
    if isinstance(expr, relax.If):
        branches = [_replaced(each, known) for each in (expr.true_branch, expr.false_branch)]
        return relax.If(_replaced(expr.cond, known), *branches)
    if isinstance(expr, relax.SeqExpr):
        # Of a branch: one call, perhaps bound to a variable.
        inner = dict(known)
        bindings = []
        for block in expr.blocks:
            for binding in block.bindings:
                inner[binding.var] = relax.Var(binding.var.name, binding.var.ty)
                bindings.append(relax.VarBinding(inner[binding.var], _replaced(binding.value, inner)))
        blocks = [relax.BindingBlock(bindings)] if bindings else []
        return relax.SeqExpr(blocks, _replaced(expr.body, inner))
    return expr
