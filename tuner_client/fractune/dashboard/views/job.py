"""One job, from its first trial to its bundle."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any
from urllib.parse import quote

from fractune.dashboard.following import Trial, model_progress
from fractune.dashboard.views import page
from fractune.dashboard.views.page import ENDED, Block, Cell, Page, Tile, block_of, failures_block, job_path, model_path
from fractune.dashboard.views.parts import operator_blocks, points_block, progress_charts, time_bars
from fractune.features.compete.results import runtimes_table, times_of_job
from fractune.features.tune.answer import answer_of, left_to_gain, runtime_name, search_text
from fractune.features.tune.table import latency_table
from fractune.server.job_status import JobStatus, ShareResult
from fractune.text.text import disturbed_notes, estimate_text, left_text, marked_time, ratio_text, span_text, time_text
from fractune_core.analysis.model_times import RuntimeTime
from fractune_core.errors import one_line
from fractune_core.jobs import JobSpec, JobState, Priority, SearchOptions

_UNAVAILABLE = 503
_MOST_SPEEDS = 6
"""columns of latencies: with more, the untuned one is folded"""
_NOT_KNOWN = (
    "the folder of the model, and options that a server does not keep, such as --run-script, --size, "
    "--lengths, --pad, --compete and --until-beats"
)
_BUDGETS = ("rerank", "extra_trials", "trials")
_OPTIONS = SearchOptions.__optional_keys__ - {*_BUDGETS, "check_inputs"}
"""fields of a job's spec that its command repeats; the file of `check_inputs` has no path here"""


def job(
    found: JobStatus,
    trials: Sequence[Trial],
    only: Mapping[str, str],
    parts: Sequence[JobStatus] = (),
    runtimes: Sequence[RuntimeTime] = (),
    missing: Sequence[str] = (),
    before: JobStatus | None = None,
    *,
    may_cancel: bool,
) -> Page:
    """`only` filters the operators (`FILTERS` of the parts). `parts` are the jobs with which the tuning went on;
    `runtimes` are times of the model. `missing` says why the job waits. `before` is the done job before it, of the same
    model and inputs.
    """
    of = "the model's operators together"
    progress = {share: model_progress(found, trials, share) for share in found.tuned_at}
    timed = times_of_job(found, runtimes)
    has_ended = found.state in ENDED
    return Page(
        f"{one_line(found.model_name)}: {found.name}",
        {
            **page.job_data(found),
            "parts": [each.name for each in parts],
            "runtimes": [each.to_json() for each in timed],
            "progress": {share: [vars(point) for point in points] for share, points in progress.items()},
            "matrix": page.heat_data(found) if found.results else None,
            "answer": answer_text(found, timed) or None,
        },
        lead=answer_text(found, timed),
        warnings=[*missing, *_messages(found)],
        tiles=_tiles(found, timed, waits=bool(missing)),
        first=[each for each in (_speeds(found, timed, before), time_bars(found)) if each is not None],
        charts=progress_charts(progress, of, {share: _untuned_s(found, share) for share in progress}),
        blocks=(
            *([page.jobs_block("Jobs of its parts, which went on", list(parts), "")] if parts else []),
            *([page.heat_block(found)] if found.results else []),
            *operator_blocks(found, only),
            failures_block("Failed measurements", found.progress.failures),
            *([block_of(latency_table(found), "Latency of the whole model", is_folded=True)] if found.results else []),
            *([block_of(runtimes_table(timed), is_folded=True)] if timed else []),
            points_block(progress, of, len(trials)),
            page.seconds_block("Phases", "phase", found.progress.phases_s),
            Block("The job", (("fact", False), ("value", False)), _facts(found), is_folded=True),
        ),
        actions=(("Cancel this job", f"{job_path(found.name)}/cancel"),) if may_cancel and not has_ended else (),
        links=_links(found),
    )


def job_before(found: JobStatus, jobs: Sequence[JobStatus]) -> JobStatus | None:
    """Of the `jobs`, which are newest first, the last that was done before, of the same model and inputs."""
    alike = (each for each in jobs if each.model == found.model and each.spec.inputs == found.spec.inputs)
    return next((each for each in alike if each.created_at < found.created_at and each.results), None)


def answer_text(found: JobStatus, timed: Sequence[RuntimeTime]) -> str:
    """What `fractune tune` says at the end: by times of this job's bundle alone, not of an older one."""
    if not found.results:
        return ""
    return answer_of(found, [each for each in timed if each.measured_at >= found.created_at]).line


def _tiles(found: JobStatus, timed: Sequence[RuntimeTime], *, waits: bool) -> list[Tile]:
    """State, the fastest share, the share that costs least, and what is left to gain."""
    done, left = found.progress, None if waits else found.time_left
    part = 100 * min(1.0, done.candidates_had / done.trials_planned) if done.trials_planned else None
    ended = found.state in ENDED
    spent = f"{'took' if ended else 'for'} {span_text(found.wall_s or done.elapsed_s)}"
    notes = ["stands still, see above"] if waits else []
    notes += [spent] if left is None else [left_text(left.secs, is_least=left.is_least), spent]
    state = Tile(
        "state",
        Cell(found.state.value),
        (*notes, f"{found.trials_text}, {done.trials_per_s:.1f} a second"),
        None if ended else part,
        is_bad=waits or found.state is JobState.FAILED,
    )
    return [state, *_best_tiles(found, timed), _gain_tile(found)]


def _best_tiles(found: JobStatus, timed: Sequence[RuntimeTime]) -> list[Tile]:
    known = [each for each in found.results if each.tuned_s > 0]
    if not known:
        sums = found.operators_s
        notes = tuple(f"{time_text(secs)} at {share}" for share, secs in sums.items())
        return [Tile("all operators so far", Cell(notes[0] if notes else "not yet"), notes[1:])]
    fastest = min(known, key=lambda each: each.tuned_s)
    cheapest = min(known, key=_cost_s)
    unit = cheapest.granted.unit
    doubt = ("disturbed: it may be another share",) if found.is_disturbed else ()
    cost = f"{fastest.share}: {time_text(_cost_s(fastest))}" if fastest is not cheapest else "the fastest too"
    return [
        Tile(
            "fastest",
            Cell(f"{_one_text(fastest)} at {fastest.share}"),
            (*doubt, *_over(fastest, timed, found.created_at)),
        ),
        Tile(f"least {unit} time", Cell(f"{_cost_text(cheapest)} at {cheapest.share}"), (*doubt, cost)),
    ]


def _one_text(result: ShareResult) -> str:
    return marked_time(result.tuned_s, at_most=result.is_disturbed)


def _cost_text(result: ShareResult) -> str:
    return marked_time(_cost_s(result), at_most=result.is_disturbed)


def _cost_s(result: ShareResult) -> float:
    """Seconds of its units that one inference takes."""
    granted = result.granted
    return result.tuned_s * (granted.limit.quota_m / 1000 if granted.limit else granted.units)


def _over(result: ShareResult, timed: Sequence[RuntimeTime], created_at: float) -> list[str]:
    """Runtimes that were timed beside the bundle of this job, and untuned."""
    beside = [
        f"{each.loop_ratio.median:.2f} of {runtime_name(each.runtime)}'s time"
        for each in timed
        if each.share == result.share and each.measured_at >= created_at
    ]
    return [*beside, f"{ratio_text(result.untuned_s, result.tuned_s)} as fast as untuned"]


def _gain_tile(found: JobStatus) -> Tile:
    left, said = left_to_gain(found), search_text(found)
    value = "not known" if left is None else f"{100 * max(left, 0.0):.0f} % at most"
    return Tile(
        "left to gain in operators",
        Cell(value),
        (said,) if said else ("too few trials of this job to say",) if left is None else (),
    )


def _speeds(found: JobStatus, timed: Sequence[RuntimeTime], before: JobStatus | None) -> Block | None:
    """One inference at each share, beside everything else that was timed there; None before there are results."""
    if not found.results:
        return None
    runtimes = list(dict.fromkeys(each.runtime for each in timed))
    unit = found.results[0].granted.unit
    columns = (
        *(("share", False), ("one inference", True), (f"{unit} time", True), ("untuned", True)),
        *([("job before", True)] if before else []),
        *(column for name in runtimes for column in ((runtime_name(name), True), ("ours over it", False))),
    )
    known = [each for each in found.results if each.tuned_s > 0]
    longest, least_s = (f((each.tuned_s for each in known), default=0.0) for f in (max, min))
    least_cost_s = min(map(_cost_s, known), default=0.0)
    rows = tuple(
        (
            Cell(each.share),
            Cell(
                _one_text(each),
                bar=100 * each.tuned_s / longest if longest else None,
                level=_level(found, each.tuned_s, least_s),
            ),
            Cell(_cost_text(each), level=_level(found, _cost_s(each), least_cost_s)),
            Cell(marked_time(each.untuned_s, at_most=each.is_untuned_at_most)),
            *([_at_share(before, each.share)] if before else []),
            *(cell for name in runtimes for cell in _beside(found, each, name, timed)),
        )
        for each in found.results
    )
    notes = [f"{unit} time: {unit}s of the share x time, what one inference costs"]
    notes += [] if found.is_disturbed else ["blue: the least"]
    if any(each.measured_at < found.created_at for each in timed):
        notes.append("[earlier]: timed beside the bundle of an earlier job")
    aside = frozenset({3} if len(columns) > _MOST_SPEEDS else ())
    return Block("How fast", columns, rows, (*notes, *disturbed_notes(found.results)), aside=aside)


def _level(found: JobStatus, secs: float, least_s: float) -> int:
    """Disturbed times choose nothing."""
    return 0 if secs == least_s and not found.is_disturbed else -1


def _at_share(job: JobStatus, share: str) -> Cell:
    found = next((each for each in job.results if each.share == share), None)
    return (
        Cell("-") if found is None else Cell(marked_time(found.tuned_s, at_most=found.is_disturbed), job_path(job.name))
    )


def _messages(found: JobStatus) -> list[str]:
    if not found.message:
        return []
    return [one_line(f"{found.error}: {found.message}" if found.error else f"{found.state.value}: {found.message}")]


def _beside(found: JobStatus, result: ShareResult, runtime: str, timed: Sequence[RuntimeTime]) -> tuple[Cell, Cell]:
    each = next((one for one in timed if (one.share, one.runtime) == (result.share, runtime)), None)
    if each is None:
        return Cell("-"), Cell("-")
    when = " [earlier]" if each.measured_at < found.created_at else ""
    return Cell(time_text(each.loop_s)), Cell(estimate_text(each.loop_ratio) + when)


def command_of(found: JobStatus) -> str:
    """The command that asks for the same again, quoted for a shell, as far as the server knows it."""
    name = one_line(found.model_name) or "MODEL"
    words = ["fractune", "tune", f"./{name}" if name.startswith("-") else name, "--shares", ",".join(found.shares)]
    for given, shape in found.spec.inputs.items():  # a constant is a name with its numbers, and has no shape
        words += ["--input", f"{given}={','.join(map(str, shape))}" if shape else given]
    words += _options(found.spec)
    return shlex.join(map(one_line, words))


def _options(spec: JobSpec) -> Iterator[str]:
    """The budget, then the options that differ from their defaults."""
    budget = next((name for name in _BUDGETS if getattr(spec, name)), "trials")
    yield from (_option(budget), str(getattr(spec, budget)))
    for each in fields(JobSpec):
        value = getattr(spec, each.name)
        if each.name in _OPTIONS and value != each.default:
            yield _option(each.name)
            if value is not True:
                yield str(Priority.of(value) if each.name == "priority" else value)


def _option(name: str) -> str:
    return "--round" if name == "round_size" else f"--{name.replace('_', '-')}"


def _facts(found: JobStatus) -> tuple[tuple[Cell, Cell], ...]:
    facts = [
        ("state", Cell(found.state.value)),
        ("model", Cell(one_line(found.model_name), model_path(found.model))),
        ("shares", Cell(", ".join(found.shares))),
        ("trials", Cell(found.trials_text)),
        ("created", page.moment(found.created_at)),
        ("again", Cell(command_of(found))),
        ("not in the command", Cell(_NOT_KNOWN)),
    ]
    facts += [("note", Cell(one_line(note))) for note in found.notes]
    return tuple((Cell(name), value) for name, value in facts)


def _links(found: JobStatus) -> list[tuple[str, str]]:
    log = ("its records", f"/log?job={quote(found.name, safe='')}")
    compare = ("compare with another job", f"/compare?a={quote(found.name, safe='')}")
    bundle = [("download the bundle", f"{job_path(found.name)}/bundle")] if found.bundle else []
    return [*bundle, log, compare, ("its model", model_path(found.model))]


def _untuned_s(found: JobStatus, share: str) -> float | None:
    """Of all operators together; None where one is not known."""
    counted = [each for each in found.operators if each.selected and each.weight]
    if not counted or any(share not in each.untuned_s for each in counted):
        return None
    return sum(each.weight * each.untuned_s[share] for each in counted)


def failed_page(message: str, status: int, name: str) -> Page:
    """An error as a page. It is rendered again when the server is back."""
    data: dict[str, Any] = {"error": name, "message": message}
    return Page(
        "This did not work", data, facts=((name, Cell(message)),), is_live=status == _UNAVAILABLE, status=status
    )
