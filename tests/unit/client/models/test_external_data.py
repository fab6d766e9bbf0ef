"""ONNX models with their weights in files beside them, as exporters write them."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import fractune
from fractune.errors import BadModel
from fractune.models.source import model_file


def model() -> onnx.ModelProto:
    """Weights of the graph, in a constant, and in a branch of an If."""
    random = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array(random.standard_normal(shape).astype("float32"), name)

    def value(name: str, *shape: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    def branch(name: str) -> onnx.GraphProto:
        add = helper.make_node("Add", ["h", f"{name}_b"], [f"{name}_y"])
        return helper.make_graph([add], name, [], [value(f"{name}_y", 4, 16)], [weight(f"{name}_b", 16)])

    nodes = [
        helper.make_node("Constant", [], ["c"], value=weight("c", 8, 16)),
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("MatMul", ["m", "c"], ["h"]),
        helper.make_node("If", ["yes"], ["y"], then_branch=branch("t"), else_branch=branch("e")),
    ]
    weights = [weight("w", 8, 8), numpy_helper.from_array(np.ones((), bool), "yes"), weight("not\u00e9d", 3)]
    graph = helper.make_graph(nodes, "g", [value("x", 4, 8)], [value("y", 4, 16)], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def saved(path: Path, *, in_one: bool = True, folder: str = "") -> Path:
    """With each weight in a file beside the model: all in one, or one for each."""
    location = str(Path(folder, f"{path.name}.data")) if in_one else None
    (path.parent / folder).mkdir(exist_ok=True)
    onnx.save(
        model(),
        path,
        save_as_external_data=True,
        all_tensors_to_one_file=in_one,
        location=location,
        size_threshold=0,
        convert_attribute=True,
    )
    return path


def change(path: Path, **entries: str) -> None:
    """Other entries for the place of the first weight."""
    held = onnx.load(path, load_external_data=False)
    for entry in held.graph.initializer[0].external_data:
        entry.value = entries.pop(entry.key, entry.value)
    for key, value in entries.items():
        held.graph.initializer[0].external_data.add(key=key, value=value)
    path.write_bytes(held.SerializeToString())


@pytest.mark.parametrize("in_one", [True, False])
@pytest.mark.parametrize("folder", ["", "weights"])
def test_it_is_one_file_with_the_same_model(tmp_path: Path, in_one: bool, folder: str) -> None:  # noqa: FBT001
    path = saved(tmp_path / "m.onnx", in_one=in_one, folder=folder)
    expected = onnx.load(path)
    with model_file(path) as found:
        assert (found.name, found.parent == tmp_path) == ("m.onnx", False)
        held = onnx.load(found, load_external_data=False)
    assert not found.exists()
    for each in (expected, held):
        for tensor in onnx.external_data_helper._get_all_tensors(each):
            del tensor.external_data[:]
            tensor.ClearField("data_location")
    assert held == expected
    onnx.checker.check_model(held, full_check=True)


def test_open_sizes_are_found_beside_weights_in_another_file(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx")
    held = onnx.load(path, load_external_data=False)
    held.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    path.write_bytes(held.SerializeToString())
    assert fractune.inspect(path).inputs[0].suggested == [1, 8]


def test_a_weight_without_a_length_takes_the_rest_of_its_file(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", in_one=False)
    held = onnx.load(path, load_external_data=False)
    kept = [each for each in held.graph.initializer[0].external_data if each.key == "location"]
    del held.graph.initializer[0].external_data[:]
    held.graph.initializer[0].external_data.extend(kept)
    path.write_bytes(held.SerializeToString())
    with model_file(path) as found:
        assert onnx.load(found).graph.initializer[0].raw_data == model().graph.initializer[0].raw_data


def _link(folder: Path, data: Path) -> None:
    data.rename(folder / "elsewhere")
    data.symlink_to("elsewhere")


def _link_of_a_folder(folder: Path, data: Path) -> None:
    (folder / "real").mkdir()
    (folder / "real" / "d").write_bytes(data.read_bytes())
    (folder / "way").symlink_to("real")
    change(folder / "m.onnx", location="way/d")


def _pipe(_folder: Path, data: Path) -> None:
    data.unlink()
    os.mkfifo(data)


def _folder(_folder: Path, data: Path) -> None:
    data.unlink()
    data.mkdir()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda _, data: data.unlink(), "'m.onnx.data' beside the model, and that file is missing; copy it there"),
        (lambda _, data: os.truncate(data, 100), "of 'm.onnx.data', which has 100; copy or"),
        (_link, "'m.onnx.data' beside the model, which is a link"),
        (_link_of_a_folder, "'way/d' beside the model, which is a link, or leads through one"),
        (_pipe, "'m.onnx.data' beside the model, which is not a file"),
        (_folder, "'m.onnx.data' beside the model, which is not a file"),
    ],
)
def test_a_file_that_is_not_there_is_one_line(tmp_path: Path, spoil: Callable[[Path, Path], None], says: str) -> None:
    path = saved(tmp_path / "m.onnx")
    spoil(tmp_path, tmp_path / "m.onnx.data")
    with pytest.raises(BadModel, match=r"^m\.onnx: weight '[cw]' ") as refused, model_file(path):
        pass
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"location": "/etc/passwd"}, "'/etc/passwd'; its file must be in the model's folder"),
        ({"location": "../m.onnx.data"}, "'../m.onnx.data'; its file must be in the model's folder"),
        ({"location": "a/../m.onnx.data"}, "its file must be in the model's folder"),
        ({"location": ""}, "its file must be in the model's folder"),
        ({"location": "/dev/zero"}, "its file must be in the model's folder"),
        ({"offset": "-1"}, "has '-1' for a place in its file; copy or export the model again"),
        ({"length": "9" * 5000}, "for a place in its file"),
        ({"length": "9" * 18}, "copy or export the model again with that file"),
        ({"offset": "1e3"}, "has '1e3' for a place in its file"),
    ],
)
def test_a_place_that_is_not_allowed_is_refused(tmp_path: Path, entries: dict[str, str], says: str) -> None:
    path = saved(tmp_path / "m.onnx")
    change(path, **entries)
    with pytest.raises(BadModel, match=r"^m\.onnx: weight 'w' ") as refused, model_file(path):
        pass
    assert says in str(refused.value)
    assert len(str(refused.value)) < 400


def test_a_huge_model_is_refused_before_a_byte_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path / "m.onnx")
    os.truncate(tmp_path / "m.onnx.data", 200 << 30)  # sparse
    change(path, length=str(200 << 30))
    monkeypatch.setattr("fractune.models.external_data._write", lambda *_: pytest.fail("copied"))
    says = r"m\.onnx: has 200\.0 GiB with its weights, and at most 128 are"
    with pytest.raises(BadModel, match=says), model_file(path):
        pass


def test_a_small_file_that_many_weights_share_does_not_fill_the_disk(tmp_path: Path) -> None:
    data, path = tmp_path / "m.data", tmp_path / "m.onnx"
    data.write_bytes(bytes(1 << 20))
    held = model()
    for number in range(20):
        weight = held.graph.initializer.add(name=f"w{number}", data_type=TensorProto.FLOAT, dims=[1 << 18])
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=data.name)
    path.write_bytes(held.SerializeToString())
    says = r"m\.onnx: has 20,\d+,\d+ bytes of weights in files of 1,0\d+,\d+: too many share their bytes"
    with pytest.raises(BadModel, match=says), model_file(path):
        pass


def test_weights_may_lie_in_a_safetensors_file(tmp_path: Path) -> None:
    """Its numbers are at offsets, as in any other file beside a model."""
    path = saved(tmp_path / "m.onnx")
    expected = onnx.load(path)
    header = b'{"w": {"dtype": "F32", "shape": [8, 8], "data_offsets": [0, 256]}}'
    numbers = numpy_helper.to_array(expected.graph.initializer[0]).tobytes()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + numbers)
    change(path, location="model.safetensors", offset=str(8 + len(header)), length=str(len(numbers)))
    with model_file(path) as found:
        first = onnx.load(found).graph.initializer[0]
    assert (numpy_helper.to_array(first) == numpy_helper.to_array(expected.graph.initializer[0])).all()
