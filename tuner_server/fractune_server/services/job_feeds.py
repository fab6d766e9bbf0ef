"""The states of watched jobs, read once for all watchers: each change costs one look, however many watch the job."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from fractune_core.pb import fractune_pb2 as pb
from fractune_server.transport.context import JobNotifier

LEAST_GAP_S = 0.2
"""seconds between two looks; changes in between are seen as one"""
_LOOK_EVERY_S = 1.0

_log = logging.getLogger(__name__)


class JobFeed:
    """The newest state of one job. Any thread may call."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._newest: pb.Job | None = None
        self._error: Exception | None = None

    @property
    def revision(self) -> int | None:
        """None before the first `put`."""
        return None if self._newest is None else self._newest.revision

    def put(self, message: pb.Job) -> None:
        with self._changed:
            self._newest = message
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def after(self, revision: int, timeout_s: float) -> pb.Job | None:
        """The newest state after this revision; None if there is none in time. Raises the error of a failed look."""

        def is_there() -> bool:
            return self._error is not None or (self._newest is not None and self._newest.revision > revision)

        with self._changed:
            if not self._changed.wait_for(is_there, timeout_s):
                return None
            if self._error is not None:
                raise self._error
            return self._newest


class JobFeeds:
    """Any thread may call. A separate thread looks at the watched jobs while there are any."""

    def __init__(
        self,
        notifier: JobNotifier,
        revisions: Callable[[Iterable[str]], Mapping[str, int]],
        view: Callable[[str], pb.Job],
    ) -> None:
        """`revisions` returns the revisions of jobs by id, `view` the message for a watcher of a job."""
        self._notifier = notifier
        self._revisions = revisions
        self._view = view
        self._lock = threading.Lock()
        self._feeds: dict[str, JobFeed] = {}
        self._watchers: Counter[str] = Counter()
        self._looks = False

    @contextmanager
    def of(self, job: str) -> Iterator[JobFeed]:
        """The job's feed, for one watcher."""
        with self._lock:
            feed = self._feeds.setdefault(job, JobFeed())
            self._watchers[job] += 1
            if not self._looks:
                self._looks = True
                threading.Thread(target=self._look_on, name="watch", daemon=True).start()
        try:
            yield feed
        finally:
            with self._lock:
                self._watchers[job] -= 1
                if not self._watchers[job]:
                    del self._watchers[job], self._feeds[job]

    def _look_on(self) -> None:
        pause = threading.Event()
        while True:
            with self._lock:
                feeds = dict(self._feeds)
                if not feeds:
                    self._looks = False
                    return
            changes = self._notifier.count
            try:
                self._look(feeds)
            except Exception as error:  # noqa: BLE001  every error must reach the watchers
                _log.exception("jobs cannot be watched")
                for feed in feeds.values():
                    feed.fail(error)
            pause.wait(LEAST_GAP_S)
            self._notifier.wait(changes, _LOOK_EVERY_S)

    def _look(self, feeds: Mapping[str, JobFeed]) -> None:
        """Put newer states into the feeds, which are by job."""
        for job, revision in self._revisions(feeds).items():
            if revision != feeds[job].revision:
                feeds[job].put(self._view(job))
