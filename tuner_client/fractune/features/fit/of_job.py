"""The least CPU limits for a goal, from the times that a job measured: nothing is timed again."""

from fractune.features.fit.fit import resources_text, search
from fractune.features.fit.measuring import FRACTUNE, Measured
from fractune.features.fit.table import fit_table
from fractune.server.job_status import JobStatus
from fractune.text.rendering import Table
from fractune.text.text import parse_rate_per_s, parse_time_s
from fractune_core.analysis.limit_fitting import Goal
from fractune_core.cpu_limits import service_of_time
from fractune_core.errors import BadRequest
from fractune_core.shares import Share


def fit_of_job(job: JobStatus, rate: str, p99: str) -> tuple[Table, str]:
    """The alternatives for requests at a `rate` (`18/s`) within a `p99` (`50ms`), and the block `resources:` of the one
    with the smallest limit. Limits have no burst, and are predicted as by `fractune fit`; by disturbed times they are
    the most that is needed.

    Raises BadRequest for a job without times at whole cores, and with what would do where no limit keeps the goal.
    """
    measured = _measured(job)
    cores = max(each.threads for each in measured.services)
    goal = Goal(parse_rate_per_s("rate", rate), parse_time_s("p99", p99), cores)
    alternatives = search(measured, goal)
    best = alternatives[0]
    at_most = measured.is_disturbed(best.threads)
    return fit_table(job.model_name, measured, goal, alternatives, best), resources_text(best, at_most=at_most)


def _measured(job: JobStatus) -> Measured:
    found = {
        each.granted.units: each
        for each in job.results
        if Share.parse(each.share).mechanism == "cpu" and each.tuned_s > 0
    }
    if not found:
        raise BadRequest(f"{job.name} has no time at whole cores of a CPU; choose another job, or tune at cpu:1")
    services = tuple(service_of_time(units, found[units].tuned_s) for units in sorted(found))
    return Measured(FRACTUNE, "", services, {units: each.others_cores for units, each in found.items()})
