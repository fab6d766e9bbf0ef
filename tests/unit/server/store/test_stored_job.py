"""Where the time of a job went."""

from __future__ import annotations

from fractune_core.jobs import JobSpec
from fractune_server.store.stored_job import Progress, StoredJob, StoredOperator
from tests.support.samples import DEVICE, granted


def a_job(entered_at: dict[str, float], ended_at: float | None = None) -> StoredJob:
    spec = JobSpec(model="a" * 64, model_name="net.onnx", shares=("cpu:1",))
    return StoredJob(
        "j",
        spec,
        10.0,
        DEVICE,
        {"cpu:1": granted(1)},
        "llvm",
        ended_at=ended_at,
        progress=Progress(entered_at=entered_at),
    )


def test_a_phase_lasts_until_the_next_and_all_of_them_make_up_the_age() -> None:
    entered_at = {"tuning": 15.0, "ingesting": 10.5, "failed": 18.0}
    assert a_job(entered_at, ended_at=18.0).phases_s(100.0) == {"queued": 0.5, "ingesting": 4.5, "tuning": 3.0}
    assert a_job({"ingesting": 10.5}).phases_s(12.0) == {"queued": 0.5, "ingesting": 1.5}


def test_of_a_job_from_before_phases_were_noted_nothing_is_said() -> None:
    assert a_job({}, ended_at=18.0).phases_s(100.0) == {}


def test_an_alternative_is_searched_as_if_the_model_ran_it_once() -> None:
    weights = {weight: StoredOperator("a" * 16, "op", weight, selected=True).search_weight for weight in (0, 1, 12)}
    assert weights == {0: 1, 1: 1, 12: 12}
