"""What a finished job came to: as JSON, as tables, and as the table tuned-at x run-at."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from fractune.reports.cross_table import model_table, sentences
from fractune.reports.tables import rich_table
from fractune.reports.text import counts_text, ratio_text, span_text, table_console, time_text
from fractune_core.convert import granted_from_proto, state_from_proto
from fractune_core.errors import JobCancelled, JobFailed, error_from_name
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.shares import units_text

DOUBTFUL_DIFFERENCE = 1e-3
"""outputs that differ by more than this, relative to the largest one, are pointed out"""


def check_ended_well(job: pb.Job) -> None:
    """Raises the error that ended the job, JobCancelled when somebody cancelled it."""
    if job.state == pb.JOB_STATE_FAILED:
        raise error_from_name(job.error, job.message) if job.error else JobFailed(f"{job.name} failed: {job.message}")
    if job.state == pb.JOB_STATE_CANCELLED:
        raise JobCancelled(f"{job.name} was cancelled{f': {job.message}' if job.message else ''}")
    if job.state != pb.JOB_STATE_DONE:
        raise JobFailed(f"{job.name} has not ended: it is {state_from_proto(job.state).value}")


def result_json(job: pb.Job, bundle: str) -> dict[str, Any]:
    """The `result` event: times in seconds, `trials` new in this job, `bundle` a path or a resource name."""
    return {
        "event": "result",
        "job": job.name,
        "wall_s": job.result.wall_s,
        "trials": {share: job.progress.trials_done.get(share, 0) for share in job.spec.shares},
        "trials_per_s": job.progress.trials_per_s,
        "failures": dict(job.progress.failures),
        "shares": [
            {
                "share": each.share,
                "granted": granted_from_proto(each.granted).to_json(),
                "untuned_s": each.untuned_s,
                "tuned_s": each.tuned_s,
            }
            for each in job.result.shares
        ],
        "operators": [operator_json(each) for each in job.operators if each.selected],
        "bundle": bundle,
    }


def print_result(job: pb.Job, bundle: str) -> None:
    console = table_console()
    console.print(_latency_table(job))
    table = model_table(job)
    console.print(rich_table(table))
    for sentence in sentences(table):
        print(sentence)
    for warning in doubts(job):
        print(warning)
    done = ", ".join(f"{job.progress.trials_done.get(share, 0)} at {share}" for share in job.spec.shares)
    print(f"new trials: {done}; failed: {counts_text(dict(job.progress.failures))}")
    print(f"took {span_text(job.result.wall_s)}, {job.progress.trials_per_s:.1f} trials/s while searching")
    print(f"bundle: {bundle}")


def doubts(job: pb.Job) -> list[str]:
    """A line for each share whose tuned model's outputs are far from the untuned model's."""
    return [
        f"note: at {each.share} the outputs differ from the untuned model's by {each.max_error[each.share]:.1e} of the "
        "largest, on random inputs; every operator was right on its own, so the model may be ill-conditioned on "
        "such inputs: compare on yours by 'fractune run BUNDLE --inputs FILE.npz'"
        for each in job.result.shares
        if each.max_error.get(each.share, 0.0) > DOUBTFUL_DIFFERENCE
    ]


def _latency_table(job: pb.Job) -> Table:
    table = Table(title=f"{job.model_display_name}: latency, measured alone", title_justify="left")
    for column in ("share", "granted", "untuned", "tuned", "speed-up", "largest output difference"):
        table.add_column(column, justify="left" if column in {"share", "granted"} else "right")
    for each in job.result.shares:
        granted = f"{each.granted.units} of {units_text(each.granted.units_total, each.granted.unit)}"
        speed_up = ratio_text(each.untuned_s, each.tuned_s)
        error = each.max_error.get(each.share)
        difference = "-" if error is None else f"{error:.1e}"
        untuned, tuned = time_text(each.untuned_s), time_text(each.tuned_s)
        table.add_row(each.share, granted, untuned, tuned, speed_up, difference)
    return table


def operator_json(operator: pb.Operator) -> dict[str, Any]:
    return {
        "name": operator.display_name,
        "weight": operator.weight,
        "workload_hash": operator.workload_hash,
        "trials": operator.trials,
        "best_s": dict(operator.best_s),
    }
