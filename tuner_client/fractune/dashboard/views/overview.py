"""Jobs, workers and shares at a glance, and how the fleet measures at its shares."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from urllib.parse import quote

from fractune.dashboard.following import RATES_S, LostWorker, Snapshot
from fractune.dashboard.views import page
from fractune.dashboard.views.page import ENDED, Block, Cell, Page, Tile, columns_of, job_path, jobs_block, moment
from fractune.server.job_status import Fleet, JobStatus, OfferedShare, WaitingWork, Worker
from fractune.text.text import ago_text, counts_text, left_text, span_text, time_text
from fractune_core.analysis.noise import DEFAULT_MARGIN, NoiseAdvice
from fractune_core.errors import one_line
from fractune_core.jobs import JobState
from fractune_core.shares import units_text

ELSEWHERE = "it lies in the state folder of each machine; 'fractune dashboard --state' shows that of this one"
"""why the pages of a server have no advice"""


Advice = Mapping[str, NoiseAdvice | None]
"""of `fractune noise`, by share; None where it has not measured"""


def shares(seen: Snapshot, advice: Advice | str) -> Page:
    """A text in place of the `advice` says why it is not known."""
    columns = columns_of("share, granted, proved, device, #cores or SMs, #cache, #measurers")
    return Page(
        "Shares",
        {
            "server": seen.address,
            "lost": seen.lost or None,
            "shares": [asdict(each) for each in seen.shares],
            "advice": None
            if isinstance(advice, str)
            else {share: asdict(each) for share, each in advice.items() if each is not None},
        },
        blocks=(
            Block("Offered now", columns, tuple(map(_row, seen.shares)), empty="no measurer is there; start a worker"),
            _advice_block(advice),
        ),
    )


def _advice_block(advice: Advice | str) -> Block:
    columns = columns_of(
        "share, #measurers at a time, #longer timing within, #rank agreement (tau), #loss of the winner, "
        "builds beside, measured"
    )
    if isinstance(advice, str):
        return Block("Advice of fractune noise", columns, (), empty=advice)
    rows = tuple(_advice_row(share, each) for share, each in advice.items())
    return Block("Advice of fractune noise", columns, rows, empty="no share is offered")


def _advice_row(share: str, advice: NoiseAdvice | None) -> tuple[Cell, ...]:
    if advice is None:
        default = f"{DEFAULT_MARGIN:g}x of the fastest"
        return (Cell(share), Cell("1"), Cell(default), Cell("-"), Cell("-"), Cell("-"), Cell("not yet: the default"))
    return (
        Cell(share),
        Cell(str(advice.measurers)),
        Cell(f"{advice.margin:g}x of the fastest"),
        Cell("-" if advice.tau is None else f"{advice.tau:.2f}"),
        Cell("-" if advice.regret is None else f"{advice.regret * 100:.1f} %"),
        Cell("yes" if advice.builds_beside else "no"),
        moment(advice.measured_at),
    )


def _row(each: OfferedShare) -> tuple[Cell, ...]:
    granted, device = each.granted, each.device
    return (
        Cell(granted.share),
        Cell(f"{granted.units} of {units_text(granted.units_total, granted.unit)}"),
        Cell("reserved" if granted.reserved else "confined, and proved from inside"),
        Cell(device.label or device.isa),
        Cell(str(device.units)),
        Cell(f"{device.l2_kib} KiB"),
        Cell(str(each.measurers)),
    )


MOST_CARDS = 6
"""running jobs with a card; the others stand in the table"""
_NONE_RUNS = "no job is running; 'fractune tune' starts one"
_LATE_S = 60.0
"""work that waits for longer than this waits for a worker that is stuck, or too slow"""
_NEEDED = {
    JobState.QUEUED: ("compile",),
    JobState.INGESTING: ("compile",),
    JobState.TUNING: ("tune", "build", "measure"),
    JobState.VALIDATING: ("build", "measure"),
    JobState.COMPILING: ("compile",),
    JobState.TIMING: ("measure",),
}
"""roles that do the work of each state"""


def running_jobs(seen: Snapshot) -> list[JobStatus]:
    return [job for job in seen.jobs if job.state not in (*ENDED, JobState.QUEUED)]


def overview(seen: Snapshot, cards: Sequence[JobStatus] = ()) -> Page:
    """`cards` are the first running jobs, with their operators."""
    running = running_jobs(seen)
    waiting = [job for job in seen.jobs if job.state is JobState.QUEUED]
    ended = [job for job in seen.jobs if job.state in ENDED]
    failed = [job for job in ended if job.state is JobState.FAILED]
    failures: Counter[str] = Counter()
    for job in running:
        failures.update(job.progress.failures)
    workers = seen.fleet.workers
    return Page(
        "Overview",
        {
            "server": seen.address,
            "taken_at": seen.taken_at,
            "lost": seen.lost or None,
            "trials_per_s": seen.trials_per_s,
            "jobs": [page.job_data(job) for job in seen.jobs],
            "workers": [asdict(worker) for worker in workers],
            "lost_workers": [{**asdict(each.worker), "seen_at": each.seen_at} for each in seen.lost_workers],
            "waiting": [asdict(each) for each in seen.fleet.waiting],
        },
        warnings=list(dict.fromkeys(text for job in [*running, *waiting] for text in missing_workers(job, seen))),
        tiles=[
            Tile("jobs", Cell(f"{len(running)} running"), (f"{len(waiting)} waiting, {len(ended)} ended",)),
            Tile("failed jobs", Cell(str(len(failed))), _causes(failed, failures), is_bad=bool(failed)),
            Tile(
                "trials a second",
                Cell(f"{seen.trials_per_s:.1f}"),
                (f"at most {max((rate for _, rate in seen.rates), default=0.0):.1f} in the last 10 minutes",),
                line=_curve(seen),
            ),
            *_worker_tiles(seen),
        ],
        cards=[_card(each, seen) for each in cards],
        facts=(("server", Cell(seen.address)),),
        blocks=(
            *([jobs_block("Running", running, _NONE_RUNS)] if len(running) > len(cards) or not running else []),
            *([jobs_block("Waiting", waiting, "")] if waiting else []),
            *([_failed(failed)] if failed else []),
            _waiting(seen.fleet.waiting, seen.taken_at),
            _workers(seen),
            jobs_block("Ended", ended, "no job has ended yet", seen.jobs),
            page.failures_block("Failed measurements of running jobs", failures),
        ),
    )


def found(seen: Snapshot, text: str) -> Page:
    """The newest jobs and the workers with the text in what is known of them."""
    wanted = text.strip().casefold()
    jobs = [job for job in seen.jobs if wanted and wanted in _words(job)]
    workers = [
        each for each in seen.fleet.workers if wanted and wanted in f"{each.name} {each.role} {each.host}".casefold()
    ]
    return Page(
        "Found" if wanted else "Find",
        {"q": text, "jobs": [job.name for job in jobs], "workers": [each.name for each in workers]},
        form=[page.Field("q", text, "part of a job, a model, a share, a message or a worker")],
        links=[("records of this operator in the log", f"/log?operator={quote(text.strip(), safe='')}")]
        if wanted
        else (),
        blocks=(
            jobs_block("Jobs", jobs, "no job has this text", seen.jobs),
            _workers(Snapshot("", fleet=Fleet(tuple(workers))), "no worker has this text"),
        ),
    )


def _words(job: JobStatus) -> str:
    return " ".join((job.name, job.model, job.model_name, job.state, job.error, job.message, *job.shares)).casefold()


def missing_workers(job: JobStatus, seen: Snapshot) -> list[str]:
    """What an open job waits for: the live workers that it lacks, with those that were lost, else its own notes."""
    if job.state in ENDED:
        return []
    notes = [f"{job.name} is {one_line(note)}" for note in job.notes if note.startswith("waiting")]
    needed = (
        (role, share) for role in _NEEDED.get(job.state, ()) for share in (job.tuned_at if role == "measure" else ("",))
    )
    whys = (_why_waiting(role, share, seen) for role, share in needed)
    return [f"{job.name} waits: {why}" for why in whys if why] or notes


def _why_waiting(role: str, share: str, seen: Snapshot) -> str:
    """Why work of the role, at the share of a measurer, does not go on; empty if it does, as far as it is known."""
    live = [each for each in seen.fleet.workers if each.role == role and _at(each, share)]
    lost = [each for each in seen.lost_workers if each.worker.role == role and _at(each.worker, share)]
    waiting = [each for each in seen.fleet.waiting if (each.role, each.share) == (role, share)]
    work = f"{role} at {share}" if share else role
    if lost and not live:
        return f"{_lost_text(lost[0], seen.taken_at)}, and no other worker does {work}"
    if waiting and not live:
        return f"no worker does {work}"
    late = [each.oldest_at for each in waiting if each.oldest_at is not None and _is_late(each, seen.taken_at)]
    if late:
        since = span_text(seen.taken_at - late[0])
        return f"its work for {work} is in the queue for {since}: the workers are slow or stuck"
    return ""


def _at(worker: Worker, share: str) -> bool:
    return not share or (worker.granted is not None and worker.granted.share == share)


def _lost_text(lost: LostWorker, now: float) -> str:
    worker = lost.worker
    at = f" at {worker.granted.share}" if worker.granted else ""
    busy = ", busy" if worker.state == "busy" else ""
    name = one_line(worker.name.removeprefix("workers/"))
    return f"{name}, which does {one_line(worker.role)}{at}, was last seen {ago_text(lost.seen_at, now)}{busy}"


def _causes(failed: Sequence[JobStatus], failures: Counter[str]) -> tuple[str, ...]:
    newest = [f"{one_line(each.model_name)[:40]}: {one_line(each.message)[:90]}" for each in failed[:1]]
    counts = f"measurements of running jobs: {counts_text(dict(failures))}"
    return (*newest, counts) if failures else tuple(newest)


def _curve(seen: Snapshot) -> tuple[tuple[float, float], ...]:
    most = max((rate for _, rate in seen.rates), default=0.0) or 1.0
    begin = seen.taken_at - RATES_S
    return tuple((100 * (at - begin) / RATES_S, 95 - 90 * rate / most) for at, rate in seen.rates)


def _worker_tiles(seen: Snapshot) -> Iterator[Tile]:
    """What the workers of each role do, and what waits for them."""
    workers = seen.fleet.workers
    counts = Counter((each.role, each.granted.share if each.granted else "") for each in workers)
    busy = Counter((each.role, each.granted.share if each.granted else "") for each in workers if each.state == "busy")
    waiting = {(each.role, each.share): each for each in seen.fleet.waiting}
    for lost in seen.lost_workers:
        counts[lost.worker.role, lost.worker.granted.share if lost.worker.granted else ""] += 0
    keys = sorted({*counts, *waiting})
    notes = [
        _work_text(role, share, counts[role, share], busy[role, share], waiting.get((role, share)), seen.taken_at)
        for role, share in keys
    ]
    late = any(_is_late(each, seen.taken_at) for each in waiting.values())
    count = f"{len(workers)} at work" + (f", {len(seen.lost_workers)} lost" if seen.lost_workers else "")
    yield Tile("workers", Cell(count), tuple(notes), is_bad=late or not all(counts[key] for key in keys))


def _is_late(work: WaitingWork, now: float) -> bool:
    return work.oldest_at is not None and now - work.oldest_at > _LATE_S


def _work_text(role: str, share: str, count: int, busy: int, work: WaitingWork | None, now: float) -> str:
    parts = [f"{busy} of {count} busy" if count else "none"]
    if work is not None:
        since = "" if work.oldest_at is None else f" for {time_text(max(0.0, now - work.oldest_at))}"
        parts.append(f"{work.pieces} waiting{since}")
    return f"{one_line(role)}{f' {one_line(share)}' if share else ''}: {', '.join(parts)}"


def _card(job: JobStatus, seen: Snapshot) -> Tile:
    """A running job: what it has, how long it takes, and what it waits for."""
    done, left = job.progress, job.time_left
    part = 100 * min(1.0, done.candidates_had / done.trials_planned) if done.trials_planned else 0.0
    best = [f"{time_text(secs)} at {share}" for share, secs in job.operators_s.items()]
    waits = bool(missing_workers(job, seen))
    remaining = "" if left is None else left_text(left.secs, is_least=left.is_least)
    return Tile(
        f"{job.state.value}, {', '.join(job.shares)}",
        Cell(one_line(job.model_name)[:60] or job.name, job_path(job.name)),
        (
            *(["it waits, see above"] if waits else [remaining or f"for {span_text(done.elapsed_s)}"]),
            f"{done.candidates_had} of {done.trials_planned} trials",
            *([f"operators: {', '.join(best)}"] if best else []),
            *([page.inputs_text(job)] if page.inputs_text(job) else []),
        ),
        progress=part,
        is_bad=waits,
    )


def _failed(failed: Sequence[JobStatus]) -> Block:
    """The whole message of each."""
    columns = columns_of("job, model, created, message")
    rows = tuple(
        (
            Cell(job.name.removeprefix("jobs/"), job_path(job.name)),
            Cell(one_line(job.model_name)),
            page.moment(job.created_at),
            Cell(f"{job.error}: {one_line(job.message)}" if job.error else one_line(job.message)),
        )
        for job in failed
    )
    return Block("Failed", columns, rows)


def _waiting(waiting: tuple[WaitingWork, ...], now: float) -> Block:
    columns = columns_of("for, share, #pieces, #oldest waits for")
    rows = tuple(
        (
            Cell(each.role),
            Cell(each.share or "-"),
            Cell(str(each.pieces)),
            Cell("-" if each.oldest_at is None else time_text(max(0.0, now - each.oldest_at))),
        )
        for each in waiting
    )
    return Block("Work in queues", columns, rows, (), "no work waits for a worker", is_folded=not rows)


def _workers(seen: Snapshot, empty: str = "no worker is there; start one") -> Block:
    """Live ones, and those that were lost in the last minutes first."""
    columns = columns_of("worker, role, now, share, granted, since, host, #pid, device")
    lost = [
        _worker_row(each.worker, f"lost; last seen {each.worker.state}".strip(), each.seen_at)
        for each in seen.lost_workers
    ]
    live = [_worker_row(each, each.state or "-", each.started_at) for each in seen.fleet.workers]
    return Block("Workers", columns, (*lost, *live), (), empty, frozenset({6, 7, 8}))


def _worker_row(worker: Worker, now: str, since: float) -> tuple[Cell, ...]:
    granted, device = worker.granted, worker.device
    share = ("-", "-")
    if granted is not None:
        share = granted.share, f"{granted.units} of {units_text(granted.units_total, granted.unit)}"
    return (
        Cell(worker.name.removeprefix("workers/")),
        Cell(worker.role),
        Cell(now),
        *map(Cell, share),
        page.moment(since),
        Cell(worker.host),
        Cell(str(worker.pid)),
        Cell("-" if device is None else device.isa),
    )
