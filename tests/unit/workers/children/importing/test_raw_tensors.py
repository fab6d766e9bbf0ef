"""Tensors whose header says more than their payload has: no byte of the reader's memory becomes a weight."""

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper

from fractune_core.errors import BadModel
from fractune_workers.children.compiling.weights import LiftedWeights
from fractune_workers.children.importing.ir_module import TensorHeader, read_header
from fractune_workers.children.importing.model_file import load_model
from fractune_workers.children.importing.onnx_models.onnx_shapes import check_contents
from fractune_workers.children.importing.torch_program import screen
from tests.support.constant_modules import NUMBERS, module, tensor


def write(folder: Path, graph: Any) -> Path:
    path = folder / "module.json"
    path.write_text(json.dumps(graph))
    return path


def test_a_tensor_as_tvm_writes_it_is_read(tmp_path: Path) -> None:
    weights = LiftedWeights()
    weights.lifted(load_model(write(tmp_path, module(tensor()))))
    assert np.array_equal(weights.tensors[0].numpy(), NUMBERS)


@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (1, 2, 3)])
def test_every_type_that_tvm_writes_is_known(shape: tuple[int, ...]) -> None:
    integers = "int8 int16 int32 int64 uint8 uint16 uint32 uint64"
    for dtype in f"bool {integers} float16 float32 float64 bfloat16".split():
        graph = json.loads(tvm.ir.save_json(tvm.runtime.empty(shape, dtype)))
        (node,) = (node for node in graph["nodes"] if node["type"] == "ffi.Tensor")
        assert read_header(node["data"], "it") == TensorHeader(dtype, shape)


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (tensor(data=NUMBERS.tobytes()[:4], stated=128), "needs 128 bytes, and the file has 4 for it"),
        (tensor(data=NUMBERS.tobytes()[:4]), "needs 128 bytes, and the file has 4 for it"),
        (tensor(data=bytes(129)), "needs 128 bytes, and the file has 129 for it"),
        (tensor(stated=64), "needs 128 bytes, and the file has 64 for it"),
        (tensor((), b""), "needs 4 bytes, and the file has 0 for it"),
        (tensor((0, 8), bytes(32)), "needs 0 bytes, and the file has 32 for it"),
        (tensor((2**31, 2**31, 4), b""), "tensor of shape [2147483648, 2147483648, 4]"),  # 2^64 elements
        (tensor((2**62, 0), b""), "tensor of shape [4611686018427387904, 1]"),
        (tensor((-4, -8)), "with a negative dimension"),
        (tensor((1,) * 33, bytes(4)), "has 33 dimensions, and 32 is the limit"),
        (tensor(rank=-1), "has -1 dimensions"),
        (tensor(rank=20), "ends within its header"),
        (tensor(dtype=(2, 32, 4)), "type (code 2, 32 bits, 4 lanes) is not supported"),
        (tensor(dtype=(0, 4, 1)), "type (code 0, 4 bits, 1 lanes) is not supported"),
        (tensor(dtype=(3, 64, 1)), "type (code 3, 64 bits, 1 lanes) is not supported"),
        (tensor(device=(2, 0)), "is not that of a tensor of a CPU"),
        (tensor(device=(1, 7)), "is not that of a tensor of a CPU"),
        (tensor(magic=1), "is not that of a tensor of a CPU"),
        (tensor()[:40], "ends within its header"),
        (tensor()[:-4] + "ÿÿÿÿ", "is not text in base64"),
        (tensor()[:-4] + "~~~~", "is not text in base64"),
        (tensor()[:-4] + "\n" + tensor()[-4:], "is not text in base64"),
        ("", "ends within its header"),
        (37, "is not text in base64"),
        (None, "is not text in base64"),
    ],
)
def test_a_payload_of_another_size_than_its_header_says_is_refused(tmp_path: Path, payload: Any, words: str) -> None:
    with pytest.raises(BadModel) as caught:
        load_model(write(tmp_path, module(payload)))
    assert words in str(caught.value)
    assert str(caught.value).startswith("module.json: tensor 0 ")


@pytest.mark.parametrize(
    "payload",
    [
        tensor((4, 4), NUMBERS.tobytes()[:64]),
        tensor((32,)),
        tensor((0,), b""),
        tensor(dtype=(2, 16, 1), data=bytes(64)),
        tensor(dtype=(0, 32, 1)),
    ],
)
def test_a_constant_of_another_type_than_its_tensor_is_refused(tmp_path: Path, payload: str) -> None:
    """Code is compiled by the type, and would read beyond a smaller tensor."""
    with pytest.raises(BadModel, match=r"^module\.json: has a constant whose numbers are "):
        load_model(write(tmp_path, module(payload)))


@pytest.mark.parametrize("place", [None, True, 0.5, -1, 10**6, 2**80, [3], {"a": 3}, "x"])
@pytest.mark.parametrize("field", ["value", "ty"])
def test_a_constant_that_refers_to_nothing_is_refused(tmp_path: Path, field: str, place: Any) -> None:
    graph = module(tensor())
    next(node for node in graph["nodes"] if node["type"] == "ir.GenericConst")["data"][field] = place
    with pytest.raises(BadModel):
        load_model(write(tmp_path, graph))


# ---- ONNX -----------------------------------------------------------------------------------------------------------

UNSUPPORTED = ("UNDEFINED", "FLOAT6E2M3", "FLOAT6E3M2")
ONNX_TYPES = [name for name in TensorProto.DataType.DESCRIPTOR.values_by_name if name not in (*UNSUPPORTED, "STRING")]
OTHER_SHAPES: tuple[list[int], ...] = ([1], [], [300], [-3], [0], [5, 0], [2**40, 2**40], [2**31, 0], [5] + [1] * 33)


def made(kind: int, *, raw: bool) -> Any:
    numbers = np.ones(5, helper.tensor_dtype_to_np_dtype(kind))
    return numpy_helper.from_array(numbers, "w") if raw else helper.make_tensor("w", kind, [5], numbers)


def refused(weight: Any, place: Callable[[Any], Any]) -> str:
    with pytest.raises(BadModel) as caught:
        check_contents(place(weight))
    return str(caught.value)


def as_weight(weight: Any) -> Any:
    return helper.make_model(helper.make_graph([], "g", [], [], [weight]))


def as_attribute(weight: Any) -> Any:
    return helper.make_model(helper.make_graph([helper.make_node("Constant", [], ["y"], value=weight)], "g", [], []))


def in_a_branch(weight: Any) -> Any:
    branch = helper.make_graph([], "branch", [], [], [weight])
    return helper.make_model(helper.make_graph([helper.make_node("If", ["c"], ["y"], then_branch=branch)], "g", [], []))


def in_a_function(weight: Any) -> Any:
    nodes = [helper.make_node("Constant", [], ["y"], value=weight)]
    function = helper.make_function("mine", "F", [], ["y"], nodes, [helper.make_opsetid("", 17)])
    return helper.make_model(helper.make_graph([], "g", [], []), functions=[function])


def in_sparse_values(weight: Any) -> Any:
    indices = numpy_helper.from_array(np.arange(5))
    sparse = helper.make_sparse_tensor(weight, indices, [10])
    return helper.make_model(
        helper.make_graph([helper.make_node("Constant", [], ["y"], sparse_value=sparse)], "g", [], [])
    )


@pytest.mark.parametrize("raw", [True, False])
def test_numbers_of_an_onnx_tensor_fit_its_shape(*, raw: bool) -> None:
    for name in ONNX_TYPES:
        weight = made(TensorProto.DataType.Value(name), raw=raw)
        check_contents(as_weight(weight))
        for shape in OTHER_SHAPES:
            del weight.dims[:]
            weight.dims.extend(shape)
            assert refused(weight, as_weight).startswith("weight 'w' is a tensor of "), (name, shape)


@pytest.mark.parametrize("place", [as_weight, as_attribute, in_a_branch, in_a_function, in_sparse_values])
def test_an_onnx_tensor_is_looked_at_wherever_it_is(place: Callable[[Any], Any]) -> None:
    weight = made(TensorProto.FLOAT, raw=True)
    check_contents(place(weight))
    weight.raw_data = weight.raw_data[:-1]
    assert "is a tensor of shape [5], which needs 20 bytes, and the file has 19 for it" in refused(weight, place)


def test_texts_of_an_onnx_tensor_fit_its_shape() -> None:
    weight = helper.make_tensor("w", TensorProto.STRING, [2], np.array([b"a", b"b"]))
    check_contents(as_weight(weight))
    weight.dims[0] = 3
    assert "needs 3 numbers or texts, and the file has 2 for it" in refused(weight, as_weight)
    weight.dims[0] = 2
    weight.raw_data = b"ab"
    assert "weight 'w' is a tensor of shape [2]" in refused(weight, as_weight)


@pytest.mark.parametrize("name", [*UNSUPPORTED, "999"])
def test_an_onnx_tensor_of_another_type_is_refused(name: str) -> None:
    kind = TensorProto.DataType.Value(name) if name in UNSUPPORTED else int(name)
    weight = TensorProto(name="w", data_type=kind, raw_data=b"x", dims=[1])
    assert f"weight 'w' has numbers of the type {name}, which is not supported" in refused(weight, as_weight)


# ---- PyTorch --------------------------------------------------------------------------------------------------------


def program(meta: Any, payload: bytes) -> bytes:
    config = {"config": {"w": {"path_name": "weight_0", "use_pickle": False, "tensor_meta": meta}}}
    entries = {
        "models/model.json": b"{}",
        "data/weights/model_weights_config.json": json.dumps(config).encode(),
        "data/weights/weight_0": payload,
        "data/constants/model_constants_config.json": b'{"config": {}}',
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, contents in entries.items():
            file.writestr(f"net/{name}", contents)
    return buffer.getvalue()


def view(sizes: list[Any], strides: list[Any], offset: Any = 0, dtype: Any = 7, device: str = "cpu") -> dict[str, Any]:
    return {
        "dtype": dtype,
        "sizes": [{"as_int": size} for size in sizes],
        "strides": [{"as_int": stride} for stride in strides],
        "storage_offset": {"as_int": offset},
        "device": {"type": device, "index": None},
    }


@pytest.mark.parametrize(
    ("meta", "size"),
    [
        (view([2, 3], [3, 1]), 24),
        (view([2, 3], [1, 2]), 24),
        (view([3], [1], 3), 24),  # a part of a payload that others share
        (view([100], [0]), 4),
        (view([], []), 4),
        (view([0, 3], [3, 1]), 0),
        (view([2], [1], dtype=13), 4),
    ],
)
def test_a_pytorch_tensor_within_its_payload_is_kept(meta: Any, size: int) -> None:
    assert b"weight_0" in screen(program(meta, bytes(size)))


@pytest.mark.parametrize(
    ("meta", "size", "words"),
    [
        (view([2, 3], [3, 1]), 23, "of shape [2, 3], needs more than its 23 bytes"),
        (view([2, 3], [3, 1]), 0, "of shape [2, 3], needs more than its 0 bytes"),
        (view([3], [1], 4), 24, "needs more than its 24 bytes"),
        (view([2], [1000]), 24, "needs more than its 24 bytes"),
        (view([2], [2**62]), 24, "needs more than its 24 bytes"),
        (view([3], [1], -1), 24, "a shape that no tensor can have"),
        (view([-3], [1]), 24, "a shape that no tensor can have"),
        (view([3], [-1]), 24, "a shape that no tensor can have"),
        (view([3], []), 24, "a shape that no tensor can have"),
        (view([3], [1, 1]), 24, "a shape that no tensor can have"),
        (view([True], [1]), 24, "a shape that no tensor can have"),
        (view([2**33], [0]), 4, "is a tensor of shape [8589934592]"),
        (view([1], [1], dtype=9), 24, "has no known type"),
        (view([1], [1], dtype=[7]), 24, "has no known type"),
        (view([1], [1], device="meta"), 24, "is not in the memory of a CPU"),
        ({}, 24, "has no known type"),
        (None, 24, "has no known type"),
        ([7], 24, "has no known type"),
    ],
)
def test_a_pytorch_tensor_beyond_its_payload_is_refused(meta: Any, size: int, words: str) -> None:
    with pytest.raises(BadModel, match=r"^weight 'w'") as caught:
        screen(program(meta, bytes(size)))
    assert words in str(caught.value)
