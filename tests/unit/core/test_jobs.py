from dataclasses import replace

import pytest

from fractune_core.errors import BadRequest, ShareUnavailable
from fractune_core.jobs import JobSpec, Priority
from fractune_core.pb import fractune_pb2 as pb

NAMESPACED = (pb.JobSpec, pb.RecordFilter, pb.Record, pb.MatchModelRequest, pb.TabulateModelRequest)


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


@pytest.mark.parametrize(
    ("shares", "says"),
    [
        (["cpu:1..2", "cpu:1..2"], "share 'cpu:1..2' is named twice"),
        ([f"cpu:1..{most}" for most in range(2, 30)], "more than 64 shares"),
        ([" cpu:1"], r"shares \[' cpu:1'\]: write them as cpu:1"),
    ],
)
def test_a_request_without_a_client_gets_the_same_checks_of_its_shares(shares: list[str], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        JobSpec(model="a" * 64, model_name="m.onnx", shares=tuple(shares)).check()


def test_a_job_leaves_out_shares_that_cannot_be_verified_and_limits_without_their_kernels() -> None:
    spec = JobSpec(model="a" * 64, model_name="m.onnx", shares=("cpu:1", "cpu:2", "cpu:1500m"))
    assert spec.without({"cpu:4": "busy"}) == spec
    assert spec.without({"cpu:1500m": "busy"}) == replace(
        spec, shares=("cpu:1", "cpu:2"), skipped_shares={"cpu:1500m": "busy"}
    )
    left = spec.without({"cpu:2": "busy"})
    assert (left.shares, left.skipped_shares) == (("cpu:1",), {"cpu:2": "busy", "cpu:1500m": "busy"})
    with pytest.raises(ShareUnavailable, match=r"^busy; too$"):
        spec.without({"cpu:1": "busy", "cpu:2": "too"})
    with pytest.raises(BadRequest, match="nonsense"):
        replace(spec, skipped_shares={"nonsense": "busy"}).check()


def test_words_stand_for_numbers_and_any_number_for_a_word_of_the_three() -> None:
    assert [Priority.parse(word).number for word in ("low", "normal", "high")] == [-1, 0, 1]
    assert [Priority.of(number).value for number in (-7, -1, 0, 1, 5)] == ["low", "low", "normal", "high", "high"]
    with pytest.raises(BadRequest, match="priority is 'urgent'; write low, normal, high"):
        Priority.parse("urgent")


def test_the_contract_has_the_namespace_where_it_had_the_scope() -> None:
    places = {message.DESCRIPTOR.name: message.DESCRIPTOR.fields_by_name["namespace"].number for message in NAMESPACED}
    assert places == {"JobSpec": 15, "RecordFilter": 7, "Record": 27, "MatchModelRequest": 7, "TabulateModelRequest": 5}
    assert pb.Spending.DESCRIPTOR.fields_by_name["task"].number == 1
