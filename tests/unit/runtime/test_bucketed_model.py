"""A bundle for several shapes, compiled for real: buckets, padding and its proof, batches in parts, and errors."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import fractune
from fractune import BucketedModel
from fractune.comparing import padded_outputs
from fractune_core.errors import BadBundle, BadRequest
from fractune_core.files.bundles import Bundle
from tests.support.encoders import HIDDEN, inputs_of
from tests.support.onnx_models import run_by_onnxruntime
from tests.support.processes.forked import succeeds_in_child
from tests.support.real_bundle import ENCODER, ENCODER_SHAPES, MEAN_OF_ALL, compile_model


def joined(encoders: Path, out: Path, model: str = ENCODER, **options: Any) -> fractune.JoinedBundle:
    bundles = [encoders / f"{model}-{batch}x{length}.fractune" for batch, length in reversed(ENCODER_SHAPES[model])]
    return fractune.join(bundles, out=out / f"{model}.fractune", **options)


@pytest.fixture(scope="module")
def bundle(encoders: Path, tmp_path_factory: pytest.TempPathFactory) -> fractune.JoinedBundle:
    return joined(encoders, tmp_path_factory.mktemp("joined"))


@pytest.fixture
def model(bundle: fractune.JoinedBundle) -> BucketedModel:
    loaded = fractune.load(bundle)
    assert isinstance(loaded, BucketedModel)
    return loaded


def agree(encoders: Path, outputs: list[Any], inputs: dict[str, Any]) -> None:
    wanted = run_by_onnxruntime(encoders / f"{ENCODER}.onnx", inputs)
    assert [each.shape for each in outputs] == [each.shape for each in wanted]
    for output, reference in zip(outputs, wanted, strict=True):
        np.testing.assert_allclose(output, reference, atol=1e-4)


@pytest.mark.parametrize(("batch", "length"), [(1, 8), (1, 16), (2, 16), (1, 1), (1, 5), (1, 9), (2, 3), (2, 15)])
def test_inputs_of_any_shape_give_the_models_outputs(
    encoders: Path, model: BucketedModel, batch: int, length: int
) -> None:
    for seed in range(2):
        inputs = inputs_of(length, batch, seed, padding=length // 4)
        agree(encoders, model.run(inputs), inputs)
        agree(encoders, [np.from_dlpack(each) for each in model.run_tensors(inputs)], inputs)


def test_what_the_model_says_of_itself(bundle: fractune.JoinedBundle, model: BucketedModel) -> None:
    assert bundle.padding.proved
    assert model.padding == bundle.padding
    assert [spec.shape for spec in model.inputs] == [(None, None)] * 2
    assert [spec.shape for spec in model.outputs] == [(None, None, HIDDEN), (None, HIDDEN)]
    assert model.bucket_sizes == [{"batch": batch, "length": length} for batch, length in ENCODER_SHAPES[ENCODER]]
    assert model.buckets[0] == {"ids": [1, 8], "mask": [1, 8]}
    assert model.random_inputs()["ids"].shape == (2, 16)
    session = fractune.InferenceSession(bundle.path)
    assert [each.shape for each in session.get_inputs()] == [["batch", "length"]] * 2
    assert [each.shape for each in session.get_outputs()] == [["batch", "length", HIDDEN], ["batch", HIDDEN]]
    assert session.run(["mean"], inputs_of(5))[0].shape == (1, HIDDEN)


def test_weights_are_stored_and_loaded_once(
    encoders: Path, bundle: fractune.JoinedBundle, model: BucketedModel
) -> None:
    one = Bundle(encoders / f"{ENCODER}-2x16.fractune")
    assert bundle.path.stat().st_size < 3 * (encoders / one.name).stat().st_size
    assert Bundle(bundle.path).size("weights.bin") <= one.size("weights.bin") + 64
    for length in (8, 9, 16):
        model.run(inputs_of(length))
    table = [model.bucket(inputs_of(length))._backend.weights._placed for length in (8, 16)]
    assert table[0] is table[1]


def test_a_bucket_has_a_choice_and_memory_of_its_own(encoders: Path, model: BucketedModel) -> None:
    inputs = inputs_of(8)
    short = model.bucket(inputs)
    assert short.choice.variant
    assert [spec.shape for spec in short.inputs] == [(1, 8)] * 2
    bound = short.bind()
    for name, each in inputs.items():
        bound.inputs[name][...] = each
    bound.run()
    agree(encoders, [bound.outputs[name].copy() for name in ("hidden", "mean")], inputs)
    assert model.placed(inputs).keys() == inputs.keys()
    with pytest.raises(BadRequest, match=r"no bucket has the shapes ids \[1, 7\].*give those of a bucket: batch"):
        model.bucket(inputs_of(7))
    assert model.rematch() == model.choice


def test_a_batch_above_the_largest_runs_in_parts(encoders: Path, bundle: fractune.JoinedBundle) -> None:
    model = fractune.load(bundle, split="batch")
    for batch, length in ((5, 11), (2, 16), (4, 8), (1, 3)):
        inputs = inputs_of(length, batch)
        agree(encoders, model.run(inputs), inputs)
    with pytest.raises(BadRequest, match=r"ids \[2, 17\], mask \[2, 17\] is above encoder\.fractune's largest bucket"):
        model.run(inputs_of(17, 3))


def test_threads_may_run_several_lengths_at_once(encoders: Path, model: BucketedModel) -> None:
    requests = [inputs_of(1 + number % 16, 1 + number % 2, number) for number in range(64)]
    with ThreadPoolExecutor(4) as threads:
        for inputs, outputs in zip(requests, threads.map(model.run, requests), strict=True):
            agree(encoders, outputs, inputs)


def test_a_forked_child_runs_all_buckets(model: BucketedModel) -> None:
    before = [model.run(inputs_of(length))[1].tolist() for length in (8, 5, 16)]
    assert succeeds_in_child(lambda: [model.run(inputs_of(length))[1].tolist() for length in (8, 5, 16)] == before)


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        (inputs_of(17), r"ids \[1, 17\], mask \[1, 17\] is above encoder\.fractune's largest bucket: .*split='batch'"),
        (inputs_of(8, 3), r"is above encoder\.fractune's largest bucket: it has batch 1, length 8; .* tune the model"),
        ({"ids": inputs_of(8)["ids"]}, r"the model takes ids int64\[None, None\], mask .*; given: ids \[1, 8\]"),
        ({**inputs_of(8), "more": 1}, r"given: .*, more is a Python int"),
        (
            {**inputs_of(8), "ids": [[1, 2]]},
            r"given: ids is a Python list, mask \[1, 8\]",
        ),
        ({"ids": inputs_of(8)["ids"], "mask": inputs_of(9)["mask"]}, "input 'mask' has the shape .* length is 8"),
        ({name: each[0] for name, each in inputs_of(8).items()}, r"given: ids \[8\], mask \[8\]"),
        ({name: each.astype("int32") for name, each in inputs_of(7).items()}, r"takes ids int64\[1, 7\].* int32"),
        ({name: each.astype("int32") for name, each in inputs_of(8).items()}, r"takes ids int64\[1, 8\].* int32"),
        (inputs_of(0), r"ids \[1, 0\], mask \[1, 0\] is empty; give at least one position along each axis"),
        ([1], "the model takes ids .*; given: list"),
    ],
)
def test_wrong_inputs_are_told(model: BucketedModel, inputs: Any, says: str) -> None:
    for _ in range(2):  # the second time by what is kept
        with pytest.raises(BadRequest, match=says):
            model.run(inputs)


def test_a_model_that_must_not_be_padded_runs_its_exact_shapes(
    encoders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = joined(encoders, tmp_path, MEAN_OF_ALL)
    assert not bundle.padding.proved
    model = fractune.load(bundle)
    assert [each.shape for each in model.run(inputs_of(16))] == [(1, 16, HIDDEN), (1, HIDDEN)]
    with pytest.raises(BadRequest, match=r"nothing may be padded: the output 'mean' of inputs of length 8"):
        model.run(inputs_of(9))
    monkeypatch.setattr(padded_outputs, "_KINDS", ("positive",))  # others differ by more than any accepted part
    accepted = fractune.join([bundle], padding_error=0.9)
    assert (accepted.path, accepted.padding.proved) == (bundle.path, True)
    assert fractune.load(bundle).run(inputs_of(9))[0].shape == (1, 9, HIDDEN)


@pytest.mark.parametrize("name", [ENCODER, MEAN_OF_ALL])
def test_sizes_between_shapes_are_compared_with_onnx_runtime(encoders: Path, tmp_path: Path, name: str) -> None:
    bundle = joined(encoders, tmp_path, name)
    found = fractune.join([bundle], model=encoders / f"{name}.onnx").padding
    assert found.proved == (name == ENCODER)
    assert ("length 1" in found.reason and "as in ONNX Runtime, which pads nothing" in found.reason) == found.proved
    with pytest.raises(BadRequest, match=r"model .*none\.onnx: no such file; name the ONNX file"):
        fractune.join([bundle], model=tmp_path / "none.onnx")
    other = encoders / f"{MEAN_OF_ALL if name == ENCODER else ENCODER}.onnx"
    with pytest.raises(BadRequest, match=rf"not the file that {name}\.fractune was made from \('{name}\.onnx'\)"):
        fractune.join([bundle], model=other)


def test_the_number_that_pads_is_kept(encoders: Path, tmp_path: Path) -> None:
    bundle = joined(encoders, tmp_path, pad={"ids": 3})
    assert Bundle(bundle.path).manifest["buckets"]["pad"] == {"ids": 3}
    inputs = inputs_of(5)
    agree(encoders, fractune.load(bundle).run(inputs), inputs)
    fractune.join([bundle])
    assert Bundle(bundle.path).manifest["buckets"]["pad"] == {"ids": 3}
    with pytest.raises(BadRequest, match="pad other: the model has no such input; it takes ids, mask"):
        fractune.join([bundle], pad={"other": 1})
    for number in (1.5, 1e20):
        with pytest.raises(BadRequest, match=r"pad ids=.*: the input is of the type int64; give such a number"):
            fractune.join([bundle], pad={"ids": number})
    assert fractune.load(bundle).run(inputs)


def test_what_cannot_be_joined_is_told(encoders: Path, small: Any, tmp_path: Path) -> None:
    short, long = (encoders / f"{ENCODER}-1x{length}.fractune" for length in (8, 16))
    out = tmp_path / "out.fractune"
    for bundles, options, says in (
        ([], {}, "no bundle to join; name at least two, or one that is joined"),
        ([short], {"out": out}, "is one bundle, and not joined; name at least two"),
        ([short, long], {}, "out is missing; name the file of the joined bundle"),
        ([short, short], {"out": out}, "two bundles have the inputs ids=1x8, mask=1x8"),
        ([short, small.bundle], {"out": out}, "differ in the names, types or numbers of axes of their inputs"),
        ([short, long], {"out": out, "padding_error": 2}, "padding_error is 2; it must be at least 0 and below 1"),
    ):
        with pytest.raises(BadRequest, match=says):
            fractune.join(bundles, **options)
    with pytest.raises(BadBundle, match="no such file"):
        fractune.join([short, tmp_path / "none.fractune"], out=out)
    assert list(tmp_path.iterdir()) == []


def test_parts_of_a_batch_need_an_open_batch(encoders: Path, bundle: fractune.JoinedBundle, tmp_path: Path) -> None:
    short, long = (encoders / f"{ENCODER}-1x{length}.fractune" for length in (8, 16))
    lengths = fractune.join([short, long], out=tmp_path / "lengths.fractune")
    with pytest.raises(BadRequest, match=r"split is 'batch', and the first axis of lengths\.fractune's"):
        fractune.load(lengths, split="batch")
    with pytest.raises(BadRequest, match="has one shape alone; leave split out"):
        fractune.load(short, split="batch")
    split: Any = "length"
    with pytest.raises(BadRequest, match="give 'batch' or None"):
        fractune.load(bundle, split=split)


@pytest.mark.parametrize("reverse", [0, 1])
def test_rows_that_depend_on_each_other_are_not_split(tmp_path: Path, reverse: int) -> None:
    """A sum along the first axis: padding at its end leaves the real rows as they are, and parts would be wrong."""
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["a"]),
        onnx.helper.make_node("CumSum", ["a", "first"], ["y"], reverse=reverse),
    ]
    info = onnx.helper.make_tensor_value_info
    weights = {"w": np.eye(4, dtype="float32"), "first": np.array(0, "int64")}
    graph = onnx.helper.make_graph(
        nodes,
        "sum",
        [info("x", onnx.TensorProto.FLOAT, ["rows", 4])],
        [info("y", onnx.TensorProto.FLOAT, ["rows", 4])],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = tmp_path / "sum.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), model)
    bundles = [
        compile_model(model, tmp_path / f"{rows}.fractune", tuned=["cpu:1"], inputs={"x": [rows, 4]}) for rows in (2, 4)
    ]
    joined = fractune.join(bundles, out=tmp_path / "sum.fractune")
    assert joined.padding.proved
    assert fractune.load(joined).run({"x": np.ones((3, 4), "float32")})[0].shape == (3, 4)
    with pytest.raises(
        BadRequest, match=r"outputs of sum\.fractune depend on other rows of the batch; leave split out"
    ):
        fractune.load(joined, split="batch")


def test_a_torn_joined_bundle_is_refused(bundle: fractune.JoinedBundle, tmp_path: Path) -> None:
    whole, torn = bundle.path.read_bytes(), tmp_path / "torn.fractune"
    for end in (len(whole) // 2, len(whole) - 1):
        torn.write_bytes(whole[:end])
        with pytest.raises(BadBundle, match="torn"):
            fractune.load(torn)
    begin = whole.index(b"members/0/variants/0/")
    torn.write_bytes(whole[: begin + 200] + bytes([whole[begin + 200] ^ 1]) + whole[begin + 201 :])
    with pytest.raises(BadBundle):
        fractune.verify_bundle(torn)
