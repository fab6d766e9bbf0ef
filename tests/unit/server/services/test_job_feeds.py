"""What watchers of jobs are told, and how often the store is asked for it."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from fractune_core.pb import fractune_pb2 as pb
from fractune_server.services.jobs import JobFeeds
from fractune_server.transport.context import JobNotifier
from tests.support.processes.redis_process import wait_until

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
