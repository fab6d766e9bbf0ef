"""How long a build may take, and what becomes of candidates when a builder's child is killed."""

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis
from rq import Queue
from rq.serializers import JSONSerializer

from fractune_core.errors import BadRequest
from fractune_core.fleet.blobs import drop_blobs, has_blob, put_signed_blob
from fractune_core.fleet.messages import BuiltItem, CandidateItem, MeasureWork, TargetOperator
from fractune_core.fleet.redis_names import artifact_blob, kernel_blob, measure_queue, workload_blob
from fractune_core.fleet.signed_messages import open_work
from fractune_core.records import ArtifactItem, Kind, Status
from fractune_workers.builder_process import BuiltCandidate
from fractune_workers.child import Child
from fractune_workers.child.errors import TRIES
from fractune_workers.context import WorkerContext
from fractune_workers.locks.core_locks import CoreLocks
from fractune_workers.roles.build import Builder, Deadline
from tests.support.children.building_module import KERNEL
from tests.support.fleet_messages import build_work
from tests.support.processes.redis_process import wait_until
from tests.support.samples import WORKLOAD, WORKLOAD_TEXT
from tests.support.secret import SECRET


def noted(deadline: Deadline, workload: str, build_secs: float, count: int) -> int:
    for _ in range(count):
        deadline.note(workload, build_secs)
    return deadline.limit_cpu_s(workload)


def test_eight_times_what_any_builds_took_for_an_operator_with_few() -> None:
    deadline = Deadline()
    assert deadline.limit_cpu_s("new") == 10
    noted(deadline, "a", 0.1, 100)
    assert deadline.limit_cpu_s("new") == 2
    noted(deadline, "b", 0.6, 40)
    assert deadline.limit_cpu_s("new") == 5
    assert noted(deadline, "new", 5.0, 3) == 5
    noted(deadline, "c", 5.0, 40)
    assert deadline.limit_cpu_s("another") == 10


def test_four_times_what_its_own_took_for_an_operator_with_some() -> None:
    deadline = Deadline()
    assert noted(deadline, "small", 0.1, 4) == 1
    assert noted(deadline, "large", 0.8, 4) == 4
    assert noted(deadline, "larger", 6.0, 4) == 10
    assert deadline.limit_cpu_s("small") == 1


# ---- a child that is killed, for real; what compiles in it does what the trace says ----


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    child = Child("tests.support.children.building_module")
    yield child
    child.stop()


@pytest.fixture
def builder(child: Child, connection: redis.Redis, tmp_path: Path) -> Builder:
    context = WorkerContext("builder", connection, SECRET, CoreLocks(tmp_path / "gate", 8), [0], tmp_path)
    put_signed_blob(connection, SECRET, workload_blob(WORKLOAD), WORKLOAD_TEXT.encode())
    builder = Builder(context)
    builder._process.child = child
    return builder


def built(builder: Builder, *traces: str) -> list[tuple[str, str]]:
    """Status and cause of each candidate, as a measurer is told."""
    candidates = [CandidateItem(trace, trace) for trace in traces]
    return [(item.status, item.cause) for item in artifacts(builder, "cpu:1", candidates)]


def artifacts(
    builder: Builder,
    share: str,
    candidates: list[CandidateItem],
    purpose: Kind = Kind.TRIAL,
    *,
    tenant: str = "default",
    validates: bool = False,
) -> list[ArtifactItem]:
    """What the measurer of a share is told."""
    operator = TargetOperator(WORKLOAD, "matmul", '{"kind": "llvm"}', "k")
    more = {"work_id": f"w-{share[-1]}", "tenant": tenant, "purpose": purpose, "device_key": "d", "shares": [share]}
    work = build_work(operator, candidates, "r", **more)
    builder.handle(replace(work, round=replace(work.round, validates=validates)))
    name = measure_queue("d", share)
    (job,) = Queue(name, connection=builder._context.redis, serializer=JSONSerializer).jobs
    measured = open_work(SECRET, name, job.id, job.args[0])
    assert isinstance(measured, MeasureWork)
    return measured.candidates


def test_what_the_round_has_built_before_is_not_built_again_as_long_as_it_is_there(builder: Builder) -> None:
    assert built(builder, "c") == [("ok", "")]
    known = BuiltItem(12.5, {"compiler": "the first"})
    again = [CandidateItem("c", "c", known)]
    (reused,) = artifacts(builder, "cpu:2", again)
    assert (reused.status, reused.build_secs, reused.versions) == ("ok", 12.5, known.versions)
    drop_blobs(builder._context.redis, [artifact_blob("r", "c")])
    (anew,) = artifacts(builder, "cpu:4", again)
    assert (anew.status, anew.versions) == ("ok", {})
    assert has_blob(builder._context.redis, artifact_blob("r", "c"))


def test_a_compilers_message_of_any_bytes_reaches_the_measurer(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = "nu\0l, half \ud800 " + "m" * 5_000
    failed = BuiltCandidate(Status.BUILD_FAILED, message, b"", "", 0.1, {})
    monkeypatch.setattr(builder, "_build_once", lambda *_: failed)
    (told,) = artifacts(builder, "cpu:1", [CandidateItem("c", "c")])
    assert told.cause.startswith("nu\\x00l, half \\ud800 mmm")
    assert len(told.cause) == 2_000


def test_the_code_of_a_finalist_is_kept_for_the_bundle(builder: Builder) -> None:
    artifacts(builder, "cpu:1", [CandidateItem("trial", "trial")])
    artifacts(builder, "cpu:2", [CandidateItem("finalist", "finalist")], Kind.VALIDATION)
    code = builder._context.signed_blob(artifact_blob("r", "finalist"))
    kept = builder._context.signed_blob(kernel_blob("default", "finalist"))
    assert kept.partition(b"\n")[::2] == (KERNEL.encode(), code)
    assert not has_blob(builder._context.redis, kernel_blob("default", "trial"))


def test_a_process_that_has_built_for_another_tenant_makes_no_code_for_a_bundle(builder: Builder) -> None:
    def is_kept(candidate: str, share: str) -> bool:
        artifacts(builder, share, [CandidateItem(candidate, candidate)], Kind.VALIDATION, tenant="second")
        return has_blob(builder._context.redis, kernel_blob("second", candidate))

    artifacts(builder, "cpu:1", [CandidateItem("trial", "trial")])
    assert not is_kept("beside the first", "cpu:2")
    builder._process.child.kill()
    assert is_kept("alone", "cpu:4")


def killing(builder: Builder, folder: Path, times: int) -> threading.Thread:
    """Kills the builder's child `times` times, each while a fork of it waits; what comes after that need not wait."""

    def kill() -> None:
        for number in range(times):
            wait_until(lambda: list(folder.glob("go-on.*")))
            (waiting,) = folder.glob("go-on.*")
            waiting.unlink()
            if number == times - 1:
                (folder / "go-on").touch()
            pid = builder._process.child.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


def test_a_builder_whose_child_is_killed_blames_no_candidate(builder: Builder, tmp_path: Path) -> None:
    first = builder._process.child.ensure()
    thread = killing(builder, tmp_path, TRIES - 1)
    found = built(builder, "first", f"wait for {tmp_path / 'go-on'}", "last")
    thread.join()
    assert found == [("ok", "")] * 3
    assert builder._process.child.generation == first + TRIES - 1


@pytest.mark.long
def test_a_candidate_whose_builder_is_killed_every_time_is_blamed_alone(builder: Builder, tmp_path: Path) -> None:
    thread = killing(builder, tmp_path, TRIES)
    found = built(builder, "first", f"wait for {tmp_path / 'go-on'}", "last")
    thread.join()
    cause = "while it was built: the child was killed by SIGKILL, 3 times in a row; is this machine out of memory?"
    assert found == [("ok", ""), ("crashed", cause), ("ok", "")]


def test_a_text_under_the_name_of_another_is_not_built(builder: Builder) -> None:
    put_signed_blob(builder._context.redis, SECRET, workload_blob(WORKLOAD), b"[1]")
    with pytest.raises(BadRequest, match=f"workload {WORKLOAD}: its text has another SHA-256"):
        built(builder, "first")


@pytest.mark.parametrize(("first", "built"), [("good", ["good", ""]), ("fail", ["fail"])])
def test_the_untuned_default_is_not_built_beside_a_first_candidate_that_cannot_be(
    builder: Builder, first: str, built: list[str]
) -> None:
    both = [CandidateItem(trace, trace) for trace in (first, "")]
    found = artifacts(builder, "cpu:1", both, Kind.VALIDATION, validates=True)
    assert [item.trace for item in found] == built
