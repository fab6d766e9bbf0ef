"""What ingest tells the server of a model's operators."""

import gc
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm.script import ir as I, relax as R, tirx as T

from fractune.models.open_sizes import settled
from fractune_core.errors import BadModel, BadRequest, FractuneError
from fractune_core.model_inputs import Sizes, as_shapes, each_shape
from fractune_workers.child import Child
from fractune_workers.child.errors import LimitMet
from fractune_workers.children.compiling.child import ingest
from fractune_workers.children.importing import model_file
from fractune_workers.children.importing.onnx_models import onnx_model
from fractune_workers.children.tvm_api import scratch_tensors
from fractune_workers.children.tvm_api.target import host_cpu
from fractune_workers.reader import reader_child
from tests.support.decoders import compile_decoder, write_decoder
from tests.support.paths import REPOSITORY
from tests.support.translators import DECODER, HEADS, MERGED, SIDE, write_translator

ROWS, COLUMNS, INNER = 4, 16, 32
SIZES = (2**30,) * 35


def product(path: Path, element: int) -> str:
    """A model of one matrix product of two inputs."""
    a = helper.make_tensor_value_info("a", element, [ROWS, INNER])
    b = helper.make_tensor_value_info("b", element, [INNER, COLUMNS])
    out = helper.make_tensor_value_info("out", element, [ROWS, COLUMNS])
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["out"])], "product", [a, b], [out])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return str(path)


def test_a_model_that_computes_nothing_from_its_inputs_is_named(tmp_path: Path) -> None:
    """Its constant is too large to be folded as shape arithmetic."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [70_000])
    graph = helper.make_graph([helper.make_node("Add", ["w", "w"], ["y"])], "constants", [x], [y])
    graph.initializer.append(numpy_helper.from_array(np.ones(70_000, np.float32), "w"))
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    with pytest.raises(BadModel, match=r"^m\.onnx: has nothing to tune: no kernel of it can be tuned; tune a"):
        ingest(str(path), {}, "", host_cpu())


@pytest.mark.parametrize(("element", "element_bytes"), [(TensorProto.FLOAT, 4), (TensorProto.FLOAT16, 2)])
def test_operations_are_told_of_float32_alone_and_bytes_of_all(
    tmp_path: Path, element: int, element_bytes: int
) -> None:
    (operator,) = ingest(product(tmp_path / "m.onnx", element), {}, "", host_cpu())["operators"]
    assert operator["io_bytes"] == element_bytes * (ROWS * INNER + INNER * COLUMNS + ROWS * COLUMNS)
    assert operator["written_bytes"] == element_bytes * ROWS * COLUMNS
    assert operator["flops"] == (2 * ROWS * INNER * COLUMNS if element_bytes == 4 else 0)


def endless() -> tvm.IRModule:
    """Its loops run 2^1053 times, and a float64 holds no number above 2^1024."""

    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def kernel(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")) -> None:
            for loops in T.grid(8, *SIZES):
                with T.sblock("block"):
                    v = T.axis.spatial(8, loops[0])
                    y[v] = x[v] * T.float32(2)

        @R.function
        def main(x: R.Tensor((8,), "float32")) -> R.Tensor((8,), "float32"):
            cls = Module
            with R.dataflow():
                y = R.call_tir(cls.kernel, (x,), out_ty=R.Tensor((8,), "float32"))
                R.output(y)
            return y

    return Module


def test_loops_that_take_more_operations_than_a_number_holds_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text(tvm.ir.save_json(endless()))
    with pytest.raises(BadModel, match=r"^m\.json: operator 'kernel' takes inf operations, which cannot be; "):
        ingest(str(path), {}, "", host_cpu())


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    child = Child("tests.support.children.side_by_side_module")
    yield child
    child.stop()


def test_results_come_in_order_each_from_a_process_of_its_own(child: Child) -> None:
    names = [str(number) for number in range(7)]
    answers = child.call("all", 20, names=names)
    assert [name for name, _ in answers] == names
    assert len({child.call("pid", 20), *(pid for _, pid in answers)}) == 8


def test_pieces_share_the_memory_that_there_is() -> None:
    limit_bytes, pieces = 8 << 30, 4
    env = {"PYTHONPATH": str(REPOSITORY)}
    child = reader_child("tests.support.children.side_by_side_module", env=env, memory_bytes=limit_bytes)
    try:
        have_bytes = child.call("addressed", 20)
        rooms = [room for _, room in child.call("all", 20, names=["room"] * pieces)]
    finally:
        child.stop()
    at_once = min(len(os.sched_getaffinity(0)), pieces)
    fair_bytes = have_bytes + (limit_bytes - have_bytes) // at_once
    assert rooms == [pytest.approx(fair_bytes, rel=0.01)] * pieces


def test_a_piece_that_meets_its_limit_says_so(child: Child) -> None:
    with pytest.raises(LimitMet, match="CPU time"):
        child.call("all", 20, names=["a", "burn"])
    assert child.call("pid", 20)


@pytest.mark.parametrize(
    ("name", "kind", "said"), [("refuse", BadModel, "not this one"), ("crash", FractuneError, "ended by SIGSEGV")]
)
def test_the_first_error_is_raised_once_no_fork_is_left(
    child: Child, name: str, kind: type[FractuneError], said: str
) -> None:
    with pytest.raises(kind, match=said):
        child.call("all", 20, names=["a", name, "refuse", "b", "c"])
    pid = child.call("pid", 20)
    assert not Path(f"/proc/{pid}/task/{pid}/children").read_text()


MERGED_SIZES: Sizes = {
    "batch_size": 1,
    "decoder_sequence_length": [1, 3],
    "encoder_sequence_length": 5,
    "past_decoder_sequence_length": [0, 4],
}


def test_each_size_of_the_past_has_its_branch(tmp_path: Path) -> None:
    model = write_translator(tmp_path / "t") / MERGED
    shapes = [as_shapes(each) for each in each_shape(settled(model, None, MERGED_SIZES) or {})]
    own = [each["past_key_values.0.decoder.key"] for each in shapes]
    assert own == [[1, HEADS, past, SIDE] for past in (1, 4, 1, 4)]
    assert ["use_cache_branch=const:0" in each for each in shapes] == [True, False, True, False]


@pytest.mark.parametrize(
    ("file", "sizes", "says"),
    [
        (MERGED, {"batch_size": 0}, "size 'batch_size' is 0; it must be from 1 to"),
        (DECODER, {"decoder_sequence_length": 0}, "size 'decoder_sequence_length' is 0; it must be from 1 to"),
        (
            MERGED,
            {"past_decoder_sequence_length": -1},
            "is -1; it must be from 0 to",
        ),
    ],
)
def test_only_a_past_of_such_a_decoder_may_be_0(tmp_path: Path, file: str, sizes: dict[str, int], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        settled(write_translator(tmp_path / "t") / file, None, sizes)


def entries(bundle: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(bundle) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    """A decoder, and the entries of its bundle."""
    model = write_decoder(tmp_path_factory.mktemp("whole") / "decoder.onnx")
    return model, entries(compile_decoder(model, 8, 1))


def test_the_bundle_of_a_large_model_is_that_of_a_small_one(
    whole: tuple[Path, dict[str, bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_file, "APART_FROM_BYTES", 1)
    for module in (model_file, scratch_tensors):
        monkeypatch.setattr(module, "LEAST_BYTES", 4096)
    parsed, to_array = list[int](), onnx.numpy_helper.to_array

    def noted(tensor: onnx.TensorProto) -> object:
        parsed.append(len(tensor.raw_data))
        return to_array(tensor)

    monkeypatch.setattr("onnx.numpy_helper.to_array", noted)
    apart = entries(compile_decoder(copied(whole[0], tmp_path), 8, 1))
    assert max(parsed) < 4096
    assert {name: each for name, each in apart.items() if name != "manifest.json"} == {
        name: each for name, each in whole[1].items() if name != "manifest.json"
    }


def copied(model: Path, folder: Path) -> Path:
    return Path(shutil.copy(model, folder / model.name))


def test_the_bundle_of_a_model_that_is_not_small_is_the_same(
    whole: tuple[Path, dict[str, bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = copied(whole[0], tmp_path)
    monkeypatch.setattr(model_file, "_OUTLINED_FROM_BYTES", 1)
    monkeypatch.setattr(model_file, "LEAST_BYTES", 4096)
    monkeypatch.setattr(onnx_model, "_IN_MEMORY_BYTES", 1)
    monkeypatch.setattr(onnx_model, "_ALONE_FROM_BYTES", 1)
    monkeypatch.setattr(onnx_model, "LEAST_BYTES", 4096)
    slimmed, slim = list[int](), onnx_model._slim

    def noted(model: onnx.ModelProto) -> onnx.ModelProto:
        slimmed.append(model.ByteSize())
        return slim(model)

    monkeypatch.setattr(onnx_model, "_slim", noted)
    kept = list[int]()

    def read(path: Path, size: int = model.stat().st_size) -> model_file.Contents:
        contents = read_file(path)
        kept.append(size - len(contents.data))
        return contents

    read_file = model_file._read
    monkeypatch.setattr(model_file, "_read", read)
    assert entries(compile_decoder(model, 8, 1)) == whole[1]
    assert kept[0] > 4096, "most bytes of the file are not held beside protobuf's"
    assert slimmed[0] < model.stat().st_size / 2, "weights of products are not copied by slimming"
    gc.collect()
    left = [each for each in gc.get_objects() if isinstance(each, onnx.TensorProto) and len(each.raw_data) > 4096]
    assert not left, "a part of a message holds its whole memory"
