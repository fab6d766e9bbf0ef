"""Who may have another piece of work in the compile workers' queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fractune_core.jobs import JobSpec, JobState
from fractune_server.engine.active_job import ActiveJob, SingleWork
from fractune_server.engine.ingest import CompileTurns
from fractune_server.engine.publish import PublishPhase
from fractune_server.store.stored_job import StoredJob
from tests.support.samples import DEVICE, granted


def a_job(token: str, *requested: SingleWork) -> ActiveJob:
    spec = JobSpec(model="a" * 64, model_name="net.onnx", shares=("cpu:1",))
    stored = StoredJob("j", spec, 1.0, DEVICE, {"cpu:1": granted(1)}, "llvm", token=token)
    return ActiveJob(stored, [], requested=set(requested))


def turns(workers: int, jobs: Sequence[ActiveJob]) -> CompileTurns:
    made = CompileTurns()
    made.note_workers(workers)
    made.recount(jobs)
    return made


READ = a_job("greedy", SingleWork("ingest"))
COMPILE = a_job("greedy", SingleWork("compile"))
TIME = a_job("greedy", SingleWork("time_model"))
NEXT = a_job("greedy")


def test_a_token_has_two_pieces_for_each_worker_and_others_have_their_own() -> None:
    assert turns(1, [READ, TIME]).is_free(NEXT)
    assert not turns(1, [READ, COMPILE]).is_free(NEXT)
    assert turns(1, [READ, COMPILE]).is_free(a_job("other"))
    assert turns(2, [READ, COMPILE]).is_free(NEXT)
    assert not turns(0, [READ, COMPILE]).is_free(NEXT)


def test_a_piece_counts_until_its_job_has_its_result() -> None:
    held = turns(1, [READ])
    held.take(NEXT)
    assert not held.is_free(NEXT)
    held.recount([])
    assert held.is_free(NEXT)


def test_a_bundle_waits_for_its_turn_and_nothing_is_computed_for_it() -> None:
    unused: Any = None
    job = a_job("greedy")
    job.enter(JobState.COMPILING)
    PublishPhase(unused, unused, unused, turns(1, [READ, COMPILE])).compile(job)
    assert not job.requested
