from __future__ import annotations

import pytest

from fractune_core.errors import BadRequest
from fractune_core.jobs import JobSpec, Priority


@pytest.mark.parametrize(
    ("only", "wanted"),
    [
        ("", ["conv2d", "conv2d1_relu", "dense"]),
        ("conv2d", ["conv2d", "conv2d1_relu"]),
        ("conv2d1,dense", ["conv2d1_relu", "dense"]),
        (" relu , dense,", ["conv2d1_relu", "dense"]),
        ("softmax,pool", []),
        (" , ", ["conv2d", "conv2d1_relu", "dense"]),
    ],
)
def test_only_names_operators_by_one_or_several_texts(only: str, wanted: list[str]) -> None:
    spec = JobSpec(model="a" * 64, model_name="m.onnx", shares=("cpu:1",), only=only)
    assert [name for name in ("conv2d", "conv2d1_relu", "dense") if spec.wants(name)] == wanted


def test_a_job_is_for_shares_of_one_processor() -> None:
    mixed = JobSpec(model="a" * 64, model_name="m.onnx", shares=("mps:25", "cpu:1", "full"))
    with pytest.raises(BadRequest, match=r"'cpu:1' is of a CPU, 'full' of a GPU, .* make a job for each"):
        mixed.check()
    JobSpec(model="a" * 64, model_name="m.onnx", shares=("mps:25", "green:32", "full")).check()


def test_a_job_of_an_older_version_has_former_names_of_fields() -> None:
    stored = {"model": "a" * 64, "model_name": "m.onnx", "shares": ["cpu:1"], "more": 3, "scope": "acme"}
    spec = JobSpec.from_json(stored)
    assert (spec.extra_trials, spec.namespace) == (3, "acme")
    assert JobSpec.from_json(spec.to_json()) == spec
    with pytest.raises(ValueError, match="got `int`"):
        JobSpec.from_json(3)


def test_words_stand_for_numbers_and_any_number_for_a_word() -> None:
    assert [Priority.parse(word).number for word in ("low", "normal", "high")] == [-1, 0, 1]
    assert [Priority.of(number).value for number in (-7, -1, 0, 1, 5)] == ["low", "low", "normal", "high", "high"]


def test_another_word_is_refused_in_one_line() -> None:
    with pytest.raises(BadRequest, match="priority is 'urgent'; write low, normal, high"):
        Priority.parse("urgent")
