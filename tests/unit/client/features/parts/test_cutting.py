"""Models that are cut for real, by ONNX and ONNX Runtime; the parts in ONNX Runtime give what the whole model gives."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from fractune.features.parts import parts as parts_module
from fractune.features.parts.cutting import (
    crossing,
    cut,
    names_read,
    part_numbers,
    static_shapes,
)
from fractune.features.parts.parts import cut_model, is_part_of, may_cut, part_name, with_remedy
from fractune.features.tune import shape_jobs
from fractune_core.errors import BadModel
from fractune_core.files.staged import Stages
from fractune_core.jobs import JobSpec
from fractune_core.operators import RefusedNode, node_text, refusal_text
from tests.support import children
from tests.support.parts import CDIST, SHAPE, write_middle, write_parted

FLOAT = TensorProto.FLOAT


def run_parts(stages: Stages, folder: Path, inputs: dict[str, Any]) -> list[Any]:
    values = dict(inputs)
    for place, step in enumerate(stages.steps):
        session = onnxruntime.InferenceSession(folder / f"{place}.onnx")
        names = [each.name for each in step.outputs]
        values |= zip(names, session.run(names, {each.name: values[each.name] for each in step.inputs}), strict=True)
    return [values[each.name] for each in stages.outputs]


def assert_same(model: Path, stages: Stages, folder: Path) -> None:
    inputs = {"x": np.random.default_rng(5).uniform(0, 1, SHAPE).astype(np.float32)}
    wanted = onnxruntime.InferenceSession(model).run([each.name for each in stages.outputs], inputs)
    for mine, theirs in zip(run_parts(stages, folder, inputs), wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)


def test_a_refused_node_in_the_middle_makes_three_parts(tmp_path: Path) -> None:
    model = write_middle(tmp_path / "m.onnx")
    stages = cut(model, {}, [CDIST], tmp_path)
    assert [step.member for step in stages.steps] == [0, None, 1]
    assert stages.parts[0].operators == {"com.microsoft.CDist": 1}
    assert [[each.name for each in step.inputs] for step in stages.steps] == [["x"], ["b"], ["c"]]
    assert stages.outputs[0].shape == [2, 3]
    assert_same(model, stages, tmp_path)


def test_open_axes_have_the_given_sizes_and_others_the_size_1(tmp_path: Path) -> None:
    model = write_middle(tmp_path / "m.onnx", ["n", 4])
    assert cut(model, {"x": [2, 4]}, [CDIST], tmp_path).inputs[0].shape == [2, 4]
    with pytest.raises(BadModel, match="cannot run it either"):
        cut(model, {}, [CDIST], tmp_path)  # one row, and a product that takes two
    with pytest.raises(BadModel, match="has 2 axes"):
        cut(model, {"x": [2]}, [CDIST], tmp_path)


def test_what_follows_a_shape_that_depends_on_data_is_not_our_own(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("NonZero", ["a"], ["places"], name="where"),
        helper.make_node("Cast", ["places"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["v", "f"], ["ff"]),
        helper.make_node("ReduceSum", ["ff"], ["y"], keepdims=0),
    ]
    model = write_parted(tmp_path / "m.onnx", nodes, {"places": TensorProto.INT64, "y": TensorProto.FLOAT})
    stages = cut(model, {}, [RefusedNode("where", "", ())], tmp_path)
    assert [step.member for step in stages.steps] == [0, None]
    assert [each.shape for each in stages.outputs] == [[None, None], []]
    assert_same(model, stages, tmp_path)


def test_a_refused_node_inside_a_branch_makes_the_branch_a_part(tmp_path: Path) -> None:
    """One of the branches has an operator that cannot be imported."""
    inner = helper.make_node("CDist", ["a", "a"], ["c"], name="cdist", domain="com.microsoft", metric="sqeuclidean")
    other = helper.make_node("MatMul", ["a", "at"], ["d"])
    then = helper.make_graph([inner], "then", [], [helper.make_tensor_value_info("c", FLOAT, [2, 2])])
    otherwise = helper.make_graph([other], "else", [], [helper.make_tensor_value_info("d", FLOAT, [2, 2])])
    branch = helper.make_node("If", ["is_on"], ["e"])
    branch.attribute.append(helper.make_attribute("then_branch", then))
    branch.attribute.append(helper.make_attribute("else_branch", otherwise))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Transpose", ["a"], ["at"]),
        helper.make_node("ReduceSum", ["a"], ["sum"], keepdims=0),
        helper.make_node("Cast", ["sum"], ["is_on"], to=TensorProto.BOOL),
        branch,
        helper.make_node("MatMul", ["e", "vv"], ["y"]),
    ]
    model = write_parted(tmp_path / "m.onnx", nodes, {"y": FLOAT})
    stages = cut(model, {}, [CDIST], tmp_path)
    assert "If" in stages.parts[0].operators
    assert_same(model, stages, tmp_path)


def test_a_node_that_nothing_needs_is_in_no_part(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("CDist", ["a", "a"], ["c"], name="cdist", domain="com.microsoft", metric="sqeuclidean"),
        helper.make_node("NonZero", ["c"], ["unused"]),
        helper.make_node("MatMul", ["c", "vv"], ["y"]),
    ]
    stages = cut(write_parted(tmp_path / "m.onnx", nodes, {"y": FLOAT}), {}, [CDIST], tmp_path)
    assert not any("NonZero" in step.operators for step in stages.steps)
    assert [each.name for each in stages.outputs] == ["y"]


def test_an_output_that_is_a_constant_is_named(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("CDist", ["x", "x"], ["c"], name="cdist", domain="com.microsoft", metric="sqeuclidean"),
        helper.make_node("MatMul", ["c", "vv"], ["y"]),
        helper.make_node("Neg", ["w"], ["minus"]),
    ]
    model = write_parted(tmp_path / "m.onnx", nodes, {"y": FLOAT, "minus": FLOAT})
    with pytest.raises(BadModel, match="its output 'minus' is a constant; leave it out"):
        cut(model, {}, [CDIST], tmp_path)


def test_a_node_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="no node of the model is the refused one"):
        cut(write_middle(tmp_path / "m.onnx"), {}, [RefusedNode("other", "", ())], tmp_path)


def test_a_value_whose_name_cannot_be_printed_is_refused_before_anything_is_tuned(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a\nb"]),
        helper.make_node("CDist", ["a\nb", "a\nb"], ["c"], name="cdist", domain="com.microsoft", metric="sqeuclidean"),
        helper.make_node("MatMul", ["c", "vv"], ["y"]),
    ]
    with pytest.raises(BadModel, match=r"its value 'a\\nb' has a name that cannot be printed; rename it"):
        cut(write_parted(tmp_path / "m.onnx", nodes, {"y": FLOAT}), {}, [CDIST], tmp_path)


def test_a_loop_with_a_computed_number_of_iterations_is_a_part(tmp_path: Path) -> None:
    double = helper.make_node("Add", ["state", "state"], ["next"])
    body = helper.make_graph(
        [double, helper.make_node("Identity", ["go"], ["goes_on"])],
        "body",
        [
            helper.make_tensor_value_info("count", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", FLOAT, [2, 6]),
        ],
        [
            helper.make_tensor_value_info("goes_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", FLOAT, [2, 6]),
        ],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Ceil", ["most"], ["whole"]),
        helper.make_node("Cast", ["whole"], ["n"], to=TensorProto.INT64),
        helper.make_node("Loop", ["n", "", "a"], ["y"], name="many", body=body),
    ]
    model = write_parted(tmp_path / "m.onnx", nodes, {"y": FLOAT})
    stages = cut(model, {}, [RefusedNode("many", "", ())], tmp_path)
    assert stages.parts[0].operators["Loop"] == 1
    assert_same(model, stages, tmp_path)


def test_a_process_of_its_own_cuts_and_names_the_files_by_the_model(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    parts = cut_model(write_middle(tmp_path / "m.onnx"), {}, [CDIST], tmp_path / "parts")
    assert [file.name for file in parts.files] == ["m.part1.onnx", "m.part2.onnx", "m.part3.onnx"]
    assert [file.name for file in parts.own] == ["m.part1.onnx", "m.part3.onnx"]
    assert list(parts.others) == ["parts/0.onnx"]


def test_a_file_that_is_no_model_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "m.onnx").write_bytes(b"\x08\x08torn")
    with pytest.raises(BadModel) as refused:
        cut_model(tmp_path / "m.onnx", {}, [CDIST], tmp_path / "parts")
    assert "\n" not in str(refused.value)


def test_the_end_of_the_process_that_cuts_is_said_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts_module, "_CHILD", "aborting_child")
    monkeypatch.setenv("PYTHONPATH", str(Path(children.__file__).parent))
    with pytest.raises(BadModel, match=r"was killed by SIGABRT \(terminate called: no such attribute\)"):
        cut_model(write_middle(tmp_path / "m.onnx"), {}, [CDIST], tmp_path)


def node(operator: str, reads: str, makes: str) -> object:
    return helper.make_node(operator, reads.split(), makes.split())


CHAIN = [node("Conv", "x w", "a"), node("CDist", "a a", "b"), node("MatMul", "b v", "c")]


def test_a_refused_node_parts_what_is_before_it_from_what_depends_on_it() -> None:
    assert part_numbers(CHAIN, {1}) == [0, 1, 2]
    assert crossing(CHAIN, [0, 1, 2], ["c"]) == {0: ["a"], 1: ["b"], 2: ["c"]}
    assert part_numbers([node("CDist", "x x", "a"), node("MatMul", "a v", "b")], {0}) == [1, 2]
    nodes = [node("CDist", "x x", "a"), node("Conv", "x w", "b"), node("MatMul", "a b", "c")]
    assert part_numbers(nodes, {0}) == [1, 0, 2]
    assert crossing(nodes, [1, 0, 2], ["c"]) == {0: ["b"], 1: ["a"], 2: ["c"]}


def test_parts_that_are_not_worth_a_crossing_or_too_many_become_one() -> None:
    nodes = [node("Conv", "x w", "a"), node("CDist", "a a", "b"), node("Relu", "b", "c"), node("CDist", "c c", "d")]
    assert part_numbers(nodes, {1, 3}) == [0, 1, 1, 1]
    nodes = [node("MatMul", "x w", "a0")]
    for place in range(5):
        nodes += [node("CDist", f"a{place} w", f"b{place}"), node("MatMul", f"b{place} w", f"a{place + 1}")]
    numbers = part_numbers(nodes, set(range(1, 10, 2)))
    assert numbers == [0, *[1] * 9, 2]


def test_a_node_reads_what_its_subgraphs_read() -> None:
    inner = helper.make_graph(
        [helper.make_node("Add", ["outer", "own"], ["sum"]), helper.make_node("Relu", ["sum"], ["r"])],
        "then",
        [],
        [helper.make_tensor_value_info("r", TensorProto.FLOAT, [1])],
        [helper.make_tensor("own", TensorProto.FLOAT, [1], [1.0])],
    )
    assert names_read(helper.make_node("If", ["cond"], ["y"], then_branch=inner, else_branch=inner)) == {
        "cond",
        "outer",
    }


def test_a_shape_is_fixed_if_it_is_inferred_and_seen_in_every_run() -> None:
    inferred = {"a": (2, 3), "b": None, "c": (4,), "d": (0,)}
    runs = [{"a": (2, 3), "b": (1,), "c": (4,), "d": (0,), "e": (9,)}, {"a": (2, 3), "b": (1,), "c": (5,), "d": (0,)}]
    assert static_shapes(inferred, runs) == {"a": (2, 3)}


@pytest.mark.parametrize("model", ["encoder.onnx", "model", "a.part1.onnx", "v1.2"])
def test_a_part_is_known_by_its_name(model: str) -> None:
    assert is_part_of(part_name(model, 12), model)
    assert not is_part_of(part_name(model, 12), f"other-{model}")


@pytest.mark.parametrize("name", ["encoder.onnx", "encoder.part.onnx", "encoder.partx.onnx", "encoder.part01.onnx", ""])
def test_any_other_name_is_of_no_part(name: str) -> None:
    assert not is_part_of(name, "encoder.onnx")


REFUSED = BadModel(refusal_text(17, node_text("cdist", "", "com.microsoft.CDist"), "it is not known"))


def spec(shares: str) -> JobSpec:
    return JobSpec.requested("m.onnx", shares)


def test_a_refused_node_is_cut_out_and_has_a_remedy_for_cpu_shares_only() -> None:
    assert may_cut(spec("cpu:1"), REFUSED)
    assert not may_cut(spec("mps:50"), REFUSED)
    assert not may_cut(spec("cpu:1"), BadModel("the file is torn"))
    assert str(with_remedy(spec("cpu:1"), REFUSED, "or do that")) == f"{REFUSED}; or do that"
    assert with_remedy(spec("mps:50"), REFUSED, "or do that") is REFUSED


def test_a_node_that_is_refused_though_it_was_cut_out_ends_the_tuning(tmp_path: Path) -> None:
    again = BadModel(f"{REFUSED}, again")
    with pytest.raises(BadModel, match="again"):
        shape_jobs._cut(write_middle(tmp_path / "m.onnx"), spec("cpu:1"), [REFUSED, again], tmp_path)
