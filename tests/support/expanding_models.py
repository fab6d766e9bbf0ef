"""Small files that describe huge models, and the words with which each is refused."""

from collections.abc import Callable
from functools import partial

import numpy as np
import onnx
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from fractune_workers.children.importing.limits import MOST_NODES

OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
HUGE = np.array([2**20, 2**21], np.int64)
ONE = np.array([1], np.int64)

Nodes = list[onnx.NodeProto]
Weights = dict[str, np.ndarray]


def model(nodes: Nodes, weights: Weights | None = None, functions: list[onnx.FunctionProto] | None = None) -> bytes:
    """A model of one input x [4] whose output is that of the last node."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, [4])], [value(nodes[-1].output[0], TensorProto.FLOAT, None)]
    )
    graph.initializer.extend(numpy_helper.from_array(each, name) for name, each in (weights or {}).items())
    return helper.make_model(graph, opset_imports=OPSETS, functions=functions or [], ir_version=8).SerializeToString()


node = helper.make_node


def after(nodes: Nodes, name: str) -> Nodes:
    """With the constant `name` used as a number by what the model computes."""
    return [*nodes, node("Cast", [name], ["number"], to=TensorProto.FLOAT), node("Add", ["x", "number"], ["y"])]


def function(name: str, nodes: Nodes) -> onnx.FunctionProto:
    return helper.make_function("own", name, ["a"], ["b"], nodes, OPSETS)


def twice(name: str) -> Nodes:
    return [node(name, ["a"], ["c"], domain="own"), node(name, ["c"], ["b"], domain="own")]


def nested_functions() -> bytes:
    functions = [function("f0", [node("Relu", ["a"], ["b"])])]
    functions += [function(f"f{level}", twice(f"f{level - 1}")) for level in range(1, 26)]
    return model([node("f25", ["x"], ["y"], domain="own")], functions=functions)


def wide_call() -> bytes:
    """The functions are within the limit, the graph that calls them is not."""
    functions = [function("f0", [node("Relu", ["a"], ["b"])])]
    functions += [function(f"f{level}", twice(f"f{level - 1}")) for level in range(1, 15)]
    calls = [node("f14", ["x"], [f"y{index}"], domain="own") for index in range(4)]
    return model([*calls, node("Sum", [f"y{index}" for index in range(4)], ["y"])], functions=functions)


def calls_in_a_branch() -> bytes:
    functions = [function("f0", [node("Relu", ["a"], ["b"])])]
    for level in range(1, 26):
        value = helper.make_tensor_value_info("c", TensorProto.FLOAT, None)
        branch = helper.make_graph(
            [node(f"f{level - 1}", ["a"], ["d"], domain="own"), node(f"f{level - 1}", ["d"], ["c"], domain="own")],
            "branch",
            [],
            [value],
        )
        choice = node("If", ["yes"], ["b"], then_branch=branch, else_branch=branch)
        yes = node("Constant", [], ["yes"], value=numpy_helper.from_array(np.array(1, dtype=bool)))
        functions.append(function(f"f{level}", [yes, choice]))
    return model([node("f25", ["x"], ["y"], domain="own")], functions=functions)


def function_that_calls_itself() -> bytes:
    functions = [
        function("even", [node("odd", ["a"], ["b"], domain="own")]),
        function("odd", [node("even", ["a"], ["b"], domain="own")]),
    ]
    return model([node("even", ["x"], ["y"], domain="own")], functions=functions)


def empty_functions() -> bytes:
    """Nothing in them, and 2^16 calls."""
    empty = helper.make_function("own", "f0", ["b"], ["b"], [], OPSETS)
    functions = [empty, *(function(f"f{level}", twice(f"f{level - 1}")) for level in range(1, 17))]
    return model([node("f16", ["x"], ["z"], domain="own"), node("Relu", ["z"], ["y"])], functions=functions)


def many_inputs() -> bytes:
    """Of one node, which ends the importer's process."""
    return model([node("Concat", ["x"] * 20_000, ["y"], axis=0)])


def many_outputs() -> bytes:
    nodes = [node("Expand", ["one", "n"], ["c"]), node("Split", ["c"], [f"s{index}" for index in range(4_000)], axis=0)]
    return model([*nodes, node("Add", ["x", "s0"], ["y"])], {"n": np.array([4_000]), "one": ONE.astype(np.float32)})


def many_inputs_in_all() -> bytes:
    """Of nodes that each are within the limit."""
    return model([node("Sum", ["x"] * 2_000, [f"y{index}"]) for index in range(130)])


def hidden_shape(op: str) -> bytes:
    """What makes the shape is too large to be computed here, and small enough for the importer to do it."""
    nodes = [
        node("ConstantOfShape", ["n"], ["large"], value=numpy_helper.from_array(np.array([2**15]))),
        node("Slice", ["large", "from", "to"], ["shape"]),
    ]
    nodes += {
        "ConstantOfShape": [node("ConstantOfShape", ["shape"], ["c"])],
        "Expand": [node("Expand", ["one", "shape"], ["c"])],
        "Tile": [node("Tile", ["one", "shape"], ["c"])],
        "Range": [
            node("ReduceProd", ["shape"], ["end"], keepdims=0),
            node("Range", ["zero", "end", "step"], ["c"]),
        ],
    }[op]
    weights = {"n": np.array([70_000]), "from": np.array([0]), "to": np.array([2]), "one": np.array([[1]])}
    weights |= {"zero": np.array(0), "step": np.array(1)}
    return model(after([*nodes, node("ReduceSum", ["c"], ["s"], keepdims=0)], "s"), weights)


def concat_chain() -> bytes:
    chain = [node("Concat", [f"c{index}"] * 2, [f"c{index + 1}"], axis=0) for index in range(40)]
    return model(after([*chain, node("ReduceSum", ["c40"], ["s"])], "s"), {"c0": ONE})


def concat_chain_of_a_shape() -> bytes:
    chain = [node("Concat", [f"c{index}"] * 2, [f"c{index + 1}"], axis=0) for index in range(40)]
    return model(after([node("Shape", ["x"], ["c0"]), *chain, node("ReduceSum", ["c40"], ["s"])], "s"))


def constant_of_shape() -> bytes:
    return model(after([node("ConstantOfShape", ["n"], ["c"]), node("ReduceSum", ["c"], ["s"])], "s"), {"n": HUGE})


def many_constants() -> bytes:
    """None of them is too large, all of them together are."""
    nodes = [node("ConstantOfShape", ["n"], [f"c{index}"]) for index in range(40)]
    return model(
        [*nodes, node("Sum", [f"c{index}" for index in range(40)], ["s"]), node("Gather", ["s", "i"], ["g"]),
         node("Add", ["x", "g"], ["y"])],
        {"n": np.array([2**24], np.int64), "i": ONE},
    )  # fmt: skip


def many_small_constants() -> bytes:
    """Each is small enough to be folded."""
    value = numpy_helper.from_array(ONE)
    nodes = [node("ConstantOfShape", ["n"], [f"c{index}"], value=value) for index in range(1100)]
    return model(after([*nodes, node("Gather", ["c0", "i"], ["g"])], "g"), {"n": np.array([2**16]), "i": ONE})


def expand() -> bytes:
    return model(
        after([node("Expand", ["one", "n"], ["c"]), node("ReduceSum", ["c"], ["s"])], "s"), {"n": HUGE, "one": ONE}
    )


def expand_of_the_input() -> bytes:
    weights = {"n": np.array([2**20, 2**20, 4])}
    return model([node("Expand", ["x", "n"], ["c"]), node("ReduceSum", ["c"], ["y"])], weights)


def tile() -> bytes:
    weights = {"n": np.array([2**40]), "one": ONE}
    return model(after([node("Tile", ["one", "n"], ["c"]), node("ReduceSum", ["c"], ["s"])], "s"), weights)


def tile_of_the_input() -> bytes:
    return model([node("Tile", ["x", "n"], ["c"]), node("ReduceSum", ["c"], ["y"])], {"n": np.array([2**40])})


def range_() -> bytes:
    weights = {"zero": np.array(0), "n": np.array(2**40), "one": np.array(1)}
    return model(after([node("Range", ["zero", "n", "one"], ["c"]), node("ReduceSum", ["c"], ["s"])], "s"), weights)


def pad() -> bytes:
    return model([node("Pad", ["x", "n"], ["c"]), node("ReduceSum", ["c"], ["y"])], {"n": np.array([0, 2**40])})


def resize() -> bytes:
    weights = {"four": np.array([1, 1, 2, 2]), "n": np.array([1, 1, 1e6, 1e6], np.float32)}
    nodes = [node("Reshape", ["x", "four"], ["r"]), node("Resize", ["r", "", "n"], ["c"])]
    return model([*nodes, node("ReduceSum", ["c"], ["y"])], weights)


def one_hot() -> bytes:
    weights = {"i": np.arange(4), "n": np.array(2**40), "v": np.array([0, 1], np.float32)}
    return model(
        [node("OneHot", ["i", "n", "v"], ["c"]), node("ReduceSum", ["c"], ["s"]), node("Add", ["x", "s"], ["y"])],
        weights,
    )


def outer(op: str, **attributes: str) -> bytes:
    """The product of a column and a row of 65,536 numbers each."""
    weights = {"n": np.array([2**16, 1]), "m": np.array([1, 2**16]), "k": np.array([2**16])}
    left, right = ("k", "k") if attributes else ("n", "m")
    nodes = [node("ConstantOfShape", [left], ["a"]), node("ConstantOfShape", [right], ["b"])]
    nodes += [node(op, ["a", "b"], ["c"], **attributes), node("ReduceSum", ["c"], ["s"])]
    return model([*nodes, node("Add", ["x", "s"], ["y"])], weights)


def einsum_of_three() -> bytes:
    """Its result is a number, and the products of two operands are not."""
    nodes = [node("ConstantOfShape", ["k"], [name]) for name in "abc"]
    nodes.append(node("Einsum", ["a", "b", "c"], ["s"], equation="i,j,k->"))
    return model([*nodes, node("Add", ["x", "s"], ["y"])], {"k": np.array([2**16])})


def gather() -> bytes:
    weights = {"n": np.array([2**16]), "m": np.array([1, 2**16])}
    zeros = numpy_helper.from_array(np.array([0]))
    nodes = [node("ConstantOfShape", ["n"], ["i"], value=zeros), node("ConstantOfShape", ["m"], ["d"])]
    nodes += [node("Gather", ["d", "i"], ["c"]), node("ReduceSum", ["c"], ["s"]), node("Add", ["x", "s"], ["y"])]
    return model(nodes, weights)


def many_dimensions() -> bytes:
    nodes = [
        node("ConstantOfShape", ["n"], ["s"], value=numpy_helper.from_array(ONE)),
        node("Concat", ["s", "four"], ["t"], axis=0),
    ]
    return model([*nodes, node("Reshape", ["x", "t"], ["y"])], {"n": np.array([1000]), "four": np.array([4])})


def random_constant() -> bytes:
    return model(
        [
            node("RandomNormal", [], ["c"], shape=[2**20, 2**20]),
            node("ReduceSum", ["c"], ["s"]),
            node("Add", ["x", "s"], ["y"]),
        ]
    )


def loop() -> bytes:
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [node("Identity", ["go"], ["go_on"]), node("Concat", ["a", "a"], ["b"], axis=0)],
        "body",
        [value("at", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("a", TensorProto.FLOAT, None)],
        [value("go_on", TensorProto.BOOL, []), value("b", TensorProto.FLOAT, None)],
    )
    weights = {"n": np.array(40), "yes": np.array(1, dtype=bool), "one": np.ones(1, np.float32)}
    nodes = [node("Loop", ["n", "yes", "one"], ["c"], body=body), node("ReduceSum", ["c"], ["s"])]
    return model([*nodes, node("Add", ["x", "s"], ["y"])], weights)


def endless() -> bytes:
    """A loop without a number of iterations. Its condition always holds, which each iteration computes."""
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [node("Or", ["go", "go"], ["go_on"]), node("Relu", ["a"], ["b"])],
        "body",
        [value("at", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("a", TensorProto.FLOAT, [4])],
        [value("go_on", TensorProto.BOOL, []), value("b", TensorProto.FLOAT, [4])],
    )
    return model([node("Loop", ["", "yes", "x"], ["y"], body=body)], {"yes": np.array(1, dtype=bool)})


def wide_loop() -> bytes:
    """An empty body, and a node for each input of each iteration."""
    value = helper.make_tensor_value_info
    names = [f"p{index}" for index in range(60)]
    inputs = [value(name, TensorProto.FLOAT, None) for name in ("s", *names)]
    body = helper.make_graph([], "body", inputs, [value("s", TensorProto.FLOAT, None)])
    scan = node("Scan", ["x", *["w"] * len(names)], ["y"], body=body, num_scan_inputs=len(names))
    return model([node("ConstantOfShape", ["n"], ["w"]), scan], {"n": np.array([2_000])})


def in_a_branch() -> bytes:
    """What an `If` computes whose condition depends on the input."""
    value = helper.make_tensor_value_info("s", TensorProto.FLOAT, None)
    branch = helper.make_graph(
        [node("ConstantOfShape", ["n"], ["c"]), node("ReduceSum", ["c"], ["s"])], "branch", [], [value]
    )
    nodes = [node("ReduceSum", ["x"], ["t"], keepdims=0), node("Cast", ["t"], ["yes"], to=TensorProto.BOOL)]
    nodes.append(node("If", ["yes"], ["y"], then_branch=branch, else_branch=branch))
    return model(nodes, {"n": HUGE})


def out_of_order() -> bytes:
    """The node that expands stands before those that it reads."""
    nodes = [node("Expand", ["one", "n"], ["c"]), node("Identity", ["m"], ["n"]), node("Identity", ["u"], ["one"])]
    return model(after([*nodes, node("ReduceSum", ["c"], ["s"])], "s"), {"m": HUGE, "u": ONE})


def split() -> bytes:
    nodes = [
        node("Expand", ["x", "n"], ["c"]),
        node("SplitToSequence", ["c"], ["parts"]),
        node("SequenceAt", ["parts", "zero"], ["y"]),
    ]
    return model(nodes, {"n": np.array([2**24, 4]), "zero": np.array(0)})


def two_of_a_name() -> bytes:
    """The first is what ONNX's shapes are inferred of, the second what is computed, or the other way round."""
    nodes = [node("Expand", ["one", "n"], ["c"]), node("Expand", ["one", "one"], ["c"])]
    return model(after([*nodes, node("ReduceSum", ["c"], ["s"])], "s"), {"n": np.array([2**26]), "one": ONE})


def sparse_weights() -> bytes:
    read = onnx.ModelProto.FromString(model([node("Add", ["x", "w"], ["y"])]))
    values = numpy_helper.from_array(np.ones(1, np.float32), "w")
    indices = numpy_helper.from_array(np.zeros(1, np.int64), "")
    read.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2**20, 2**20]))
    return read.SerializeToString()


def relax_constant() -> bytes:
    """The same in TVM's own format."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value = builder.emit(relax.op.full([2**13, 2**13], relax.const(1.0), "float32"))
            for _ in range(8):
                value = builder.emit(relax.op.exp(value))
            out = builder.emit_output(relax.op.add(x, relax.op.sum(value)))
        builder.emit_func_output(out)
    return str(tvm.ir.save_json(builder.get())).encode()


def relax_tuples() -> bytes:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for _ in range(30):
                value = builder.emit(relax.Tuple([value, value]))
            out = builder.emit_output(relax.op.exp(x))
        builder.emit_func_output(out)
    return str(tvm.ir.save_json(builder.get())).encode()


def large_inputs() -> bytes:
    """Each is within the limit of a tensor."""
    names, value = [f"x{index}" for index in range(8)], helper.make_tensor_value_info
    chain = [node("Add", [names[0] if index == 1 else f"t{index - 1}", names[index]], [f"t{index}"])
             for index in range(1, 8)]  # fmt: skip
    inputs = [value(name, TensorProto.FLOAT, [2**26]) for name in names]
    graph = helper.make_graph(chain, "g", inputs, [value("t7", TensorProto.FLOAT, [2**26])])
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=8).SerializeToString()


def many_values() -> bytes:
    """Of a small input, all kept until the end."""
    values = [f"c{index}" for index in range(10)]
    nodes = [node("Expand", ["x", "n"], ["c"]), *(node("Mul", ["c", f"w{each}"], [each]) for each in values)]
    weights = {f"w{each}": np.array(index + 2, np.float32) for index, each in enumerate(values)}
    large = node("Concat", [f"s{each}" for each in values], ["y"], axis=0)
    sorted_ = [node("CumSum", [each, "zero"], [f"t{each}"]) for each in values]
    sums = [node("ReduceSum", [f"t{each}"], [f"s{each}"]) for each in reversed(values)]
    return model([*nodes, *sorted_, *sums, large], {"n": np.array([2**24, 4]), "zero": np.array(0), **weights})


def loops(shape: str = "4", allocated: str = "4") -> bytes:
    """An IRModule whose loops take and allocate other buffers than the types of its values say."""
    text = LOOPS.replace("SHAPE", shape).replace("ALLOCATED", allocated)
    return str(tvm.ir.save_json(tvm.script.from_source(text, check_well_formed=False))).encode()


LOOPS = """
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def f(x: T.Buffer((SHAPE,), "float32"), y: T.Buffer((SHAPE,), "float32")):
        t = T.sblock_alloc_buffer((ALLOCATED,), "float32")
        for i in range(4):
            with T.sblock("b"):
                v = T.axis.spatial(4, i)
                t[v] = x[v]
        for i in range(4):
            with T.sblock("c"):
                v = T.axis.spatial(4, i)
                y[v] = t[v]

    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        with R.dataflow():
            y = R.call_tir(Module.f, (x,), out_ty=R.Tensor((4,), "float32"))
            R.output(y)
        return y
"""
HELD = "an inference holds inputs, weights and results of .* bytes at once, and 2,147,.* is the limit for a file of"


def nested_calls() -> bytes:
    """A value within another, whose type no variable has."""
    x, y = relax.Var("x", relax.TensorType([4], "float32")), relax.Var("y", relax.TensorType([4], "float32"))
    value = relax.op.exp(relax.op.broadcast_to(x, relax.ShapeExpr([10**9, 1000, 4])))
    body = relax.SeqExpr([relax.BindingBlock([relax.VarBinding(y, value)])], y)
    function = relax.Function([x], body, relax.TensorType([4], "float32"))
    return str(tvm.ir.save_json(tvm.IRModule({"main": function}))).encode()


COMPUTED, TENSOR = "is computed from constants alone", "is a tensor of shape"
UNSIZED = "computes a constant whose size is not known before"
HIDING = "ConstantOfShape", "Expand", "Tile", "Range"
ATTACKS: dict[str, tuple[Callable[[], bytes], str]] = {
    "nested functions": (nested_functions, f"function 'f15', .* has 32,768 nodes, and {MOST_NODES:,} is the limit"),
    "a wide call": (wide_call, f"the graph, with all functions inlined, has 65,537 nodes, and {MOST_NODES:,}"),
    "calls in a branch": (calls_in_a_branch, r"function 'f\d+', .* nodes, and"),
    "a function that calls itself": (function_that_calls_itself, "function '(even|odd)' calls itself"),
    "empty functions": (empty_functions, f"function 'f15', .* has 32,768 nodes, and {MOST_NODES:,}"),
    "many inputs": (many_inputs, r"\(Concat\) has 20,001 inputs and outputs, and 2,048 is the limit"),
    "many outputs": (many_outputs, r"\(Split\) has 4,001 inputs and outputs, and 2,048 is the limit"),
    "many inputs in all": (many_inputs_in_all, rf"the graph, .* has 32,630 nodes, and {MOST_NODES:,}"),
    **{f"a hidden shape of {op}": (partial(hidden_shape, op), rf"\({op}\) {UNSIZED}") for op in HIDING},
    "a chain of Concat": (concat_chain, r"\(Concat\) (is a tensor|is computed)"),
    "a chain of Concat of a shape": (concat_chain_of_a_shape, r"\(Concat\) (is a tensor|is computed)"),
    "ConstantOfShape": (constant_of_shape, rf"\(ConstantOfShape\) {TENSOR} \[1048576, 2097152\]"),
    "many constants": (many_constants, rf"\(ConstantOfShape\) {COMPUTED}, .* 536,\d+,\d+ is the limit for a file of"),
    "many small constants": (many_small_constants, rf"\(ConstantOfShape\) {COMPUTED}"),
    "Expand": (expand, rf"node with output 'c' \(Expand\) {TENSOR}"),
    "Expand of the input": (expand_of_the_input, rf"\(Expand\) {TENSOR}"),
    "Tile": (tile, rf"\(Tile\) {TENSOR}"),
    "Tile of the input": (tile_of_the_input, rf"\(Tile\) {TENSOR}"),
    "Range": (range_, rf"\(Range\) {TENSOR}"),
    "Pad": (pad, rf"\(Pad\) {TENSOR}"),
    "Resize": (resize, rf"\(Resize\) {TENSOR}"),
    "OneHot": (one_hot, rf"\(OneHot\) {TENSOR}"),
    "an outer sum": (lambda: outer("Add"), rf"\(Add\) {TENSOR}"),
    "an outer product": (lambda: outer("MatMul"), rf"\(MatMul\) {TENSOR}"),
    "an outer product of Einsum": (lambda: outer("Einsum", equation="i,j->ij"), rf"\(Einsum\) {TENSOR}"),
    "Einsum of three": (einsum_of_three, rf"\(Einsum\) {COMPUTED}"),
    "Gather": (gather, rf"\(Gather\) {TENSOR}"),
    "many dimensions": (many_dimensions, r"\(Reshape\) is a tensor of 1001 dimensions, and 32 is the limit"),
    "a random constant": (random_constant, rf"\(RandomNormal\) {TENSOR}"),
    "Loop": (loop, rf"\(Concat\) {COMPUTED}"),
    "an endless loop": (endless, r"\(Loop\) unrolled, has 30,0\d\d nodes, and 30,000 is the limit"),
    "a wide loop": (wide_loop, r"\(Scan\) unrolled, has [\d,]+ nodes, and 30,000 is the limit"),
    "what a branch computes": (in_a_branch, rf"\(ConstantOfShape\) {TENSOR}"),
    "nodes out of order": (out_of_order, rf"\(Expand\) {TENSOR}"),
    "SplitToSequence": (split, r"split into parts has 16,777,216 nodes"),
    "two tensors of a name": (two_of_a_name, "'c' is the name of two tensors"),
    "sparse weights": (sparse_weights, "weight 'w' is sparse"),
    "a constant of Relax": (relax_constant, rf"\(relax.exp\) {COMPUTED}"),
    "large inputs": (large_inputs, rf"up to 'lv1' \(relax.add\) in function 'main', {HELD}"),
    "many values": (many_values, HELD),
    "buffers of loops": (lambda: loops("1000000000000"), rf"buffer 'x' of function 'f' {TENSOR} \[1000000000000\]"),
    "nested calls": (nested_calls, "is not a well-formed IRModule: "),
    "what loops allocate": (lambda: loops("4", "900000000"), rf"buffer 't' of function 'f' {TENSOR} \[900000000\]"),
    "tuples of tuples of Relax": (relax_tuples, "more than 120,000 tensors in all"),
}
