"""The bytes that an inference holds, and small files that describe huge models: refused by a count."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxslim
import pytest
import tvm
from tvm import relax

from fractune_core.errors import BadModel
from fractune_core.files.fused import write_fused
from fractune_workers.children.importing import limits
from fractune_workers.children.importing.limits import ComputedConstants, Limits, check_tensor
from fractune_workers.children.importing.model_file import InferenceMemory, check_sizes, load_model, load_variants
from fractune_workers.children.importing.onnx_models import onnx_model
from tests.support.expanding_models import ATTACKS, COMPUTED, UNSIZED, after, function, model, node, twice


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


SMALL_BYTES, LARGER_BYTES = 4_000, 70_000
LARGER = {
    "buffers of loops",
    "what loops allocate",
    "many buffers",
    "calls in a branch",
    "many inputs",
    "many outputs",
    "many small constants",
    "a constant of Relax",
}
ENDLESS = "an endless loop"
"""which takes seconds up to the limit"""
SECONDS, MEGABYTES = 120, 1200
"""For a child that imports TVM, some 300 MB, and half a gigabyte of constants; on a busy machine"""


@pytest.mark.parametrize(
    "attack", [pytest.param(each, marks=pytest.mark.long) if each == ENDLESS else each for each in ATTACKS]
)
def test_a_small_file_that_expands_is_refused_with_a_count(attack: str, tmp_path: Path) -> None:
    make, words = ATTACKS[attack]
    path = tmp_path / "small.model"
    path.write_bytes(make())
    with pytest.raises(BadModel, match=f"^small.model: .*{words}") as caught:
        load_model(path)
    assert "\n" not in str(caught.value)


def test_an_endless_loop_is_refused_after_as_many_nodes_as_a_model_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MOST_NODES", 1_000)
    path = tmp_path / "small.onnx"
    path.write_bytes(ATTACKS[ENDLESS][0]())
    with pytest.raises(BadModel, match=r"\(Loop\) unrolled, has 1,00\d nodes, and 1,000 is the limit"):
        load_model(path)


def test_nodes_count_as_they_are_after_inlining(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_NODES", 8)
    for level, nodes in ((3, 8), (4, 16)):
        functions = [function("f0", [node("Relu", ["a"], ["b"])])]
        functions += [function(f"f{each}", twice(f"f{each - 1}")) for each in range(1, level + 1)]
        path = tmp_path / f"{nodes}.onnx"
        path.write_bytes(model([node(f"f{level}", ["x"], ["y"], domain="own")], functions=functions))
    load_model(tmp_path / "8.onnx")
    with pytest.raises(BadModel, match=r"function 'f4', .* has 16 nodes, and 8 is the limit"):
        load_model(tmp_path / "16.onnx")


def test_a_tensor_that_very_many_nodes_read_is_not_slimmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`onnxslim` takes a time that grows with the square of the readers."""
    monkeypatch.setattr(onnx_model, "_MOST_PAIRS_OF_READERS", 1_000)
    monkeypatch.setattr(onnxslim, "slim", pytest.fail)
    names = [f"y{index}" for index in range(40)]
    (tmp_path / "m.onnx").write_bytes(
        model([*[node("Add", ["x", "x"], [name]) for name in names], node("Sum", names, ["y"])])
    )
    load_model(tmp_path / "m.onnx")


def test_a_constant_of_unknown_size_is_not_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxslim, "slim", pytest.fail)
    nodes = [node("ConstantOfShape", ["n"], ["c"]), node("NonZero", ["c"], ["places"]), node("Det", ["places"], ["s"])]
    (tmp_path / "m.onnx").write_bytes(model(after(nodes, "s"), {"n": np.array([2**17])}))
    with pytest.raises(BadModel, match=rf"node with output 'places' \(NonZero\) {UNSIZED}"):
        load_model(tmp_path / "m.onnx")


def test_variants_of_a_fused_model_share_its_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of many small variants would expand as often."""
    monkeypatch.setattr(limits, "_COMPUTED_BYTES", 2**20)
    path = tmp_path / "variant.onnx"
    path.write_bytes(model([node("Relu", ["x"], ["y"])]))
    large = tmp_path / "large.onnx"
    large.write_bytes(model([node("ConstantOfShape", ["n"], ["c"]), node("ReduceSum", ["c"], ["s"]),
                             node("Add", ["x", "s"], ["y"])], {"n": np.array([2**17])}))  # fmt: skip
    fused = tmp_path / "x.fused"
    with fused.open("wb") as file:
        write_fused(file, ["a", "b", "c"], [large, path, path], 3)
    with pytest.raises(BadModel, match=rf"variant 'a': .*\(ConstantOfShape\) {COMPUTED}"):
        load_variants(fused)
    load_model(large)
    with pytest.raises(BadModel, match="101 nodes, and 100 is the limit for each of 300 variants"):
        Limits(1, 300).check_nodes(101, "it")


def test_a_table_that_a_small_file_computes_is_not_kept_in_its_bundle(tmp_path: Path) -> None:
    """A bundle for each job would fill the server's disk."""
    nodes = [node("Range", ["from", "to", "by"], ["table"]), node("Gather", ["table", "place"], ["z"], axis=0),
             node("Add", ["x", "z"], ["y"])]  # fmt: skip
    numbers = {"from": np.float32(0), "to": np.float32(129 * 2**18), "by": np.float32(1)}
    place = [node("ArgMax", ["x"], ["place"], axis=0, keepdims=0)]
    (tmp_path / "m.onnx").write_bytes(model([*place, *nodes], {name: np.array(each) for name, each in numbers.items()}))
    with pytest.raises(BadModel, match=r"makes .* bytes of constants that a bundle would hold"):
        load_model(tmp_path / "m.onnx")


@pytest.mark.long
def test_all_of_them_take_little_memory(tmp_path: Path) -> None:
    """In one child, whose peak is the largest of all."""
    for name in ATTACKS.keys() - {"tuples of tuples of Relax", "many inputs in all"}:  # which cost time alone
        data = ATTACKS[name][0]()
        assert len(data) < (LARGER_BYTES if name in LARGER else SMALL_BYTES)
        (tmp_path / f"{name}.model").write_bytes(data)
    script = (
        "import sys; from pathlib import Path\n"
        "from fractune_core.errors import BadModel\n"
        "from fractune_workers.children.importing.model_file import load_model\n"
        "for path in sorted(Path(sys.argv[1]).iterdir()):\n"
        "    try: load_model(path)\n"
        "    except BadModel: continue\n"
        "    sys.exit(f'{path} was taken')\n"
        "lines = Path('/proc/self/status').read_text().splitlines()\n"
        "print(next(line.split()[1] for line in lines if line.startswith('VmHWM')))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) < MEGABYTES * 1024
