"""How the bytes that an inference holds are counted, and what is refused for them."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax

from fractune_core.errors import BadModel
from fractune_workers.children.importing.limits import ComputedConstants, Limits, check_tensor
from fractune_workers.children.importing.relax_sizes import InferenceMemory, check_sizes


@pytest.mark.parametrize(
    ("shape", "strides"),
    [([tvm.tirx.Mul(tvm.tirx.IntImm("int64", 10**6), tvm.tirx.IntImm("int64", 10**6))], []), ([4], [10**12])],
    ids=["a product", "strides"],
)
def test_a_buffer_is_as_large_as_it_will_be(shape: list[object], strides: list[int]) -> None:
    buffer = tvm.tirx.decl_buffer(shape, "float32", "x", strides=strides)
    mod = tvm.IRModule({"f": tvm.tirx.PrimFunc([buffer], tvm.tirx.Evaluate(0))})
    with pytest.raises(BadModel, match=r"buffer 'x' of function 'f'.* is a tensor of shape"):
        check_sizes(mod, Limits(1000))


def test_the_buffers_of_one_function_are_added_up() -> None:
    buffers = [tvm.tirx.decl_buffer([3 * 10**8], "float32", name) for name in "xy"]
    mod = tvm.IRModule({"f": tvm.tirx.PrimFunc(buffers, tvm.tirx.Evaluate(0))})
    with pytest.raises(BadModel, match="function 'f' has buffers of 2,400,000,000 bytes"):
        check_sizes(mod, Limits(1000))


def test_a_value_counts_until_it_is_last_read() -> None:
    memory = InferenceMemory()
    memory.keep(100)
    for name, read, size in (("a", [], 10), ("b", ["a"], 20), ("c", ["b"], 30), ("d", ["c"], 5)):
        memory.compute(name, read, size, name)
    assert memory.peak(["d"]) == (100 + 20 + 30, "c")
    assert memory.peak(["a", "d"]) == (100 + 10 + 20 + 30, "c")


def test_a_tuple_keeps_what_it_is_made_of() -> None:
    memory = InferenceMemory()
    memory.compute("a", [], 10, "a")
    memory.compute("pair", ["a"], 0, "pair")
    memory.compute("b", [], 20, "b")
    memory.compute("first", ["pair"], 0, "first")
    memory.compute("c", ["b"], 30, "c")
    assert memory.peak(["first", "c"]) == (60, "c")
    assert memory.peak(["c"]) == (50, "c")


def test_a_model_may_hold_more_if_its_file_is_larger() -> None:
    Limits(0).check_inference(2**31, "it holds")
    Limits(2**26).check_inference(2**31 + 2**30, "it holds")
    with pytest.raises(BadModel, match="it holds 2,147,483,649 bytes at once"):
        Limits(0).check_inference(2**31 + 1, "it holds")


def test_weights_make_room_for_constants_computed_from_them() -> None:
    computed = ComputedConstants(Limits(file_bytes=2**26))
    computed.take(2**29 + 2**30, "a chain")
    with pytest.raises(BadModel, match="a chain is computed from constants alone"):
        computed.take(1, "a chain")


def test_a_negative_dimension_takes_nothing_off() -> None:
    with pytest.raises(BadModel, match=r"'c' is a tensor of shape \[-2, 4\], with a negative dimension"):
        check_tensor([-2, 4], 4, "'c'")


def test_a_tuple_that_holds_itself_very_often_is_counted_before_it_is_walked() -> None:
    """60 levels of two are more nodes than can ever be looked at."""
    x, y = (relax.Var(name, relax.TensorType([4], "float32")) for name in "xy")
    value: relax.Expr = x
    for _ in range(60):
        value = relax.Tuple([value, value])
    body = relax.SeqExpr([relax.BindingBlock([relax.VarBinding(y, relax.TupleGetItem(value, 0))])], y)
    with pytest.raises(BadModel, match="up to function 'main', has 30,001 nodes, and 30,000 is the limit"):
        check_sizes(tvm.IRModule({"main": relax.Function([x], body, relax.TensorType([4], "float32"))}), Limits(1000))


def a_range(mib: int, *, is_reduced: bool = False) -> tvm.IRModule:
    """A module with a constant of so many MiB that is computed from nothing: it, or its sum, is added to the input."""
    x = relax.Var("x", relax.TensorType([1], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            made = builder.emit(relax.op.arange(0, mib * 2**18, 1, "float32"))
            kept = builder.emit(relax.op.sum(made)) if is_reduced else made
            out = builder.emit_output(relax.op.add(kept, x))
        builder.emit_func_output(out)
    return builder.get()


def test_a_bundle_of_a_small_file_holds_few_computed_constants() -> None:
    check_sizes(a_range(127), Limits(1000))
    with pytest.raises(BadModel, match=r"makes 135,266,304 bytes of constants .*, and 134,225,728 is"):
        check_sizes(a_range(129), Limits(1000))
    check_sizes(a_range(129, is_reduced=True), Limits(1000))
    check_sizes(a_range(129), Limits(2**20))


def test_weights_in_a_fused_file_have_room_in_each_variant() -> None:
    Limits(2**30, 16).check_kept(2**30, "a weight")
    with pytest.raises(BadModel, match="a weight makes"):
        Limits(1600, 16).check_kept(2**23 + 2301, "a weight")
