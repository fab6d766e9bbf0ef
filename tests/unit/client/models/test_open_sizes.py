"""Sizes of what an ONNX file leaves open: one small model for each reason that a file can give, and hostile files."""

import contextlib
import math
import subprocess
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import fractune
from fractune.errors import BadModel
from fractune.models import graph_shapes, open_sizes, sizes_child
from fractune.models.inspection import Inspection, OpenSizes
from fractune.models.open_sizes import settled
from fractune_core.files import model_files
from fractune_core.files.model_files import read_interface, read_outline

Dims = Sequence[int | str | None] | None
IMAGE = ("batch", 3, "height", "width")
TEXT = ("batch", "sequence")
DEFAULT = 17
pytestmark = pytest.mark.usefixtures("examined_here")


def weight(name: str, *shape: int) -> Any:
    return numpy_helper.from_array(np.zeros(shape, np.float32), name)


def numbers(name: str, *values: int) -> Any:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def scales(factor: int) -> Any:
    return numpy_helper.from_array(np.array([1, 1, factor, factor], np.float32), "scales")


def node(kind: str, inputs: str, output: str, **attributes: Any) -> Any:
    """`inputs` has a dash for one that is left out."""
    return helper.make_node(kind, [name.strip("-") for name in inputs.split()], [output], **attributes)


def saved(
    path: Path,
    inputs: dict[str, Dims],
    nodes: Sequence[Any] = (),
    weights: Sequence[Any] = (),
    *,
    output: Dims = None,
    values: dict[str, Dims] | None = None,
    metadata: dict[str, str] | None = None,
    dtype: int = TensorProto.FLOAT,
) -> Path:
    """A model of these nodes. The last one makes the output; without nodes an Identity does."""
    nodes = nodes or [node("Identity", next(iter(inputs)), "y")]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, dtype, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, output)],
        weights,
        value_info=[
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (values or {}).items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", DEFAULT)], ir_version=8)
    helper.set_model_props(model, metadata or {})
    path.write_bytes(model.SerializeToString())
    return path


STEM = [node("Conv", "x w", "c", kernel_shape=[16, 16], strides=[16, 16], name="stem")]
"""pictures in squares of 16"""
FLAT = [*STEM, node("Flatten", "c", "f"), node("Gemm", "f g", "y", transB=1, name="head")]

REASONS: dict[str, tuple[dict[str, Any], dict[str, list[int]], str]] = {
    "a name of a batch at another axis": ({"inputs": {"x": ["time", "batch", 8]}}, {"x": [128, 1, 8]}, "a guess"),
    "a guess for an image": ({"inputs": {"x": IMAGE}}, {"x": [1, 3, 224, 224]}, "a guess for an image"),
    "a guess for an image, channels last": (
        {"inputs": {"x": [None, None, None, 3]}},
        {"x": [1, 224, 224, 3]},
        "a guess for an image",
    ),
    "a guess for sound": ({"inputs": {"audio": [None, None]}}, {"audio": [1, 16000]}, "a guess: one second"),
    "equal names": (
        {"inputs": {"ids": TEXT, "mask": TEXT}, "dtype": TensorProto.INT64},
        {"ids": [1, 128], "mask": [1, 128]},
        "a guess for a sequence",
    ),
    "names of TensorFlow": ({"inputs": {"x": ["unk__1", "unk__2"]}}, {"x": [1, 128]}, "a guess"),
    "names of Paddle": (
        {"inputs": {"x": ["DynamicDimension.0", 3, "DynamicDimension.1", "DynamicDimension.2"]}},
        {"x": [1, 3, 224, 224]},
        "a guess for an image",
    ),
    "names of PyTorch": (
        {"inputs": {"ids": ["batch_size", "sequence_length"]}, "dtype": TensorProto.INT64},
        {"ids": [1, 128]},
        "a guess",
    ),
    "metadata": (
        {"inputs": {"x": IMAGE}, "metadata": {"imgsz": "[320, 640]"}},
        {"x": [1, 3, 320, 640]},
        "'imgsz' in the file's metadata",
    ),
    "metadata that the graph contradicts": (
        {"inputs": {"x": IMAGE}, "nodes": FLAT, "metadata": {"imgsz": "640"}}
        | {"weights": [weight("w", 4, 3, 16, 16), weight("g", 10, 4 * 8 * 8)]},
        {"x": [1, 3, 128, 128]},
        "Gemm 'head' has weights for 256",
    ),
    "a shape inside": (
        {"inputs": {"x": IMAGE}, "nodes": STEM, "weights": [weight("w", 4, 3, 16, 16)]}
        | {"values": {"c": ["batch", 4, 20, 20]}},
        {"x": [1, 3, 320, 320]},
        "the file has [None, 4, 20, 20] for 'c'",
    ),
    "a shape of an output": (
        {"inputs": {"x": IMAGE}, "nodes": STEM, "weights": [weight("w", 4, 3, 16, 16)], "output": [None, 4, 40, 40]},
        {"x": [1, 3, 640, 640]},
        "the file has [None, 4, 40, 40] for 'c'",
    ),
    "a product behind a Flatten": (
        {"inputs": {"x": IMAGE}, "nodes": FLAT, "weights": [weight("w", 4, 3, 16, 16), weight("g", 10, 4 * 14 * 14)]},
        {"x": [1, 3, 224, 224]},
        "Gemm 'head' has weights for 784",
    ),
    "a Reshape": (
        {"inputs": {"x": IMAGE}, "nodes": [*STEM, node("Reshape", "c s", "y", name="flat")]}
        | {"weights": [weight("w", 4, 3, 16, 16), numbers("s", 1, 4 * 16 * 16)]},
        {"x": [1, 3, 256, 256]},
        "Reshape 'flat' makes [1, 1024] of it",
    ),
    "a Reshape of each row": (
        {"inputs": {"x": IMAGE}, "nodes": [*STEM, node("Reshape", "c s", "y", name="flat")]}
        | {"weights": [weight("w", 4, 3, 16, 16), numbers("s", -1, 4 * 24 * 24)]},
        {"x": [1, 3, 384, 384]},
        "Reshape 'flat' makes [-1, 2304] of it",
    ),
    "a table of positions for patches": (
        {"inputs": {"x": IMAGE}}
        | {
            "nodes": [
                *STEM,
                node("Reshape", "c s", "r"),
                node("Transpose", "r", "t", perm=[0, 2, 1]),
                node("Concat", "first t", "k", axis=1),
                node("Add", "k table", "y", name="positions"),
            ],
            "weights": [
                *(weight("w", 4, 3, 16, 16), numbers("s", 1, 4, -1)),
                *(weight("first", 1, 1, 4), weight("table", 1, 24 * 24 + 1, 4)),
            ],
        },
        {"x": [1, 3, 384, 384]},
        "Add 'positions' has",
    ),
    "a table of positions for words": (
        {"inputs": {"ids": TEXT}, "dtype": TensorProto.INT64}
        | {
            "nodes": [
                node("Gather", "words ids", "e"),
                node("Shape", "ids", "shape", start=1),
                node("Squeeze", "shape", "count"),
                node("Range", "zero count one", "at"),
                node("Gather", "table at", "p", name="positions"),
                node("Add", "e p", "y"),
            ],
            "weights": [
                *(weight("words", 100, 8), weight("table", 77, 8)),
                *(
                    numpy_helper.from_array(np.array(value, np.int64), name)
                    for name, value in (("zero", 0), ("one", 1))
                ),
            ],
        },
        {"ids": [1, 77]},
        "Gather 'positions' has a table of 77 positions",
    ),
    "a Resize": (
        {"inputs": {"x": IMAGE}}
        | {
            "nodes": [
                *STEM,
                node("Resize", "c - scales", "up", mode="nearest"),
                node("Concat", "up skip", "y", axis=1, name="join"),
            ],
            "weights": [weight("w", 4, 3, 16, 16), weight("skip", 1, 2, 26, 26), scales(2)],
        },
        {"x": [1, 3, 208, 208]},
        "Concat 'join' joins",
    ),
    "strides that must divide it": (
        {"inputs": {"x": IMAGE}}
        | {
            "nodes": [
                node("MaxPool", "x", "half", kernel_shape=[64, 64], strides=[64, 64]),
                node("Resize", "half - scales", "up", mode="nearest"),
                node("Add", "up x", "y", name="sum"),
            ],
            "weights": [scales(64)],
        },
        {"x": [1, 3, 192, 192]},
        "Add 'sum' has",
    ),
    "a window": (
        {"inputs": {"x": [None, 1, "samples_in_step"]}, "weights": [weight("w", 4, 1, 24000)]}
        | {"nodes": [node("Conv", "x w", "y", name="window", strides=[160])]},
        {"x": [1, 1, 24000]},
        "Conv 'window' needs at least 24000",
    ),
    "the features of a product": (
        {"inputs": {"x": [None, "features"]}, "nodes": [node("MatMul", "x w", "y", name="first")]}
        | {"weights": [weight("w", 13, 4)]},
        {"x": [1, 13]},
        "MatMul 'first' has weights for 13",
    ),
    "the numbers of an LSTM": (
        {
            "inputs": {"x": ["time", "batch", None]},
            "nodes": [helper.make_node("LSTM", ["x", "w", "r"], ["y"], name="l")],
        }
        | {"weights": [weight("w", 1, 32, 40), weight("r", 1, 32, 8)]},
        {"x": [128, 1, 40]},
        "LSTM 'l' has weights for 40",
    ),
    "the channels of a convolution": (
        {"inputs": {"x": [None, None, 32, 32]}, "nodes": STEM, "weights": [weight("w", 4, 6, 16, 16)]},
        {"x": [1, 6, 32, 32]},
        "Conv 'stem' has weights for 6 channels",
    ),
    "a batch that is fixed inside": (
        {"inputs": {"x": ["batch", 8]}, "nodes": [node("Reshape", "x s", "y", name="fixed")]}
        | {"weights": [numbers("s", 4, 2, 4)]},
        {"x": [4, 8]},
        "Reshape 'fixed' makes [4, 2, 4] of it",
    ),
}


@pytest.mark.parametrize("reason", REASONS)
def test_a_size_follows_from_each_reason(reason: str, tmp_path: Path) -> None:
    made, suggested, why = REASONS[reason]
    found = fractune.inspect(saved(tmp_path / "m.onnx", **made))
    assert found.suggested == suggested
    assert why in "; ".join(each.why for each in found.inputs)
    assert found.notes == ()
    axes = [axis for each in found.inputs for axis in each.axes or () if axis.size is None]
    assert all(axis.is_guess == axis.why.startswith("a guess") for axis in axes)


def test_the_command_and_the_table_show_all_of_it(tmp_path: Path) -> None:
    path = saved(tmp_path / "two words.onnx", {"x": IMAGE, "any": None, "fixed": [2, 2]})
    found = fractune.inspect(path)
    assert found.command == (
        f"fractune tune '{path}' --size batch=1 --size height=224 --size width=224 --input any=DIM,DIM,... "
        "--shares cpu:1"
    )
    text = str(found.table)
    assert "[batch, 3, height, width]" in text
    assert "1: the batch; 224: a guess for an image" in text
    assert "unknown rank" in text
    assert found.to_json()["suggested"] == {"x": [1, 3, 224, 224]}
    assert "3 inputs, 1 of them open" in repr(found)
    assert fractune.inspect(onnx.load(path)).command.startswith("fractune tune model.onnx --size batch=1 ")


def test_given_shapes_settle_their_names_and_stay(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", {"ids": TEXT, "mask": TEXT, "x": [None, "other"]})
    found = fractune.inspect(path, inputs={"ids": [2, 50]})
    assert found.suggested == {"mask": [2, 50], "x": [1, 128]}
    assert settled(path, {"ids": [2, 50], "x": [1, 8]}) == {"ids": [2, 50], "x": [1, 8], "mask": [2, 50]}


SETTLED: list[tuple[dict[str, Dims], Any, Any]] = [
    ({"x": ["batch", 8]}, None, {"x": [1, 8]}),
    ({"x": [None, 8], "y": [0, 4], "z": [-1, 4]}, {}, {"x": [1, 8], "y": [1, 4], "z": [1, 4]}),
    ({"x": ["N", 8], "state": [2, "N", 4]}, None, {"x": [1, 8], "state": [2, 1, 4]}),
    ({"x": ["batch", 8]}, {"x": [3, 8]}, {"x": [3, 8]}),
    ({"x": ["batch", 8]}, {"x": "const:1"}, {"x": "const:1"}),
    ({"ids": TEXT, "x": ["other_batch", 3]}, {"ids": [1, 16]}, {"ids": [1, 16], "x": [1, 3]}),
    ({"ids": TEXT, "x": [None, 3]}, {"ids": [[1, 16], [1, 64]]}, {"ids": [[1, 16], [1, 64]], "x": [1, 3]}),
    ({"x": [4, 8]}, None, None),
]


@pytest.mark.parametrize(("inputs", "given", "expected"), SETTLED)
def test_open_batches_are_1_and_a_line_says_so(
    tmp_path: Path, inputs: dict[str, Dims], given: Any, expected: Any
) -> None:
    lines: list[str] = []
    assert settled(saved(tmp_path / "m.onnx", inputs), given, report=lines.append) == expected
    assert len(lines) == (expected != given)
    assert all("the open batch of 'x'" in line for line in lines)


def test_another_open_axis_needs_a_size(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", {"x": IMAGE, "ids": TEXT})
    with pytest.raises(OpenSizes) as refused:
        settled(path, {"ids": [1, 16]})
    assert str(refused.value) == (
        "input 'x' has open sizes ([batch, 3, height, width]); fix them, such as with --size height=224 --size "
        "width=224 ('fractune inspect' gives the reasons for these sizes)"
    )
    assert refused.value.exit_code == BadModel.exit_code
    others: list[dict[str, Dims]] = [{"x": ["sequence", 8]}, {"x": None}, {"x": [1, None]}]
    for inputs in others:
        with pytest.raises(OpenSizes):
            settled(saved(tmp_path / "m.onnx", inputs), None)


OTHERS: dict[str, tuple[bytes, str]] = {
    "m.json": (b'{"root": 1}', "inspect reads ONNX files, and this is none"),
    "m.pt2": (b"PK\x03\x04" + bytes(60), "inspect reads ONNX files, and this is none"),
    "m.py": (b"x = 1", "is Python code"),
    "m.onnx": (b"", "inspect reads ONNX files, and this is none"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_formats_are_named_and_left_to_the_server(tmp_path: Path, name: str) -> None:
    data, says = OTHERS[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(BadModel, match=says):
        fractune.inspect(tmp_path / name)
    assert settled(tmp_path / name, {"x": [1]}) == {"x": [1]}


def examined(tmp_path: Path, inputs: dict[str, Dims], **made: Any) -> Inspection:
    found = fractune.inspect(saved(tmp_path / "m.onnx", inputs, **made))
    assert str(found.table).isprintable() or "\x1b" not in str(found.table)
    return found


@pytest.mark.usefixtures("apart")
def test_hostile_sizes_ranks_and_graphs_leave_guesses(tmp_path: Path) -> None:
    deep = examined(tmp_path, {"x": [None] * 64})
    assert len(deep.suggested["x"]) == 64
    assert max(map(len, str(deep.table).splitlines())) < 400
    huge = examined(tmp_path, {"x": [None, 2**62, 2**62]}, nodes=[node("Flatten", "x", "y")])
    assert huge.suggested == {"x": [1, 2**62, 2**62]}
    circle = [node("Add", "x b", "a"), node("Add", "a x", "b")]
    assert examined(tmp_path, {"x": [None, None]}, nodes=circle).suggested == {"x": [1, 128]}
    nonsense = [node("Conv", "x x", "a"), node("NoSuchOperator", "a -", "b"), node("Reshape", "b", "y")]
    assert examined(tmp_path, {"x": IMAGE}, nodes=nonsense).suggested == {"x": [1, 3, 224, 224]}
    target = numbers("s", 2**62, 2**62, -1)
    assert examined(tmp_path, {"x": IMAGE}, nodes=[node("Reshape", "x s", "y")], weights=[target]).notes
    fill = [node("ConstantOfShape", "s", "c"), node("Add", "x c", "y")]
    assert examined(tmp_path, {"x": [None, None]}, nodes=fill, weights=[numbers("s", 2**40, 2**20)]).suggested["x"]


TOO_MANY: dict[str, dict[str, Dims]] = {
    "has 1,001 inputs with 1,001 axes; export it with at most 1,000 of them with 8,000 axes": {
        f"x{at}": [None] for at in range(1001)
    },
    "has 200 inputs with 8,200 axes; export it with at most 1,000 of them with 8,000 axes": {
        f"x{at}": [None] * 41 for at in range(200)
    },
    "has 65 axes in 'x'; export it with at most 64": {"x": [None] * 65},
    "has an input without a name; export it with a name for each": {"x": [1], "": [1, None]},
}


@pytest.mark.parametrize("says", TOO_MANY)
def test_too_many_inputs_or_axes_and_an_input_without_a_name_are_refused(tmp_path: Path, says: str) -> None:
    path = saved(tmp_path / "m.onnx", TOO_MANY[says])
    for call in (fractune.inspect, lambda path: settled(path, None)):
        with pytest.raises(BadModel, match=f"^m.onnx: {says}$"):
            call(path)


def test_many_outputs_are_refused_and_many_weights_among_the_inputs_are_not(tmp_path: Path) -> None:
    """Exporters of old versions list the weights as inputs."""
    names = [f"x{at}" for at in range(1001)]
    path = saved(tmp_path / "m.onnx", {name: [1] for name in names}, weights=[weight(name, 1) for name in names[1:]])
    assert [each.name for each in fractune.inspect(path).inputs] == ["x0"]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in names]
    onnx.save(helper.make_model(helper.make_graph([node("Identity", "x", "x0")], "g", values[:1], values)), path)
    with pytest.raises(BadModel, match="has 1,001 outputs with 1,001 axes"):
        fractune.inspect(path)


@pytest.mark.parametrize("name", ["a\x1b[31mb", "a\nb", "a\u202eb", "n" * 20_000])
def test_names_that_cannot_be_printed_are_refused_and_escaped(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path / "m.onnx", {name: [1, None]})
    for call in (fractune.inspect, lambda path: settled(path, None)):
        with pytest.raises(BadModel, match="export the model with names of at most 10,000 printable characters") as bad:
            call(path)
        assert len(str(bad.value)) < 400
        assert str(bad.value).isprintable()
    path = saved(tmp_path / "m.onnx", {"x": [1, name]})
    with pytest.raises(BadModel, match="printable characters"):
        fractune.inspect(path)


@pytest.mark.usefixtures("apart")
def test_names_of_nodes_and_metadata_are_escaped(tmp_path: Path) -> None:
    nodes = [*STEM, helper.make_node("Reshape", ["c", "s"], ["y"], name="\x1b[31m" + "n" * 500)]
    held = [weight("w", 4, 3, 16, 16), numbers("s", 1, 1024)]
    found = examined(
        tmp_path, {"x": IMAGE}, nodes=nodes, weights=held, metadata={"imgsz": "\x1b[0]", "image_size": "9" * 99}
    )
    assert found.suggested == {"x": [1, 3, 256, 256]}
    assert all("\x1b" not in each.why and len(each.why) < 200 for each in found.inputs)


def test_a_truncated_or_changed_file_is_one_line(tmp_path: Path) -> None:
    whole = saved(tmp_path / "m.onnx", {"x": IMAGE}, nodes=FLAT, weights=[weight("w", 4, 3, 16, 16)]).read_bytes()
    random = np.random.default_rng(0)
    for trial in range(200):
        data = bytearray(whole[: int(random.integers(2, len(whole)))] if trial % 2 else whole)
        for at in random.integers(0, min(400, len(data)), trial % 5):
            data[at] = int(random.integers(0, 256))
        (tmp_path / "m.onnx").write_bytes(data)
        with contextlib.suppress(BadModel):  # and nothing else
            held = read_interface(tmp_path / "m.onnx")
            if held is not None:
                read_outline(tmp_path / "m.onnx")
    (tmp_path / "m.onnx").write_bytes(whole[:200])
    with pytest.raises(BadModel, match=r"m\.onnx: is a damaged or truncated ONNX file"):
        fractune.inspect(tmp_path / "m.onnx")


def test_the_numbers_of_weights_are_not_read(tmp_path: Path) -> None:
    """A sparse file with a weight of 2 GB; only its name and shape are looked at."""
    small = saved(tmp_path / "small.onnx", {"x": IMAGE}, nodes=FLAT, weights=[weight("w", 4, 3, 16, 16)])
    model = onnx.load(small)
    body = TensorProto(name="g", dims=[10, 784], data_type=TensorProto.FLOAT).SerializeToString()
    count = 2 << 30
    tensor = body + b"\x4a" + model_files.varint_bytes(count)
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        # Two fields of one graph: protobuf joins them.
        head = model.SerializeToString() + b"\x3a"
        field = b"\x2a" + model_files.varint_bytes(len(tensor) + count) + tensor
        file.write(head + model_files.varint_bytes(len(field) + count) + field)
        file.truncate(file.tell() + count)
    assert len(read_outline(path)) < 20_000
    assert fractune.inspect(path).suggested == {"x": [1, 3, 224, 224]}
    path.unlink()


def test_the_work_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with many fields is refused, and a large graph is tried with few sizes."""
    path = saved(tmp_path / "m.onnx", {"x": IMAGE})
    monkeypatch.setattr(model_files, "_MOST_FIELDS", 5)
    with pytest.raises(BadModel, match="has more than 5 parts"):
        read_interface(path)
    chain = [node("MatMul", "x w", "v0")] + [node("Relu", f"v{at}", f"v{at + 1}") for at in range(3000)]
    graph = helper.make_graph(
        chain, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, None])], [], [weight("w", 1000, 2)]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", DEFAULT)])
    order = {
        "inputs": [{"name": "x", "shape": [1, None]}],
        "variables": [
            {"name": "n", "places": [["x", 1]], "role": "length", "size": 128, "fixed": False, "formula": None}
        ],
        "search": True,
    }
    inferred: list[int] = []
    real = onnx.shape_inference.infer_shapes

    def counting(model: Any, **options: Any) -> Any:
        inferred.append(len(model.graph.node))
        return real(model, **options)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", counting)
    assert sizes_child.examined(order, model.SerializeToString())["variables"] == [
        {"size": 1000, "why": "MatMul 'v0' has weights for 1000"}
    ]
    assert sum(inferred) <= graph_shapes._MOST_WORK + 2 * len(chain)
    assert len(inferred) <= graph_shapes._MOST_TRIALS + 2
    inferred.clear()
    monkeypatch.setattr(graph_shapes, "_MOST_WORK", len(chain) + 1)
    assert "too large to try many sizes" in sizes_child.examined(order, model.SerializeToString())["notes"][0]
    assert math.fsum(inferred) <= len(chain) + 1


def test_one_large_field_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path / "m.onnx", {"x": IMAGE}, metadata={"k": "v" * (4 << 20)})
    monkeypatch.setattr(model_files, "_MOST_OUTLINE_BYTES", 1 << 20)
    tracemalloc.start()
    with pytest.raises(BadModel, match="has more than 1 MiB beside its weights"):
        read_outline(path)
    assert tracemalloc.get_traced_memory()[1] < 2 << 20
    tracemalloc.stop()


def test_two_inputs_of_one_name_are_refused(tmp_path: Path) -> None:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape) for shape in ([1, None], [])]
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(helper.make_graph([node("Identity", "x", "y")], "g", inputs, [])), path)
    with pytest.raises(BadModel, match="has two inputs named 'x'"):
        fractune.inspect(path)


def test_the_command_is_safe_to_print_and_to_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("-m.onnx", "a\x1b[31m'b\\\n$(touch c)\u202e.onnx"):
        saved(tmp_path / name, {"x": [None]})
        command = fractune.inspect(name).command
        assert command.isprintable()
        shown = subprocess.run(["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True).stdout
        word = shown.decode().split("\0")[2]
        assert not word.startswith("-")
        assert Path(word).samefile(tmp_path / name)


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("said", ['{"variables": 5}', '{"variables": []}', '{"error": "\\u001b[31m"}', "[" * 100_000])
def test_what_the_process_says_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    (tmp_path / "liar.py").write_text(f"import sys\nsys.stdin.read()\nprint({said!r})\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(open_sizes, "_CHILD", "liar")
    found = fractune.inspect(saved(tmp_path / "m.onnx", {"x": IMAGE}))
    assert found.suggested == {"x": [1, 3, 224, 224]}
    assert "so the sizes are guesses" in found.notes[0]
    assert found.notes[0].isprintable()


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import sys; sys.stdin.read(); print('n' * (3 << 20))", "its process gave more than 1 MiB"),
        (
            "import fractune.models.sizes_child as child; child.examined = lambda *_: 'n' * (3 << 20); child.main()",
            "its process ended with code",
        ),
    ],
)
def test_a_long_answer_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, says: str) -> None:
    """The process bounds what it writes, and the client what it reads."""
    (tmp_path / "liar.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(open_sizes, "_CHILD", "liar")
    assert says in fractune.inspect(saved(tmp_path / "m.onnx", {"x": IMAGE})).notes[0]


@pytest.mark.usefixtures("apart")
def test_without_the_package_or_with_a_dead_process_the_sizes_are_guesses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _, _ = REASONS["a product behind a Flatten"]
    path = saved(tmp_path / "m.onnx", **made | {"metadata": {"imgsz": "640"}})
    (tmp_path / "onnx.py").write_text("raise ImportError('none here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = fractune.inspect(path)
    assert found.suggested == {"x": [1, 3, 224, 224]}
    assert found.notes == ("the graph was not examined (the package onnx is not installed), so the sizes are guesses",)
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.setattr(open_sizes, "_CHILD", "fractune.models.no_such_child")
    assert fractune.inspect(path).notes == (
        "the graph was not examined (its process ended with code 1), so the sizes are guesses",
    )
    monkeypatch.undo()
    monkeypatch.setattr(open_sizes, "_CHILD_TIMEOUT_S", 1e-3)
    assert "it took more than" in fractune.inspect(path).notes[0]


@pytest.mark.usefixtures("apart")
def test_the_graph_is_examined_in_a_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code in the place of the package, which runs when the graph is read, finds no file and no network."""
    (tmp_path / "secret").write_text("secret")
    package = tmp_path / "package"
    package.mkdir()
    (package / "onnx.py").write_text(
        "import os, socket\n"
        "found = []\n"
        f"for attempt in (lambda: open({str(tmp_path / 'secret')!r}), socket.socket):\n"
        "    try:\n"
        "        attempt()\n"
        "        found.append('taken')\n"
        "    except OSError:\n"
        "        found.append('refused')\n"
        "raise RuntimeError(f\"{' '.join(found)}, {'SECRET' in os.environ}\")\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(package))
    monkeypatch.setenv("SECRET", "secret")
    path = saved(tmp_path / "m.onnx", {"x": IMAGE})
    assert "RuntimeError: refused refused, False" in fractune.inspect(path).notes[0]
