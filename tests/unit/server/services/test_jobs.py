"""Jobs as callers see them, and the events that watchers receive."""

import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from fractune.server.job_status import job_status
from fractune_core.analysis.validated import ValidatedRecords
from fractune_core.jobs import JobSpec, JobState
from fractune_core.pb import fractune_pb2 as pb
from fractune_server.services.jobs import JobFeeds, job_to_proto
from fractune_server.store.jobs import Progress, StoredJob, StoredOperator
from fractune_server.transport.context import JobNotifier
from tests.support.processes.redis_process import wait_until
from tests.support.samples import DEVICE, TARGET_KEY, granted, validation

WATCHERS = 20


class Store:
    """Jobs by their revision; notes what is asked."""

    def __init__(self) -> None:
        self.jobs = {"a": 1, "b": 1}
        self.viewed: list[tuple[str, int]] = []
        self.looks = 0
        self.broken = False
        self.notifier = JobNotifier()
        self.feeds = JobFeeds(self.notifier, self.revisions)

    def revisions(self, names: Iterable[str]) -> dict[str, int]:
        if self.broken:
            raise OSError("the disk is gone")
        self.looks += 1
        return {name: self.jobs[name] for name in names if name in self.jobs}

    def view(self, job: str) -> pb.Job:
        self.viewed.append((job, self.jobs[job]))
        return pb.Job(name=job, revision=self.jobs[job])

    def save(self, job: str) -> None:
        self.jobs[job] += 1
        self.notifier.announce()


def told(store: Store, job: str, until: int, ready: threading.Barrier | None = None) -> list[int]:
    """The revisions that a watcher is told, from 0 to `until`."""
    found = [0]
    with store.feeds.of(job, partial(store.view, job)) as feed:
        if ready is not None:
            ready.wait()
        while found[-1] < until:
            message = feed.after(found[-1], 30.0)
            assert message is not None
            found.append(message.revision)
    return found[1:]


def test_each_change_is_read_once_however_many_watch() -> None:
    store, ready = Store(), threading.Barrier(WATCHERS + 1)
    with ThreadPoolExecutor(WATCHERS) as pool:
        calls = [pool.submit(told, store, "a", 3, ready) for _ in range(WATCHERS)]
        ready.wait()
        wait_until(lambda: store.viewed == [("a", 1)])
        for revision in (2, 3):
            store.save("a")
            wait_until(lambda: store.viewed[-1] == ("a", revision))  # noqa: B023  called within the loop
            if revision == 2:
                looks = store.looks
                store.notifier.announce()  # of a change that is none of this job
                wait_until(lambda: store.looks > looks)  # noqa: B023
        found = [call.result() for call in calls]
    assert store.viewed == [("a", 1), ("a", 2), ("a", 3)]
    assert all(revisions == sorted(set(revisions)) and revisions[-1] == 3 for revisions in found)


def test_a_watcher_is_told_of_its_job_alone_and_the_newest_state_at_once() -> None:
    store = Store()
    store.save("b")
    with store.feeds.of("a", partial(store.view, "a")) as feed:
        assert feed.after(0, 30.0) is not None
        store.save("b")
        assert feed.after(1, 0.5) is None
        assert told(store, "b", 3) == [3]


def test_what_keeps_jobs_from_being_read_ends_all_watches_and_the_next_one_begins_anew() -> None:
    store = Store()
    store.broken = True
    with store.feeds.of("a", partial(store.view, "a")) as feed, pytest.raises(OSError, match="the disk is gone"):
        feed.after(0, 30.0)
    store.broken = False
    assert told(store, "a", 1) == [1]


def test_nobody_looks_when_nobody_watches() -> None:
    store = Store()
    told(store, "a", 1)
    store.notifier.announce()
    wait_until(lambda: not any(thread.name == "watch" for thread in threading.enumerate()))


def test_an_operator_names_the_implementation_of_its_best_time_at_each_share() -> None:
    shares = {f"cpu:{units}": granted(units) for units in (1, 2, 4)}
    spec = JobSpec(model="0" * 64, model_name="m.onnx", shares=tuple(shares))
    now = time.time()
    job = StoredJob("j1", spec, now, DEVICE, shares, "", JobState.DONE, ended_at=now, target_key=TARGET_KEY)
    best_s = {"cpu:1": 1.0, "cpu:2": 2.0, "cpu:4": 3.0}
    operators = [StoredOperator(name, name, 1, selected=True, best_s=best_s) for name in ("conv", "unknown")]
    records = (
        validation("winograd4:[]", 1, 1.0),
        validation("[]", 1, 2.0),
        validation("[]", 2, 2.0),
        validation("winograd4:[]", 4, 1.0),
    )
    shown = job_to_proto(job, operators, validated={"conv": ValidatedRecords(records)})
    found = [dict(operator.implementations) for operator in shown.operators]
    assert found == [{"cpu:1": "winograd4", "cpu:2": ""}, {}]


def test_without_a_run_the_untuned_time_is_that_of_its_operators() -> None:
    spec = JobSpec(model="0" * 64, model_name="m.onnx", shares=("cpu:1",))
    job = StoredJob("j1", spec, 1.0, DEVICE, {"cpu:1": granted(1)}, "", JobState.DONE, ended_at=9.0)
    timing = {"granted": granted(1).to_json(), "run_secs": {"cpu:1": [0.1, 0.3, 0.2]}, "max_error": {}, "at_load": []}
    facts = {"untuned_sum_s": 18.0, "job": "j1", "timed_at": 9.0, "others_cores": 0.0, "inside": None}
    job.timings = {"cpu:1": timing | facts}
    (shown,) = job_status(job_to_proto(job, [])).results
    assert (shown.untuned_s, shown.tuned_s, shown.is_untuned_summed) == (18.0, 0.2, True)


def test_a_job_without_a_search_has_no_rate() -> None:
    """Trials of another job were shared with it while it validated."""
    spec = JobSpec(model="0" * 64, model_name="m.onnx", shares=("cpu:1",))
    job = StoredJob("j1", spec, 1.0, DEVICE, {"cpu:1": granted(1)}, "", JobState.DONE, ended_at=9.0)
    job.tuning_began, job.tuning_ended, job.progress = 2.0, 2.0001, Progress(shared=39)
    assert job_to_proto(job, []).progress.trials_per_s == 0.0
    job.tuning_ended = 5.0
    assert job_to_proto(job, []).progress.trials_per_s == 13.0
