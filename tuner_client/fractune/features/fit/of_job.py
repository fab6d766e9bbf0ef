"""The least CPU limits for a goal, from the times that a job measured: nothing is timed again."""

from __future__ import annotations

from fractune.features.fit.fit import resources_text
from fractune.features.fit.measuring import FRACTUNE, Measured
from fractune.features.fit.table import fit_table
from fractune.server.job_status import JobStatus
from fractune.text.rendering import Table
from fractune.text.text import parse_rate_per_s, parse_time_s
from fractune_core.analysis.cpu_limits.fitting import Goal, fit
from fractune_core.analysis.cpu_limits.limits import Service, service_of_time
from fractune_core.errors import BadRequest
from fractune_core.shares import Share


def fit_of_job(job: JobStatus, rate: str, p99: str) -> tuple[Table, str]:
    """The alternatives for requests at a `rate` (`18/s`) within a `p99` (`50ms`), and the block `resources:` of the one
    with the smallest limit. Limits have no burst, and are predicted as by `fractune fit`.

    Raises BadRequest for a job without times at whole cores, and with what would do where no limit keeps the goal.
    """
    services = _services(job)
    cores = max(each.threads for each in services)
    goal = Goal(parse_rate_per_s("rate", rate), parse_time_s("p99", p99), cores)
    alternatives = tuple(fit(services, goal))
    measured = Measured(FRACTUNE, "", services)
    return fit_table(job.model_name, measured, goal, alternatives, alternatives[0]), resources_text(alternatives[0])


def _services(job: JobStatus) -> tuple[Service, ...]:
    found = {
        each.granted.units: service_of_time(each.granted.units, each.tuned_s)
        for each in job.results
        if Share.parse(each.share).mechanism == "cpu" and each.tuned_s > 0
    }
    if not found:
        raise BadRequest(f"{job.name} has no time at whole cores of a CPU; choose another job, or tune at cpu:1")
    return tuple(found[units] for units in sorted(found))
