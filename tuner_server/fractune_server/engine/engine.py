"""The engine: one thread that takes in results, moves every open job on, and hands out work.

gRPC handlers never touch what the engine holds in memory: they write to the store, and the engine sees it on its
next turn.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import redis

from fractune_core.errors import BadModel, FractuneError, RedisGone, StateUnusable, error_from_name
from fractune_core.jobs import JobState
from fractune_core.messages import Event, Work, WorkFailed, tuner_stream
from fractune_core.records import Kind
from fractune_server.engine.active_job import ActiveJob
from fractune_server.engine.ingest import IngestPhase, ingest_key
from fractune_server.engine.publish import PublishPhase
from fractune_server.engine.tune import TunePhase
from fractune_server.engine.validate import ValidatePhase
from fractune_server.store.stored_job import StoredJob
from fractune_server.transport.context import ServerContext
from fractune_server.transport.dead_letters import write_dead_letters
from fractune_server.transport.live_workers import BUILD, COMPILE, MEASURE, TUNE, Fleet, live_workers
from fractune_server.transport.model_ingests import ModelIngests
from fractune_server.transport.outgoing import tell_cancelled
from fractune_server.transport.recorder import Arrival, Recorder
from fractune_server.transport.requeue import Requeuer
from fractune_server.transport.trim import trim
from fractune_server.transport.work_queues import WorkQueues

POLL_MS = 200
SAVE_EVERY_S = 0.2
SWEEP_EVERY_S = 1.0
STALL_S = 5.0
"""when no work waits or runs anywhere for this long, what is still owed was lost, and is asked for again"""
REDIS_PATIENCE_S = 30.0
MISSING_WORKER_S = 2.0

_log = logging.getLogger(__name__)


class Engine:
    """`start` it once; `failure` says why it ended by itself."""

    def __init__(
        self, context: ServerContext, ended: Callable[[], None], redis_patience_s: float = REDIS_PATIENCE_S
    ) -> None:
        self._context = context
        self._ended = ended
        self._redis_patience_s = redis_patience_s
        self.model_ingests = ModelIngests()
        self.failure: FractuneError | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine")
        queues = WorkQueues(context.redis)
        self._queues = queues
        self._recorder = Recorder(context.redis, context.store.log)
        self._ingest = IngestPhase(context, queues)
        self._tuning = TunePhase(context, queues)
        self._finishing = ValidatePhase(context, queues)
        self._publishing = PublishPhase(context, queues)
        self._reaper = Requeuer(context.redis, queues, self._give_up)
        self._runs: dict[str, ActiveJob] = {}
        self._fleet = Fleet(())
        self._caught_up = False
        self._swept_at = 0.0
        self._quiet_since = time.monotonic()
        self._missing_since: dict[str, float] = {}

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends after the turn in hand; nothing that was committed is lost."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._turn_until_stopped()
        except FractuneError as error:
            self.failure = error
        except Exception as error:  # noqa: BLE001  whatever it is, the process must not serve on without its engine
            _log.exception("the engine ended")
            self.failure = FractuneError(f"the engine ended: {type(error).__name__}: {error}; see the server's log")
        finally:
            self._ended()

    def _turn_until_stopped(self) -> None:
        """Turn after turn; Redis may be away for a while. Raises RedisGone when it stays away."""
        gone_since: float | None = None
        while not self._stopping.is_set():
            try:
                self._turn()
                gone_since = None
            except (redis.ConnectionError, redis.TimeoutError, redis.ResponseError) as error:
                now = time.monotonic()
                gone_since = gone_since or now
                if now - gone_since > self._redis_patience_s:
                    raise RedisGone(
                        f"Redis stayed away for {self._redis_patience_s:g} s ({error}); committed results are kept: "
                        "start Redis and the server again to go on"
                    ) from error
                _log.warning("Redis does not answer: %s", error)
                self._recorder.repeat()
                self._stopping.wait(min(1.0, self._redis_patience_s / 10))

    def _turn(self) -> None:
        self._meet_jobs()
        batch = self._recorder.poll(POLL_MS)
        for arrival in batch.arrivals:
            self._take(arrival)
        self._save_all()
        self._recorder.acknowledge(batch)
        if batch.arrivals:
            self._quiet_since = time.monotonic()
        # Jobs move on only when all that came in while the server was away has been taken in.
        self._caught_up = self._caught_up or not batch.arrivals
        if time.monotonic() - self._swept_at >= SWEEP_EVERY_S:
            self._sweep()
        if self._caught_up:
            self._advance_all()
        self._save_all()

    # ---- what comes in --------------------------------------------------------------------------

    def _take(self, arrival: Arrival) -> None:
        """Let one event take effect; it may come twice."""
        event = arrival.event
        run = self._runs.get(event["job"])
        if arrival.record is not None:
            for each in self._runs.values():
                each.take_trial(arrival.record)
        try:
            if run is not None:
                self._take_for(run, arrival)
            else:
                self._take_loose(event)
        except FractuneError as error:
            if run is None or not _concerns_a_job(error):
                raise
            self._fail(run, error)

    def _take_for(self, run: ActiveJob, arrival: Arrival) -> None:
        event, state = arrival.event, run.job.state
        if event["event"] == "measured" and arrival.record is not None:
            self._tuning.take_record(run, arrival.record, event["lease"])
        elif event["event"] == "proposed":
            self._tuning.take_proposed(run, event)
        elif event["event"] == "ingested":
            self._ingest.save(ingest_key(run.job), event)
        elif event["event"] == "compiled" and state is JobState.COMPILING:
            self._publishing.take_compiled(run, event)
        elif event["event"] == "model_timed" and state is JobState.TIMING:
            self._publishing.take_timed(run, event)
        elif event["event"] == "work_failed":
            self._take_failed(run, event)

    def _take_failed(self, run: ActiveJob, event: WorkFailed) -> None:
        """A lost round is bearable; for anything else the job ends with the worker's error."""
        live = run.rounds.get(event.get("lease", ""))
        if live is not None and live.stored.kind is Kind.TRIAL:
            self._tuning.take_failed(run, event)
        elif live is not None:
            self._finishing.take_failed(run, event)
            self._tuning.end_round(run, live)
        elif event["do"] in ("ingest", "compile", "time_model"):
            raise error_from_name(event["error"], event["message"])

    def _take_loose(self, event: Event) -> None:
        """Of no open job: an ingest that a call waits for, or what came too late."""
        if event["event"] == "ingested":
            key = self.model_ingests.take(event["job"])
            if key is not None:
                self._ingest.save(key, event)
        elif event["event"] == "work_failed":
            self.model_ingests.fail(event)

    # ---- which jobs there are -------------------------------------------------------------------

    def _meet_jobs(self) -> None:
        """Take up new jobs, and let go of those that were cancelled."""
        still_open = self._context.store.jobs.open_ids()
        for gone in set(self._runs) - still_open:
            run = self._runs.pop(gone)
            for live in list(run.rounds.values()):
                self._tuning.end_round(run, live)
        for job in still_open - set(self._runs):
            self._runs[job] = self._load(job)

    def _load(self, job: str) -> ActiveJob:
        stored = self._context.store.jobs.get(job)
        run = ActiveJob(stored, self._context.store.jobs.operators(job))
        if run.operators:
            run.load_plans(self._context.store.log)
            run.load_rounds(self._context.store.jobs.rounds(job), self._context.store.log)
        return run

    # ---- moving on ------------------------------------------------------------------------------

    def _advance_all(self) -> None:
        runs = sorted(self._runs.values(), key=lambda run: run.order)
        for run in runs:
            try:
                self._advance(run)
            except FractuneError as error:
                if not _concerns_a_job(error):
                    raise
                self._fail(run, error)

    def _advance(self, run: ActiveJob) -> None:
        """Move on as far as it goes without waiting."""
        before = None
        while before is not run.job.state and run.job.state.open:
            before = run.job.state
            match run.job.state:
                case JobState.QUEUED | JobState.INGESTING:
                    self._ingest.advance(run)
                case JobState.TUNING:
                    if not run.plans:
                        self._tuning.begin(run)
                    self._tuning.advance(run, list(self._runs.values()))
                case JobState.FINISHING:
                    self._finishing.advance(run)
                case JobState.COMPILING:
                    self._publishing.compile(run)
                case JobState.TIMING:
                    self._publishing.time(run)

    def _fail(self, run: ActiveJob, error: FractuneError) -> None:
        """End the job with the error, and have workers skip what is left of it."""
        _log.info("job %s failed: %s", run.id, error)
        run.end(JobState.FAILED, type(error).__name__, str(error))
        tell_cancelled(self._context.redis, run.id)

    def _save_all(self) -> None:
        now = time.monotonic()
        for run in list(self._runs.values()):
            # An end or a new state is news at once; counts may wait for more of them.
            if run.dirty and (now - run.saved_at >= SAVE_EVERY_S or run.job.state is not run.saved_state):
                self._save(run, now)

    def _save(self, run: ActiveJob, now: float) -> None:
        run.count_progress()
        kept = self._context.store.jobs.save(run.job, run.operators)
        run.dirty, run.saved_at, run.saved_state = False, now, run.job.state
        if not kept or not run.job.state.open:
            del self._runs[run.id]
        self._context.changes.announce()

    # ---- looking after things -------------------------------------------------------------------

    def _sweep(self) -> None:
        """Once a second: who is there, whose work is orphaned, what is lost, which streams can be cut."""
        self._swept_at = time.monotonic()
        self._fleet = live_workers(self._context.redis)
        if self._caught_up:
            # Before the reaper: what a dead tuner instance was to search goes to another, not back to its queue.
            self._tuning.meet(self._fleet, list(self._runs.values()))
            self._find_stalled()
        self._reaper.sweep(self._fleet)
        self._note_missing_workers()
        alive = [worker["name"] for worker in self._fleet.of_role(TUNE)]
        self._queues.drop_tuners_but(alive)
        self._recorder.expect(tuner_stream(name) for name in alive)
        needed = {live.stored.instance for run in self._runs.values() for live in run.rounds.values()}
        trim(self._context.redis, self._recorder, alive, needed)

    def _find_stalled(self) -> None:
        """Redis may have come back empty: when nothing is under way anywhere, what is owed is asked for again."""
        owing = [run for run in self._runs.values() if run.asked or run.rounds]
        if not owing or not self._queues.idle():
            self._quiet_since = time.monotonic()
        elif time.monotonic() - self._quiet_since > STALL_S:
            for run in owing:
                _log.warning("job %s waits for work that is nowhere; asking for it again", run.id)
                run.asked.clear()
                for live in list(run.rounds.values()):
                    self._tuning.end_round(run, live)

    def _note_missing_workers(self) -> None:
        now = time.monotonic()
        missing: dict[str, float] = {}
        for run in self._runs.values():
            wanted = [role for role in _roles(run) if not _is_there(self._fleet, run, role)]
            missing.update((role, self._missing_since.get(role, now)) for role in wanted)
            run.note_waiting(role for role in wanted if now - missing[role] >= MISSING_WORKER_S)
        self._missing_since = missing

    def _give_up(self, work: Work) -> None:
        if work["do"] == "ingest":
            self.model_ingests.fail(_killed_all(work))
        write_dead_letters(self._context.redis, work, self._find_job)

    def _find_job(self, job: str) -> StoredJob | None:
        run = self._runs.get(job)
        return None if run is None else run.job


def _concerns_a_job(error: FractuneError) -> bool:
    """False for errors that end the server: nothing can go on without its state."""
    return not isinstance(error, StateUnusable)


def _roles(run: ActiveJob) -> list[str]:
    """Roles that the job needs now; measuring ones with their share."""
    measuring = [f"role {MEASURE}, share {share}" for share in run.shares]
    match run.job.state:
        case JobState.QUEUED | JobState.INGESTING | JobState.COMPILING:
            return [f"role {COMPILE}"]
        case JobState.TUNING:
            return [f"role {TUNE}", f"role {BUILD}", *measuring]
        case JobState.FINISHING:
            return [f"role {BUILD}", *measuring]
        case _:
            return measuring


def _is_there(fleet: Fleet, run: ActiveJob, wanted: str) -> bool:
    role, _, share = wanted.removeprefix("role ").partition(", share ")
    if role != MEASURE:
        return bool(fleet.of_role(role))
    return any(o.device.key == run.job.device.key and o.granted.share == share for o in fleet.offers())


def _killed_all(work: Work) -> WorkFailed:
    return {
        "event": "work_failed",
        "job": work["job"],
        "do": work["do"],
        "error": BadModel.__name__,
        "message": "every worker that read this model ended; see their logs",
    }
