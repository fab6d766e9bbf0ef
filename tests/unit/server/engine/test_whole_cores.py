"""Jobs at CPU limits: what they say of the whole cores, and when they search nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fractune_core.jobs import JobSpec
from fractune_core.shares import with_kernel_shares
from fractune_server.engine.active_job import kernel_share_notes, tuned_before
from fractune_server.store.stored_job import StoredJob
from tests.support.samples import DEVICE, LIMITED, granted


def job(*shares: str, name: str = "new", target_key: str = "llvm", **options: Any) -> StoredJob:
    spec = JobSpec(model="a" * 64, model_name="net.onnx", shares=shares, **options)
    names = with_kernel_shares(shares)
    held = {each: LIMITED if each == "cpu:1500m" else granted(int(each.partition(":")[2])) for each in names}
    return StoredJob(name, spec, 1.0, DEVICE, held, "llvm", target_key=target_key)


BOTH = job("cpu:1", "cpu:2", name="both")
ONE, TWO = job("cpu:1", name="one"), job("cpu:2", name="two")


def test_cores_that_a_limit_adds_are_named() -> None:
    assert list(kernel_share_notes(job("cpu:1500m"))) == [
        "cpu:1500m: kernels are tuned at cpu:1, cpu:2, and the whole model is timed under the limit"
    ]
    (note,) = kernel_share_notes(job("cpu:1", "cpu:1500m"))
    assert note.startswith("cpu:1500m: kernels are tuned at cpu:2, and")
    assert list(kernel_share_notes(job("cpu:1", "cpu:2", "cpu:1500m"))) == list(kernel_share_notes(BOTH)) == []


def test_cores_that_a_range_adds_are_named_and_searched() -> None:
    assert list(kernel_share_notes(job("cpu:1..4", "cpu:4", "cpu:1500m"))) == [
        "cpu:1500m: kernels are tuned at cpu:1, cpu:2, and the whole model is timed under the limit",
        "cpu:1..4: kernels are tuned at cpu:1, cpu:2, and one variant serves the whole range",
    ]
    assert tuned_before(job("cpu:1..2"), [BOTH]) == []


@pytest.mark.parametrize(
    ("done", "names"),
    [
        ([BOTH], ["both"]),
        ([job("cpu:1500m", name="limit")], ["limit"]),
        ([TWO, ONE, BOTH], ["two", "one"]),
        ([ONE], []),
        ([], []),
    ],
)
def test_whole_cores_that_jobs_have_tuned_at_are_not_searched_again(done: list[StoredJob], names: list[str]) -> None:
    assert tuned_before(job("cpu:1500m"), done) == names


@pytest.mark.parametrize(
    "new",
    [
        job("cpu:1", "cpu:1500m"),
        job("cpu:1500m", extra_trials=8),
        job("cpu:1500m", fresh=True),
        job("cpu:1500m", exact=True),
        job("cpu:1500m", namespace="other"),
        job("cpu:1500m", inputs={"x": [2, 3]}),
        job("cpu:1500m", target_key="llvm-other"),
        replace(job("cpu:1500m"), device=replace(DEVICE, isa="other")),
    ],
)
def test_other_jobs_search(new: StoredJob) -> None:
    assert tuned_before(new, [BOTH]) == []


def test_jobs_that_searched_nothing_or_only_some_operators_do_not_count() -> None:
    assert tuned_before(job("cpu:1500m"), [job("cpu:1", "cpu:2", rerank=1), job("cpu:1", "cpu:2", only="conv")]) == []
    assert tuned_before(job("cpu:1500m"), [job("cpu:1", "cpu:2", trials=0)]) == []
    assert tuned_before(job("cpu:1500m", only="conv"), [job("cpu:1", "cpu:2", name="c", only="conv")]) == ["c"]
    assert tuned_before(job("cpu:1500m", only="conv"), [BOTH]) == ["both"]
