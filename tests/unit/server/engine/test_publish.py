"""When a bundle is made again, how it is sent, and how its times are written."""

import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import redis

from fractune.server.job_status import job_status
from fractune_core.analysis.at_load import AtLoad
from fractune_core.errors import StateUnusable
from fractune_core.files.compared import Checked
from fractune_core.fleet import blobs
from fractune_core.fleet.messages import Compiled, VariantItem
from fractune_core.fleet.redis_names import bundle_blob
from fractune_core.jobs import JobSpec, JobState
from fractune_core.records import UNTUNED, Status
from fractune_server.engine import publish
from fractune_server.engine.active_job import ActiveJob
from fractune_server.engine.ingest import CompileTurns
from fractune_server.engine.publish import PublishPhase, bundle_id, with_graphs
from fractune_server.engine.validate import ValidatePhase, _copy_times
from fractune_server.services.jobs import job_to_proto
from fractune_server.store.jobs import StoredJob, StoredOperator
from fractune_server.store.records.log import LogKey
from fractune_server.transport.work_queues import WorkQueues
from tests.support.processes.redis_process import wait_until
from tests.support.samples import DEVICE, TARGET_KEY, WORKLOAD, divided, granted
from tests.support.secret import SECRET


def a_job(model: str = "a", target: str = "llvm") -> ActiveJob:
    spec = JobSpec(model=model * 64, model_name="net.onnx", shares=("cpu:1",))
    return ActiveJob(StoredJob(model, spec, 1.0, DEVICE, {"cpu:1": granted(1)}, "llvm", target=target), [])


def test_a_bundle_is_made_again_for_another_model_target_schedule_or_version(monkeypatch: pytest.MonkeyPatch) -> None:
    made = bundle_id(a_job(), [VariantItem("cpu:1", {"f": "t"})])
    assert bundle_id(a_job(), [VariantItem("cpu:1", {"f": "t"})]) == made
    assert bundle_id(a_job("b"), [VariantItem("cpu:1", {"f": "t"})]) != made
    assert bundle_id(a_job(target="cuda"), [VariantItem("cpu:1", {"f": "t"})]) != made
    assert bundle_id(a_job(), [VariantItem("cpu:1", {"f": "u"})]) != made
    monkeypatch.setattr(publish, "__version__", "another")
    assert bundle_id(a_job(), [VariantItem("cpu:1", {"f": "t"})]) != made


@pytest.mark.parametrize(
    ("shares", "graphs"),
    [
        (["full"], True),
        (["mps:25", "green:32"], True),
        (["mig:1g.18gb"], True),
        (["green:32"], False),
        (["none"], False),
        (["cpu:1"], False),
    ],
)
def test_tuned_variants_have_graphs_where_a_share_confines_a_whole_process(shares: list[str], *, graphs: bool) -> None:
    plain = [VariantItem(name, {"f": name}) for name in (shares[0], "untuned")]
    twin = VariantItem(f"{shares[0]}+graph", {"f": shares[0]})
    assert with_graphs(plain, shares) == [*plain, *([twin] if graphs else [])]


class SlowFiles:
    """Bundle files that are written once they are let go."""

    def __init__(self, error: Exception | None = None) -> None:
        self.go = threading.Event()
        self.written: list[Mapping[str, float]] = []
        self.served: list[Mapping[str, Any]] = []
        self.others_cores: list[Mapping[str, float]] = []
        self._error = error

    def add_times(
        self, _bundle: str, timed: Mapping[str, float], others_cores: Mapping[str, float], served: Mapping[str, Any]
    ) -> None:
        assert self.go.wait(30)
        if self._error is not None:
            raise self._error
        self.written.append(timed)
        self.others_cores.append(others_cores)
        self.served.append(served)


def publishing(**context: Any) -> PublishPhase:
    held: Any = SimpleNamespace(**context)
    unused: Any = None
    return PublishPhase(held, unused, unused, CompileTurns())


def timed_job() -> ActiveJob:
    job = a_job()
    job.enter(JobState.TIMING)
    job.stored.timings = {
        share: {"run_secs": {share: [2.0]}, "at_load": [], "others_cores": 0.0} for share in job.shares
    }
    return job


def ended(phase: PublishPhase, job: ActiveJob) -> bool:
    phase.time(job)
    return not job.stored.state.open


def test_the_engine_ticks_on_while_a_bundle_is_copied() -> None:
    files, job = SlowFiles(), timed_job()
    phase = publishing(files=files)
    assert not ended(phase, job)
    files.go.set()
    wait_until(lambda: ended(phase, job))
    assert (job.stored.state, files.written) == (JobState.DONE, [dict.fromkeys(job.shares, 2.0)])


def test_the_bundle_has_the_best_variant_for_requests_and_for_a_loop() -> None:
    files, job = SlowFiles(), timed_job()
    loop, requests = (
        AtLoad(*each) for each in (("cpu:2", 2, (2.0,) * 7, (5.0,) * 7), ("cpu:1", 1, (3.0,) * 7, (4.0,) * 7))
    )
    share = job.shares[-1]
    job.stored.timings[share]["at_load"] = [loop.to_json(), requests.to_json()]
    phase = publishing(files=files)
    files.go.set()
    wait_until(lambda: ended(phase, job))
    assert files.served == [{share: {"latency": requests.served.to_json(), "throughput": loop.served.to_json()}}]


def test_a_bundle_gets_the_times_with_what_disturbed_them() -> None:
    files, job = SlowFiles(), timed_job()
    job.stored.timings[job.shares[0]]["others_cores"] = 0.8
    files.go.set()
    wait_until(lambda: ended(publishing(files=files), job))
    assert files.others_cores == [{share: 0.8 if share == job.shares[0] else 0.0 for share in job.shares}]


def test_a_known_bundle_is_timed_again_where_other_programs_were_busy() -> None:
    job = a_job()
    job.enter(JobState.COMPILING)
    known = {"cpu:1": {"others_cores": 0.3}, "cpu:2": {"others_cores": 0.1}, "cpu:4": {"others_cores": 0.0}}
    jobs = SimpleNamespace(timings=lambda *_: known)
    store = SimpleNamespace(jobs=jobs, log=SimpleNamespace(validated_of=lambda *_: {}))
    checked = Checked("ONNX Runtime", {"random": 1e-6}, ("cpu:1",), {"cpu:2": "too slow"})
    files = SimpleNamespace(has_bundle=lambda _: True, checked=lambda _: checked)
    publishing(files=files, store=store).compile(job)
    assert (job.stored.state, job.stored.checked) == (JobState.TIMING, checked)
    assert job_status(job_to_proto(job.stored)).checked == checked
    assert job.stored.timings.keys() == {"cpu:2", "cpu:4"}


def test_a_bundle_that_cannot_be_written_is_an_error_of_its_job() -> None:
    files, job = SlowFiles(StateUnusable("disk full")), timed_job()
    files.go.set()
    phase = publishing(files=files)
    with pytest.raises(StateUnusable, match="disk full"):
        wait_until(lambda: ended(phase, job))


def test_a_stop_waits_until_the_bundle_is_written() -> None:
    files, job = SlowFiles(), timed_job()
    phase = publishing(files=files)
    assert not ended(phase, job)
    threading.Timer(0.1, files.go.set).start()
    phase.stop()
    assert files.written


def test_the_engine_waits_for_one_of_the_bundles_that_wait_for_their_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    files, waits = SlowFiles(), list[object]()
    monkeypatch.setattr(publish, "wait", lambda *given: waits.append(given))
    phase = publishing(files=files)
    jobs = [timed_job() for _ in range(3)]
    assert not any(ended(phase, job) for job in jobs * 2)
    assert len(waits) == 1
    files.go.set()
    for job in jobs:
        wait_until(lambda job=job: ended(phase, job))


def test_redis_returns_a_bundle_for_the_first_share_alone(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept = tmp_path / "bundle"
    kept.write_bytes(b"the bundle")
    with redis.Redis.from_url(redis_url) as connection:
        connection.flushall()
        files = SimpleNamespace(bundle_path=lambda _bundle: kept)
        context: Any = SimpleNamespace(redis=connection, secret=SECRET, files=files)
        rounds: Any = SimpleNamespace(goes_first=lambda _job: False)
        phase, job = PublishPhase(context, WorkQueues(connection, SECRET), rounds, CompileTurns()), a_job()
        job.stored.granted = {"cpu:1": granted(1), "cpu:2": granted(2)}
        job.enter(JobState.TIMING)
        read = Mock(wraps=blobs.read_blob)
        monkeypatch.setattr(blobs, "read_blob", read)
        phase.time(job)
        job.stored.timings["cpu:1"] = {"run_secs": {}, "others_cores": 0.0}
        phase.time(job)
        assert read.call_count == 1
        assert blobs.get_signed_blob(connection, SECRET, bundle_blob(job.stored.bundle)) == b"the bundle"
        connection.flushall()
        phase._send_bundle(job)
        assert blobs.has_blob(connection, bundle_blob(job.stored.bundle)), "Redis may have come back empty"


def test_redis_returns_a_compiled_bundle_once(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its signature is checked when it is taken, and not again before the first share times it."""
    with redis.Redis.from_url(redis_url) as connection:
        connection.flushall()
        held: dict[str, bytes] = {}

        def add_bundle(bundle: str, pieces: Iterable[bytes], count: Callable[[int], None]) -> None:
            held[bundle] = b"".join(pieces)
            count(len(held[bundle]))

        files = SimpleNamespace(has_bundle=held.__contains__, add_bundle=add_bundle, checked=lambda _: None)
        store = SimpleNamespace(tokens=SimpleNamespace(add_bundle=lambda *_: None))
        context: Any = SimpleNamespace(redis=connection, secret=SECRET, files=files, store=store)
        rounds: Any = SimpleNamespace(goes_first=lambda _job: False)
        phase, job = PublishPhase(context, WorkQueues(connection, SECRET), rounds, CompileTurns()), a_job()
        job.stored.granted = {"cpu:1": granted(1)}
        blobs.put_signed_blob(connection, SECRET, bundle_blob("c" * 32), b"the bundle")
        read = Mock(wraps=blobs.read_blob)
        monkeypatch.setattr(blobs, "read_blob", read)
        phase.take_compiled(job, Compiled(job=job.id, bundle="c" * 32))
        phase.time(job)
        assert held == {"c" * 32: b"the bundle"}
        assert read.call_count == 1


def test_the_time_of_the_winner_is_not_the_one_that_made_it_win() -> None:
    spec = JobSpec(model="a" * 64, model_name="net.onnx", shares=("cpu:1",))
    stored = StoredJob("j", spec, 1.0, DEVICE, {"cpu:1": granted(1)}, "llvm", target_key=TARGET_KEY)
    operator = StoredOperator(WORKLOAD, "conv2d", 1, selected=True)
    validations = [
        divided(UNTUNED, 1, 4.0, 4.2),
        divided("lucky", 1, 1.0, 1.5),
        divided("other", 1, 1.2, 1.3),
        divided("of before", 1, 0.9, 0.9, measured_at=1.0, record_id="r0"),
        divided("of before", 1, 1.9, 1.9, measured_at=2.0, record_id="r1"),
    ]
    _copy_times(ActiveJob(stored, [operator]), operator, validations)
    assert (operator.best_s, operator.untuned_s) == ({"cpu:1": 1.5}, {"cpu:1": 4.2})


def test_repeats_are_as_long_as_the_share_needs_at_which_the_operator_matters_most() -> None:
    spec = JobSpec(model="a" * 64, model_name="net.onnx", shares=("cpu:1", "cpu:2"))
    tuned_at = {"cpu:1": granted(1), "cpu:2": granted(2)}
    stored = StoredJob("j", spec, 1.0, DEVICE, tuned_at, "llvm", target_key=TARGET_KEY)
    secs = {"heavy": (100.0, 100.0), "light": (0.1, 0.1), "at one share": (0.1, 2.0), "heavy at one": (0.1, 20.0)}
    operators = [StoredOperator(name, name, 1, selected=True) for name in secs]
    job, sent = ActiveJob(stored, operators), list[Any]()

    def best_trials(key: LogKey, share: str, _count: int) -> list[Any]:
        median_s = secs[key.workload_hash][share == granted(2).key]
        return [SimpleNamespace(candidate_id="c", trace="t", median_s=median_s, status=Status.OK)]

    log = SimpleNamespace(
        validated_of=lambda names, _pool, _tenant: {name: SimpleNamespace(records=[]) for name in names},
        best_trials=best_trials,
    )
    context: Any = SimpleNamespace(store=SimpleNamespace(log=log))
    rounds: Any = SimpleNamespace(
        validations=list, start=lambda _live, _queue, works: sent.extend(works), goes_first=lambda _job: False
    )
    ValidatePhase(context, rounds).advance(job)
    lengths = {work.round.operator.workload_hash: work.round.repeat_ms for work in sent}
    assert lengths == {"heavy": None, "light": 0.5, "at one share": 2.0, "heavy at one": None}
