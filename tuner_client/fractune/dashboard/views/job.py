"""One job, from its first trial to its bundle."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from fractune.dashboard.following import MOST_TRIALS, Point, Trial, model_progress, operator_progress
from fractune.dashboard.views.page import (
    ENDED,
    Block,
    Cell,
    Chart,
    Page,
    Series,
    best_text,
    block_of,
    failures_block,
    heat_block,
    heat_data,
    job_data,
    job_path,
    jobs_block,
    model_path,
    moment,
    seconds_block,
)
from fractune.features.compete.logged import of_job, runtimes_table
from fractune.features.tune.table import latency_table
from fractune.features.tune.times_table import time_table
from fractune.server.job_status import JobStatus
from fractune.text.text import left_text, span_text, time_text
from fractune_core.analysis.runtime_times import RuntimeTime
from fractune_core.errors import one_line
from fractune_core.jobs import JobSpec, Priority

_UNAVAILABLE = 503
_MOST_POINTS = 400
"""in a table of a chart's numbers"""
_NOT_KNOWN = (
    "the folder of the model, and options that a server does not keep, such as --run-script, --size, "
    "--lengths, --pad, --compete and --until-beats"
)


def job(
    found: JobStatus,
    trials: Sequence[Trial],
    operator: str,
    parts: Sequence[JobStatus] = (),
    runtimes: Sequence[RuntimeTime] = (),
    *,
    may_cancel: bool,
) -> Page:
    """`operator` is a workload hash or a name, for its progress in place of the model's; empty for the model.
    `parts` are the jobs with which the tuning went on; `runtimes` are times of the model.
    """
    named = next((each for each in found.operators if operator in (each.workload_hash, each.name)), None)
    of = "the model's operators together" if named is None else one_line(named.name)
    progress = {
        share: model_progress(found, trials, share)
        if named is None
        else operator_progress(found, trials, share, named.workload_hash)
        for share in found.tuned_at
    }
    timed = of_job(found, runtimes)
    has_ended = found.state in ENDED
    return Page(
        f"{one_line(found.model_name)}: {found.name}",
        {
            **job_data(found),
            "parts": [each.name for each in parts],
            "runtimes": [each.to_json() for each in timed],
            "progress": {share: [vars(point) for point in points] for share, points in progress.items()},
            "progress_of": None if named is None else named.workload_hash,
            "matrix": heat_data(found) if found.results else None,
        },
        facts=_facts(found),
        charts=_charts(progress, of, timed if named is None else ()),
        blocks=(
            *([jobs_block("Jobs of its parts, which went on", list(parts), "")] if parts else []),
            *(
                [block_of(latency_table(found), "Latency of the whole model"), heat_block(found)]
                if found.results
                else []
            ),
            *([block_of(runtimes_table(timed))] if timed else []),
            *([block_of(time_table(found), "Where the time goes")] if found.tuned_results else []),
            _operators(found),
            _numbers(progress, of, has_all=len(trials) < MOST_TRIALS),
            seconds_block("Phases", "phase", found.progress.phases_s),
            failures_block("Failed measurements", found.progress.failures),
        ),
        actions=(("Cancel this job", f"{job_path(found.name)}/cancel"),) if may_cancel and not has_ended else (),
        links=_links(found),
    )


def command_of(found: JobStatus) -> str:
    """The command that asks for the same again, quoted for a shell, as far as the server knows it."""
    name = one_line(found.model_name) or "MODEL"
    words = ["fractune", "tune", f"./{name}" if name.startswith("-") else name, "--shares", ",".join(found.shares)]
    for given, shape in found.spec.inputs.items():  # a constant is a name with its numbers, and has no shape
        words += ["--input", f"{given}={','.join(map(str, shape))}" if shape else given]
    for option, value in _options(found.spec):
        words += [option, value]
    words += [flag for flag, is_set in (("--exact", found.spec.exact), ("--fresh", found.spec.fresh)) if is_set]
    return shlex.join(map(one_line, words))


def _options(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """The options that differ from their defaults, and the budget in any case."""
    if spec.rerank:
        yield "--rerank", str(spec.rerank)
    elif spec.extra_trials:
        yield "--extra-trials", str(spec.extra_trials)
    else:
        yield "--trials", str(spec.trials)
    for option, value, default in (
        ("--minutes", spec.minutes, 0.0),
        ("--round", spec.round_size, JobSpec.round_size),
        ("--seed", spec.seed, JobSpec.seed),
        ("--only", spec.only, ""),
        ("--target", spec.target, ""),
        ("--namespace", spec.namespace, ""),
        ("--priority", Priority.of(spec.priority), Priority.NORMAL),
    ):
        if value != default:
            yield option, str(value)


def _facts(found: JobStatus) -> list[tuple[str, Cell]]:
    done = found.progress
    left = found.time_left
    left_now = "" if left is None else f", {left_text(left.secs, is_least=left.is_least)}"
    facts = [
        ("state", Cell(found.state.value + left_now)),
        ("model", Cell(one_line(found.model_name), model_path(found.model))),
        ("shares", Cell(", ".join(found.shares))),
        ("trials", Cell(f"{found.trials_text}, {done.trials_per_s:.1f} a second")),
        ("time", Cell(span_text(found.wall_s or done.elapsed_s))),
        ("created", moment(found.created_at)),
        ("again", Cell(command_of(found))),
        ("not in the command", Cell(_NOT_KNOWN)),
    ]
    if found.message:
        facts.append((found.error or "message", Cell(one_line(found.message))))
    facts += [("note", Cell(one_line(note))) for note in found.notes]
    return facts


def _links(found: JobStatus) -> list[tuple[str, str]]:
    log = ("its records", f"/log?job={quote(found.name, safe='')}")
    compare = ("compare with another job", f"/compare?a={quote(found.name, safe='')}")
    bundle = [("download the bundle", f"{job_path(found.name)}/bundle")] if found.bundle else []
    return [*bundle, log, compare]


def _charts(progress: Mapping[str, Sequence[Point]], of: str, runtimes: Sequence[RuntimeTime]) -> list[Chart]:
    """Over trials and over time: a step for each new best, and a level line for the whole model in each runtime."""
    if not any(progress.values()):
        return []
    ways = (("trials at the share", "trials"), ("seconds since the job was created", "after_s"))
    return [_chart(progress, runtimes, f"best so far of {of}", label, name) for label, name in ways]


def _chart(
    progress: Mapping[str, Sequence[Point]], runtimes: Sequence[RuntimeTime], title: str, label: str, name: str
) -> Chart:
    x = sorted({float(getattr(point, name)) for points in progress.values() for point in points})
    series = [
        Series(share, _steps(x, [(float(getattr(point, name)), 1e3 * point.best_s) for point in points]))
        for share, points in progress.items()
    ]
    levels = [Series(f"{each.share}, {each.runtime}", [1e3 * each.loop_s for _ in x]) for each in runtimes]
    return Chart(title, label, "ms", x, [*series, *levels])


def _steps(x: Sequence[float], points: Sequence[tuple[float, float]]) -> list[float | None]:
    """The last value at each place; None before the first."""
    found: list[float | None] = []
    waiting, last = list(reversed(points)), None
    for place in x:
        while waiting and waiting[-1][0] <= place:
            last = waiting.pop()[1]
        found.append(last)
    return found


def _numbers(progress: Mapping[str, Sequence[Point]], of: str, *, has_all: bool) -> Block:
    """The numbers of the charts, the newest first. `has_all`: they are of all trials of the job."""
    columns = (("share", False), ("trials", True), ("after", True), ("best", True))
    rows = [
        (
            point.after_s,
            (Cell(share), Cell(str(point.trials)), Cell(span_text(point.after_s)), Cell(time_text(point.best_s))),
        )
        for share, points in progress.items()
        for point in points
    ]
    newest = sorted(rows, key=lambda row: -row[0])
    notes = [] if len(newest) <= _MOST_POINTS else [f"the newest {_MOST_POINTS} of {len(newest)}"]
    notes += [] if has_all else [f"of the newest {MOST_TRIALS:,} trials; the job's older ones are not read"]
    shown = tuple(row for _, row in newest[:_MOST_POINTS])
    return Block(f"Best so far of {of}", columns, shown, tuple(notes), "not every operator has a time yet")


def _operators(found: JobStatus) -> Block:
    shares = found.tuned_at
    columns = (
        *(("operator", False), ("weight", True), ("trials", True)),
        *((f"best {share}", True) for share in shares),
        *((f"untuned {share}", True) for share in shares),
        ("implementation", False),
    )
    rows = []
    for each in sorted(found.operators, key=lambda one: -_heaviest(one.best_s, one.weight)):
        ways = dict.fromkeys(each.implementations.get(share, "") or "direct" for share in each.implementations)
        rows.append(
            (
                Cell(one_line(each.name), f"{job_path(found.name)}?operator={quote(each.workload_hash, safe='')}"),
                Cell(str(each.weight)),
                Cell(str(each.trials) if each.selected else "left out"),
                *(Cell(best_text(each.best_s, share)) for share in shares),
                *(Cell(best_text(each.untuned_s, share)) for share in shares),
                Cell(", ".join(ways) or "-"),
            )
        )
    return Block("Operators", columns, tuple(rows), empty="the model is not split yet")


def _heaviest(best_s: Mapping[str, float], weight: int) -> float:
    return weight * max(best_s.values(), default=0.0)


def failed_page(title: str, message: str, status: int, name: str) -> Page:
    """An error as a page. It is rendered again when the server is back."""
    data: dict[str, Any] = {"error": name, "message": message}
    return Page(title, data, facts=((name, Cell(message)),), is_live=status == _UNAVAILABLE, status=status)
