import io
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from fractune_core.errors import BadBundle, BadRequest
from fractune_core.files.bundles import JOINED_FORMAT, Bundle
from fractune_core.files.compared import ONNX_RUNTIME, Compared, Runtime, Timed
from fractune_core.files.joined import join_stages
from fractune_core.files.staged import Stages, Step, Tensor, part_entry
from tests.support.client_samples import bundle_bytes
from tests.unit.core.files.test_joined import rewritten

MODEL = {"name": "whole.onnx", "sha256": "0" * 64}
RUNTIME = Runtime("1.31.1", {"session.intra_op.allow_spinning": "0"})
X, A, B, Y = (Tensor(name, "float32", [1, 8]) for name in "xaby")
FIRST, PART, LAST = Step([X], [A], 0), Step([A], [B], part=part_entry(0), operators={"CDist": 1}), Step([B], [Y], 1)
STAGES = Stages([X], [Y], [FIRST, PART, LAST])


def member(reads: Tensor, makes: Tensor, **changes: Any) -> Bundle:
    inputs, outputs = ([{"name": each.name, "dtype": each.dtype, "shape": each.shape}] for each in (reads, makes))
    return Bundle(bundle_bytes(inputs=inputs, outputs=outputs, **changes))


def staged(stages: Stages = STAGES, parts: Mapping[str, bytes] | None = None) -> bytes:
    file = io.BytesIO()
    held = parts or {part_entry(0): b"onnx"}
    join_stages(file, [member(X, A), member(B, Y)], stages, held, MODEL, RUNTIME)
    return file.getvalue()


def test_a_bundle_in_parts_shows_the_whole_model_and_no_times_of_a_part() -> None:
    file = io.BytesIO()
    members = [member(X, A, timed={"cpu:1": 1.0}), member(B, Y, timed={"cpu:1": 2.0})]
    join_stages(file, members, STAGES, {part_entry(0): b"onnx"}, MODEL, RUNTIME)
    whole = Bundle(file.getvalue())
    whole.verify()
    assert whole.written["format"] == JOINED_FORMAT
    assert whole.manifest["model"] == MODEL
    assert [each["name"] for each in (*whole.manifest["inputs"], *whole.manifest["outputs"])] == ["x", "y"]
    assert "timed" not in whole.manifest
    assert [each.manifest["timed"] for each in whole.members] == [{"cpu:1": 1.0}, {"cpu:1": 2.0}]
    assert whole.read(part_entry(0)) == b"onnx"
    assert Stages.from_json(whole.manifest["stages"]) == STAGES
    with pytest.raises(BadBundle, match="in parts, which fit cannot take"):
        whole.check_undivided("fit")


def test_a_comparison_is_that_of_the_whole_model_and_of_no_member() -> None:
    compared = Compared({"fractune": Timed(1.0, 1.0)})
    whole = Bundle(rewritten(staged(), compared={"cpu:1": compared.to_json()}))
    assert whole.manifest["compared"] == {"cpu:1": compared.to_json()}
    assert not any("compared" in each.manifest for each in whole.members)
    with pytest.raises(BadBundle, match="'compared' or 'between' has a share"):
        Bundle(rewritten(staged(), compared={"cpu:7": compared.to_json()}))


def tensor_json(dtype: str, shape: list[int | None]) -> dict[str, Any]:
    return Tensor("z", dtype, shape).to_json()


WRONG_STEPS = {
    "do not run every member once": [FIRST, PART],
    r"steps\[1\] reads 'b'": [FIRST, Step([B], [B], part=part_entry(0))],
    r"steps\[1\] makes 'a', which is there already": [FIRST, Step([A], [A], part=part_entry(0))],
    r"steps\[0\] has other inputs or outputs than its member": [Step([X], [B], 0)],
    "name their files otherwise": [FIRST, Step([A], [B], part="parts/7.onnx")],
    "a name that is not printable": [FIRST, Step([A], [Tensor("b\x1b", "float32", [1, 8])], part=part_entry(0))],
}


@pytest.mark.parametrize("complaint", WRONG_STEPS)
def test_steps_that_do_not_flow_are_refused(complaint: str) -> None:
    steps = WRONG_STEPS[complaint]
    full = steps if complaint.startswith("do not run") else [*steps, *STAGES.steps[len(steps) :]]
    with pytest.raises(BadBundle, match=complaint):
        Bundle(staged(Stages([X], [Y], full)))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"runtimes": {}}, f"'runtimes' lacks '{ONNX_RUNTIME}'"),
        ({"stages": {**STAGES.to_json(), "outputs": [replace(Y, dtype="int64").to_json()]}}, "'outputs' of 'stages'"),
        ({"stages": {**STAGES.to_json(), "outputs": []}}, "'outputs' of 'stages'"),
        ({"stages": {**STAGES.to_json(), "inputs": [{"name": "x"}]}}, "'stages' are not inputs, outputs and steps"),
        ({"runtimes": 5}, "'compared', 'between' and 'runtimes' are not"),
        ({"runtimes": {ONNX_RUNTIME: 5}}, "'compared', 'between' and 'runtimes' are not"),
        ({"stages": {**STAGES.to_json(), "inputs": [X.to_json(), X.to_json()]}}, "two inputs or outputs with one name"),
        ({"stages": {**STAGES.to_json(), "inputs": [X.to_json(), tensor_json("float99", [1])]}}, "the unknown type"),
        ({"stages": {**STAGES.to_json(), "inputs": [X.to_json(), tensor_json("int8", [-1])]}}, "a negative size"),
        ({"stages": {**STAGES.to_json(), "inputs": [X.to_json(), tensor_json("int8", [2**40])]}}, "too large"),
        ({"stages": []}, "'stages' are not inputs, outputs and steps"),
        ({"buckets": {}}, "one of 'buckets' and 'stages'"),
    ],
)
def test_a_field_that_does_not_fit_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadBundle, match=complaint):
        Bundle(rewritten(staged(), **changes))


def test_a_part_that_is_not_there_is_refused() -> None:
    with pytest.raises(BadBundle, match=r"'parts/0\.onnx' is missing"):
        Bundle(staged(parts={"parts/1.onnx": b"onnx"}))


def test_members_of_different_devices_are_refused() -> None:
    other = member(B, Y, target='{"kind":"llvm","mcpu":"znver3"}')
    with pytest.raises(BadRequest, match="differ in 'target'"):
        join_stages(io.BytesIO(), [member(X, A), other], STAGES, {part_entry(0): b""}, MODEL, RUNTIME)
