"""Sizes of a decoder that belong together: found in its graph, solved, and contradictions left out."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import fractune
from fractune.local.programs import how_imported
from fractune.models import inspection
from fractune.models.open_sizes import settled
from fractune_core.errors import BadRequest
from fractune_core.model_inputs import as_shapes, each_shape
from tests.support.decoders import shapes_of, write_decoder, write_plain_decoder

pytestmark = pytest.mark.usefixtures("examined_here")

SIZES: dict[str, int | list[int]] = {"past": [16, 64], "s": [1, 8], "b": 1}


@pytest.mark.parametrize("total", ["total", "past + s", "?"])
def test_the_mask_of_each_pair_has_all_positions(tmp_path: Path, total: str) -> None:
    """The name of the mask's axis says it, or the graph alone."""
    path = write_plain_decoder(tmp_path / "m.onnx", total=total)
    made = [as_shapes(each) for each in each_shape(settled(path, None, SIZES) or {})]
    assert [(each["past.key.0"][2], each["input_ids"][1], each["attention_mask"]) for each in made] == [
        (16, 1, [1, 17]),
        (16, 8, [1, 24]),
        (64, 1, [1, 65]),
        (64, 8, [1, 72]),
    ]
    model = ReferenceEvaluator(onnx.load(path))
    for each in made:
        kinds = {name: np.int64 if name in ("input_ids", "attention_mask") else np.float32 for name in each}
        logits: Any
        logits, *_ = model.run(None, {name: np.ones(shape, kinds[name]) for name, shape in each.items()})
        assert logits.shape[:2] == tuple(each["input_ids"])


def test_sizes_follow_through_the_arithmetic_of_shapes(tmp_path: Path) -> None:
    """The mask comes of Shape and Range, and positions have a name of their own."""
    path = write_decoder(tmp_path / "m.onnx")
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == "past + s":
                dim.dim_param = "all"
            elif dim.dim_param == "s" and value.name == "position_ids":
                dim.dim_param = "places"
    onnx.save(model, path)
    made = settled(path, None, {"past": 16, "s": 8})
    assert made == shapes_of(16, 8)


def test_combinations_that_contradict_the_graph_are_left_out(tmp_path: Path) -> None:
    path = write_plain_decoder(tmp_path / "m.onnx")
    lines: list[str] = []
    made = settled(path, None, {**SIZES, "s": 1, "total": [17, 65]}, lines.append)
    assert made is not None
    assert made["attention_mask"] == [[1, 17], [1, 65]]
    (line,) = lines
    assert line == (
        "2 of 4 combinations of sizes are left out: sizes: total (65) and s + past (17) must be equal, with s=1, "
        "past=16; give sizes that agree"
    )
    mixed = {"attention_mask": [[1, 17], [1, 65]], "past.key.0": [[1, 2, 64, 16], [1, 2, 64, 16]]}
    assert (settled(path, mixed, {"s": 1}) or {})["past.value.1"] == [1, 2, 64, 16]
    with pytest.raises(BadRequest, match=r"total \(17\) and s \+ past \(65\) must be equal"):
        settled(path, {"attention_mask": [1, 17]}, {"s": 1, "past": 64})


def test_inspect_says_what_follows_from_what_and_prints_a_command_for_it(tmp_path: Path) -> None:
    found = fractune.inspect(write_plain_decoder(tmp_path / "m.onnx"), sizes={"past": 64})
    assert {each.name: (each.suggested, each.equals) for each in found.sizes} == {
        "b": (1, ""),
        "s": (1, ""),
        "total": (65, "s + past"),
        "past": (64, ""),
    }
    assert "--size b=1 --size s=1,64 --shares" in found.command
    assert "65: s + past" in str(found.table)
    assert found.notes == ()


def test_the_mask_of_a_cache_of_all_rows_has_as_many(tmp_path: Path) -> None:
    found = fractune.inspect(write_decoder(tmp_path / "m.onnx", grouped=True))
    assert {each.name: each.equals for each in found.sizes} == {"b": "", "s": "", "total": "past", "past": ""}
    assert "--size b=1 --size s=1,64 --size past=256,1024 --shares" in found.command


def test_inspect_says_what_the_graph_is_made_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "how_imported", how_imported)
    path = write_plain_decoder(tmp_path / "m.onnx", weights_beside=True)
    model = onnx.load(path, load_external_data=False)
    branch = helper.make_graph([helper.make_node("Erf", ["logits"], ["e"])], "b", [], [])
    model.graph.node.extend(
        [
            helper.make_node("Gelu", ["logits"], ["g"], domain="com.microsoft"),
            helper.make_node("StringNormalizer", ["logits"], ["n"]),
            helper.make_node("Own", ["logits"], ["o"], domain="mine"),
            helper.make_node("If", ["c"], ["i"], then_branch=branch, else_branch=branch),
        ]
    )
    path.write_bytes(model.SerializeToString())
    found = fractune.inspect(path).summary
    assert found is not None
    ways = {each.name: (each.nodes, each.how) for each in found.operators}
    assert ways["MatMul"] == (19, "native")
    assert ways["Erf"] == (2, "native")
    assert ways["com.microsoft.Gelu"] == (1, "decomposed")
    assert ways["StringNormalizer"] == (1, "part")
    assert ways["mine.Own"] == (1, "refused")
    assert found.opsets == {"": 18}
    beside = (tmp_path / "m.onnx.data").stat().st_size
    assert found.weights["m.onnx.data"] == pytest.approx(beside, abs=64 * 1024)
    assert 0 < found.weights[""] < 5000
    text = "\n".join(found.lines)
    assert "refused: mine.Own 1" in text
    assert "by ONNX Runtime, as parts: StringNormalizer 1" in text
    assert "in m.onnx.data" in text
