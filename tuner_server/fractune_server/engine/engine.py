"""The engine: one thread that takes results, advances every open job, and hands out work.

gRPC handlers never touch the engine's memory. They write to the store, and the engine sees it in its next tick.
"""

import itertools
import logging
import threading
import time
from collections.abc import Callable

import redis

from fractune_core.errors import BadModel, FractuneError, JobFailed, RedisGone, StateUnusable
from fractune_core.fleet import messages
from fractune_core.fleet.redis_names import bundle_blob, model_blob, tuner_stream
from fractune_core.fleet.redis_state import check_clock, drop_old_marks
from fractune_core.jobs import JobState
from fractune_core.tracing import log_fields
from fractune_server.engine.active_job import ActiveJob
from fractune_server.engine.ingest import CompileTurns, IngestPhase, ingest_key
from fractune_server.engine.open_jobs import MissingWorkers, OpenJobs
from fractune_server.engine.publish import PublishPhase
from fractune_server.engine.rounds import Rounds
from fractune_server.engine.tune import Instance, TunePhase
from fractune_server.engine.validate import ValidatePhase
from fractune_server.scheduler.fair_queue import FairQueue
from fractune_server.store.store import IngestKey
from fractune_server.transport.context import ServerContext, reported_error
from fractune_server.transport.live_workers import COMPILE, TUNE, live_workers
from fractune_server.transport.recorder import Arrival, Recorder, trim
from fractune_server.transport.requeue import Loss, Requeuer, RoundPlace, write_dead_letters
from fractune_server.transport.work_queues import WorkQueues

POLL_MS = 200
SWEEP_EVERY_S = 1.0
STALL_S = 5.0
"""if no work waits or runs anywhere for this long, requested work was lost, and is requested again"""
_MOST_REQUESTS = 10
"""of one piece of a job's own work, while no result of it comes"""
REDIS_PATIENCE_S = 30.0

_log = logging.getLogger(__name__)


class Engine:
    """`start` it once; `failure` says why it ended by itself."""

    def __init__(
        self, context: ServerContext, ended: Callable[[], None], redis_patience_s: float = REDIS_PATIENCE_S
    ) -> None:
        self._context = context
        self._instruments = context.instruments
        for kind in messages.WORK_KINDS:  # 0 from the start: Prometheus sees no increase in a series that begins with 1
            self._instruments.given_up.labels(kind)
            for loss in Loss:
                self._instruments.requeued.labels(kind, loss.value)
        self._ended = ended
        self._redis_patience_s = redis_patience_s
        self.failure: FractuneError | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine")
        self._queues = WorkQueues(context.redis, context.secret)
        self._requeuer = Requeuer(context.redis, self._queues, self._give_up, self._note_requeued)
        self._fair_queue = FairQueue()
        self._rounds = Rounds(context, self._queues, self._fair_queue)
        self._recorder = Recorder(context.redis, context.store.log, context.secret, self._rounds.awaited)
        self._jobs = OpenJobs(context, self._rounds)
        self._compile_turns = CompileTurns()
        self._ingest = IngestPhase(context, self._queues, self._compile_turns)
        self._tune = TunePhase(context, self._rounds, self._fair_queue)
        self._validate = ValidatePhase(context, self._rounds)
        self._publish = PublishPhase(context, self._queues, self._rounds, self._compile_turns)
        self._missing_workers = MissingWorkers()
        self._tick_began = time.monotonic()
        self._caught_up = False
        self._swept_at = 0.0
        self._quiet_since = time.monotonic()

    def start(self) -> None:
        self._tick_began = time.monotonic()
        self._thread.start()

    def silent_s(self) -> float | None:
        """Seconds since the current tick began; None if the engine's thread does not run."""
        return time.monotonic() - self._tick_began if self._thread.is_alive() else None

    def stop(self) -> None:
        """End after the current tick; committed results stay."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._publish.stop()

    def _run(self) -> None:
        try:
            self._tick_until_stopped()
        except FractuneError as error:
            self.failure = error
        except Exception as error:  # noqa: BLE001  the process must not serve without its engine
            _log.exception("the engine ended")
            self.failure = FractuneError(f"the engine ended: {type(error).__name__}: {error}; see the server's log")
        finally:
            self._ended()

    def _tick_until_stopped(self) -> None:
        """Tick until stopped. Redis may be away for a while; raises RedisGone if it stays away."""
        gone_since: float | None = None
        while not self._stopping.is_set():
            self._tick_began = time.monotonic()
            try:
                self._tick()
                gone_since = None
            except (redis.ConnectionError, redis.TimeoutError, redis.ResponseError) as error:
                now = time.monotonic()
                gone_since = gone_since or now
                if now - gone_since > self._redis_patience_s:
                    raise RedisGone(_gone(error, self._redis_patience_s)) from error
                _log.warning("Redis is not usable: %s", error)
                self._recorder.repeat()
                self._stopping.wait(min(1.0, self._redis_patience_s / 10))

    def _tick(self) -> None:
        self._context.store.check_lock()  # a server without the lock must not take results: it could not commit them
        # A new job has already waited for a tick.
        batch = self._recorder.poll(0 if self._jobs.update() else POLL_MS)
        for arrival in batch.arrivals:
            with log_fields(job=arrival.event.job):
                self._take(arrival)
        self._jobs.save()
        for lag_s in self._recorder.acknowledge(batch):
            self._instruments.recorder_lag.observe(lag_s)
        if batch.arrivals:
            self._quiet_since = time.monotonic()
        # Jobs advance only after all results that arrived while the server was away.
        if not self._caught_up and not batch.arrivals:
            self._caught_up, self._swept_at = True, 0.0  # sweep at once: the first advance needs the live workers
        if time.monotonic() - self._swept_at >= SWEEP_EVERY_S:
            self._sweep()
        if self._caught_up:
            self._advance_all()
        self._jobs.save()
        self._instruments.engine_tick.observe(time.perf_counter() - batch.read_at)

    # ---- results --------------------------------------------------------------------------------

    def _take(self, arrival: Arrival) -> None:
        """Apply one event, which may arrive twice."""
        if arrival.record is not None:
            for each in self._jobs.all():
                each.take_trial(arrival.record)
            self._tune.take_fast_kernel(arrival.record, self._jobs.all())
        event = arrival.event
        if isinstance(event, messages.RoofMeasured):
            self._tune.take_roof(event, self._jobs.all())
        elif isinstance(event, messages.Measured):
            self._rounds.take_record(event.record, event.round_id)
        elif isinstance(event, messages.Proposed):
            self._tune.take_proposed(event)
        elif isinstance(event, messages.SearchForgotten):
            self._tune.take_forgotten(event)
        elif isinstance(event, messages.WorkFailed) and event.round_id:
            self._take_failed_round(event)
        else:
            self._take_for_job(event)

    def _take_failed_round(self, event: messages.WorkFailed) -> None:
        """Other rounds replace a lost one. If validations keep failing, their jobs end with the error."""
        live = self._rounds.get(event.round_id)
        if live is None:
            return
        if live.is_trial:
            self._tune.take_failed(live, event)
            return
        for job in list(live.subscribers.values()):
            try:
                self._validate.take_failed(job, live, event)
            except FractuneError as error:
                self._jobs.fail(job, error)

    def _take_for_job(self, event: messages.Event) -> None:
        job = self._jobs.get(event.job)
        if job is None:
            self._take_without_job(event)
            return
        try:
            self._take_for(job, event)
        except FractuneError as error:
            self._jobs.fail(job, error)

    def _take_for(self, job: ActiveJob, event: messages.Event) -> None:
        state = job.stored.state
        if isinstance(event, messages.Ingested):
            self._ingest.save(ingest_key(job.stored), event)
        elif isinstance(event, messages.Compiled) and state is JobState.COMPILING:
            self._publish.take_compiled(job, event)
        elif isinstance(event, messages.ModelTimed) and state is JobState.TIMING:
            self._publish.take_timed(job, event)
        elif isinstance(event, messages.WorkFailed) and event.task in ("ingest", "compile", "time_model"):
            raise reported_error(event)

    def _take_without_job(self, event: messages.Event) -> None:
        """Apply an ingest that a call waits for, or release what arrived too late for its job."""
        if isinstance(event, messages.Ingested):
            key = self._context.model_ingests.take(event.job)
            if key is not None:
                self._save_for_call(key, event)
                self._jobs.release([model_blob(key.tenant, key.model)])
        elif isinstance(event, messages.Compiled):
            self._jobs.release([bundle_blob(event.bundle)])
        elif isinstance(event, messages.WorkFailed):
            self._context.model_ingests.fail(event)

    def _save_for_call(self, key: IngestKey, event: messages.Ingested) -> None:
        """Raises StateUnusable: the server cannot continue without its state. Other errors are the caller's."""
        try:
            self._ingest.save(key, event)
        except StateUnusable:
            raise
        except FractuneError as error:
            self._context.model_ingests.refuse(event.job, error)

    # ---- advancing jobs -------------------------------------------------------------------------

    def _advance_all(self) -> None:
        self._rounds.settle()
        self._compile_turns.recount(self._jobs.all())
        for job in sorted(self._jobs.all(), key=lambda job: job.stored.created_at):
            with log_fields(job=job.id):
                try:
                    self._advance(job)
                except FractuneError as error:
                    self._jobs.fail(job, error)
        self._start_rounds()
        self._rounds.drop_unwanted()

    def _advance(self, job: ActiveJob) -> None:
        """Advance the job until it has to wait."""
        before = None
        while before is not job.stored.state and job.stored.state.open:
            before = job.stored.state
            match job.stored.state:
                case JobState.QUEUED | JobState.INGESTING:
                    self._ingest.advance(job, self._jobs.all())
                case JobState.TUNING:
                    if not job.plans:
                        self._tune.begin(job)
                    self._tune.advance(job, self._jobs.all())
                case JobState.VALIDATING:
                    self._validate.advance(job)
                case JobState.COMPILING:
                    self._publish.compile(job)
                case JobState.TIMING:
                    self._publish.time(job)

    def _start_rounds(self) -> None:
        """Start rounds one by one, each for the job that is next in the fair queue at that moment."""
        self._fair_queue.keep(job.claimant for job in self._jobs.all())
        waiting = [job for job in self._jobs.all() if job.stored.state is JobState.TUNING]
        free = self._tune.free_instances()
        while waiting and free:
            waiting.sort(key=lambda job: self._fair_queue.sort_key(job.claimant))
            passed_over = list(itertools.takewhile(lambda job: not self._start_round(job, free), waiting))
            del waiting[: len(passed_over)]

    def _start_round(self, job: ActiveJob, free: list[Instance]) -> bool:
        """False if no round can start for the job now."""
        with log_fields(job=job.id):
            try:
                return self._tune.start_round(job, self._jobs.all(), free)
            except FractuneError as error:
                self._jobs.fail(job, error)
                return False

    # ---- housekeeping ---------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Once a second: find new and dead workers and lost work, and trim the streams."""
        self._swept_at = time.monotonic()
        fleet, jobs = live_workers(self._context.redis, self._context.secret), self._jobs.all()
        self._instruments.workers.take(fleet.workers.values())
        self._compile_turns.note_workers(len(fleet.of_role(COMPILE)))
        if self._caught_up:
            # Before the requeuer: the search of a dead tuner instance goes to another one, not back to its queue.
            self._tune.update_instances(fleet)
            self._find_stalled()
        self._requeuer.sweep(fleet)
        self._missing_workers.note(fleet, jobs)
        self._fair_queue.set_weights(self._context.store.tenants.weights())
        alive = [worker.name for worker in fleet.of_role(TUNE)]
        self._queues.drop_tuners_but(alive)
        self._recorder.expect(tuner_stream(name) for name in alive)
        needed = {live.stored.instance for live in self._rounds.all()}
        trim(self._context.redis, self._recorder, alive, needed)
        check_clock("this server", drop_old_marks(self._context.redis))
        self._context.files.parts.drop_old()
        self._context.store.keep_short()
        # The results of this tick are acknowledged. Others were taken by a server that has lost its lock meanwhile.
        self._recorder.look_back()

    def _find_stalled(self) -> None:
        """Request work again if it is nowhere in the queues: Redis may have come back empty."""
        waiting_jobs, waiting_rounds = [job for job in self._jobs.all() if job.requested], self._rounds.all()
        if not (waiting_jobs or waiting_rounds) or not self._queues.idle():
            self._quiet_since = time.monotonic()
        elif time.monotonic() - self._quiet_since > STALL_S:
            for job in waiting_jobs:
                with log_fields(job=job.id):
                    self._request_again(job)
            for live in waiting_rounds:
                with log_fields(job=live.stored.job):
                    _log.warning("the work of round %s is in no queue; requesting it again", live.id)
                self._rounds.lose(live)

    def _request_again(self, job: ActiveJob) -> None:
        """Redis may lose work. Work that is done each time, and never has a result, is not requested without end."""
        work, times = max(((each, job.attempts[each]) for each in job.requested), key=lambda found: found[1])
        if times >= _MOST_REQUESTS:
            why = f"its work ({work.task}) was done {times} times, and no result came; see the workers' logs"
            self._jobs.fail(job, JobFailed(why))
            return
        _log.warning("the work of job %s is in no queue; requesting it again", job.id)
        job.requested.clear()

    def _note_requeued(self, work: messages.Work, loss: Loss) -> None:
        self._instruments.requeued.labels(work.task, loss.value).inc()

    def _give_up(self, work: messages.Work) -> None:
        self._instruments.given_up.labels(work.task).inc()
        if work.task == "ingest":
            self._context.model_ingests.fail(_ingest_given_up(work))
        live = self._rounds.get(work.round.id) if isinstance(work, messages.RoundWork) else None
        place = None if live is None else RoundPlace(live.device, live.stored.granted)
        write_dead_letters(self._context.redis, self._context.secret, work, place)


def _gone(error: redis.RedisError, patience_s: float) -> str:
    if isinstance(error, redis.OutOfMemoryError):
        problem, remedy = "was out of memory", "give Redis more (maxmemory), and start the server again to continue"
    else:
        problem, remedy = "stayed away", "start Redis and the server again to continue"
    return f"Redis {problem} for {patience_s:g} s ({error}); committed results are kept: {remedy}"


def _ingest_given_up(work: messages.Work) -> messages.WorkFailed:
    message = "every worker that read this model died; see their logs"
    return messages.WorkFailed(job=work.job, task=work.task, error=BadModel.__name__, message=message)
