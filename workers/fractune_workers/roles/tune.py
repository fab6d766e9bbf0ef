"""Tune: one tuner instance. Learns from its own results stream, searches, and sends the next batch to be built."""

import logging
import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import redis

from fractune_core.codec.plain_json import from_json
from fractune_core.errors import FractuneError
from fractune_core.fleet import messages
from fractune_core.fleet.redis_names import BUILD_QUEUE, EVENT_FIELD, RECORDER, STREAMS, TUNER, tune_queue, tuner_stream
from fractune_core.fleet.signed_messages import Unsigned, open_event
from fractune_core.records import UNTUNED, Kind, Status, candidate_id
from fractune_core.shares import expected_units
from fractune_workers.child import Child
from fractune_workers.child.errors import retry_if_killed
from fractune_workers.context import WorkerContext, chunks
from fractune_workers.roles import Role

_SEARCH_TIMEOUT_S = 300.0
_LEARN_TIMEOUT_S = 120.0
_READ = 1000
_THREADS_AT_MOST = 8
_UNLEARNED_KEPT = 1024
"""Searches with results that wait to be learned. Most jobs end with some. A search that is dropped here is opened
again, with the results in the log."""

_log = logging.getLogger(__name__)


class _Forgotten(Exception):
    """The child does not know the search, and the work has no opening for it."""


class SearchName(NamedTuple):
    """One search of this instance."""

    workload_hash: str
    target_key: str
    of: str
    """the namespace, and the job where it shares with no other"""


@dataclass(frozen=True)
class _TrialResult:
    """The fields of a trial's record that a search learns from."""

    kind: Kind
    workload_hash: str
    target_key: str
    namespace: str
    job: str
    candidate_id: str
    share: str
    status: Status
    run_secs: tuple[float, ...]


class Tuner(Role):
    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        threads = min(len(context.cores), _THREADS_AT_MOST)
        self._child = Child("fractune_workers.children.searching.child", [str(threads)])
        self._stream = tuner_stream(context.name)
        self._results: dict[SearchName, list[tuple[str, str, float]]] = defaultdict(list)
        """results not yet learned, by the search that they are for"""
        self._fresh: set[str] = set()
        """jobs that have searches of their own"""

    def start(self) -> None:
        self._join_stream()

    def warm_up(self) -> None:
        self._context.load(self._child)

    def _join_stream(self) -> None:
        """Make the stream and its groups where they are missing: at the start, or when Redis came back empty."""
        for group in (RECORDER, TUNER):
            try:
                self._context.redis.xgroup_create(self._stream, group, id="0", mkstream=True)
            except redis.ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise
        self._context.redis.sadd(STREAMS, self._stream)

    def queue(self) -> str:
        return tune_queue(self._context.name)

    def stop(self) -> None:
        self._child.stop()

    def handle(self, work: messages.SearchWork) -> None:
        if work.fresh:
            self._fresh.add(work.job)
        self._read_results()
        transaction = self._context.transaction(work)
        candidates: list[messages.CandidateItem] = []
        event: messages.Event
        try:
            candidates = retry_if_killed(lambda: self._search(work))
            event = _proposed(work, candidates)
        except _Forgotten:
            event = messages.SearchForgotten(job=work.job, round_id=work.round.id)
        except FractuneError as error:
            event = transaction.failure(type(error).__name__, f"operator {work.round.operator.name}: {error}")
        transaction.event(self._stream, event)
        finalists = [*candidates, _untuned(work.round.operator)] if work.round.validates and candidates else candidates
        for place, batch in enumerate(chunks(finalists, messages.build_batch(work.round.operator.target_key))):
            transaction.enqueue(BUILD_QUEUE, _build_work(work, place, batch, self._stream))
        transaction.send()

    def _search(self, work: messages.SearchWork) -> list[messages.CandidateItem]:
        of, opening = work.round.operator, work.opening
        search = self._search_name(of.workload_hash, of.target_key, work.round.namespace, work.job)
        operator: dict[str, Any] = search._asdict()
        with self._context.computing(self._child):
            if not self._child.call("knows", _LEARN_TIMEOUT_S, **operator):
                if opening is None:
                    raise _Forgotten
                self._open(work, search, opening)
            results = self._results.pop(search, [])
            units = expected_units(work.device_key, work.shares)
            self._child.call("learn", _LEARN_TIMEOUT_S, **operator, results=results, shares=work.shares, units=units)
            operator |= {"count": work.count, "exact": work.exact, "lost": work.lost}
            known = opening.known if opening else []
            proposed = self._child.call("propose", _SEARCH_TIMEOUT_S, **operator, known=known)
        return from_json(list[messages.CandidateItem], proposed)

    def _open(self, work: messages.SearchWork, search: SearchName, opening: messages.SearchOpening) -> None:
        self._child.call(
            "open",
            _SEARCH_TIMEOUT_S,
            **search._asdict(),
            workload=self._context.workload(search.workload_hash),
            target=work.round.operator.target,
            seed=work.seed,
            history=opening.history,
            transferred=opening.transferred,
        )

    def _search_name(self, workload_hash: str, target_key: str, namespace: str, job: str) -> SearchName:
        """The search for an operator that a job takes part in."""
        return SearchName(workload_hash, target_key, f"{namespace}/{job if job in self._fresh else ''}")

    def _read_results(self) -> None:
        """Read the stream's results so far. Acknowledge immediately: losing a result here is harmless."""
        self._join_stream()
        while True:
            answer: Any = self._context.redis.xreadgroup(TUNER, self._context.name, {self._stream: ">"}, count=_READ)
            entries = answer[0][1] if answer else []
            if not entries:
                return
            for entry, fields in entries:
                self._take(entry, fields)
            self._context.redis.xack(self._stream, TUNER, *(entry for entry, _ in entries))

    def _take(self, entry: bytes, fields: Mapping[bytes, bytes]) -> None:
        """Learn from a result that the fleet signed; the recorder keeps the others."""
        try:
            self._note(open_event(self._context.secret, fields.get(EVENT_FIELD.encode(), b"")))
        except (Unsigned, ValueError) as error:
            _log.warning("nothing is learned from %s of %s: %s", entry.decode(), self._stream, error)

    def _note(self, event: Mapping[str, Any]) -> None:
        if event.get("event") != "measured":
            return
        result = from_json(_TrialResult, event.get("record"))
        if result.kind is not Kind.TRIAL:
            return
        secs = statistics.median(result.run_secs) if result.status is Status.OK else 0.0
        name = self._search_name(result.workload_hash, result.target_key, result.namespace, result.job)
        self._results[name].append((result.candidate_id, result.share, secs))
        if len(self._results) > _UNLEARNED_KEPT:
            del self._results[next(iter(self._results))]


def _proposed(work: messages.SearchWork, candidates: list[messages.CandidateItem]) -> messages.Proposed:
    return messages.Proposed(
        job=work.job,
        round_id=work.round.id,
        workload_hash=work.round.operator.workload_hash,
        candidates=[item.candidate for item in candidates],
        exhausted=len(candidates) < work.count,
    )


def _untuned(operator: messages.TargetOperator) -> messages.CandidateItem:
    return messages.CandidateItem(candidate_id(operator.workload_hash, operator.target_key, UNTUNED), UNTUNED)


def _build_work(work: messages.SearchWork, place: int, batch: list[Any], reply: str) -> messages.BuildWork:
    return messages.BuildWork(
        # Not random: a search that is repeated yields pieces that are marked as done, and are in the ledger.
        work_id=f"{work.work_id}-b{place}",
        job=work.job,
        tenant=work.tenant,
        round=work.round,
        purpose=Kind.VALIDATION if work.round.validates else Kind.TRIAL,
        device_key=work.device_key,
        shares=work.shares,
        candidates=batch,
        reply=reply,
    )
