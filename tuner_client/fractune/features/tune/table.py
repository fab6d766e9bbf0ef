"""The result of a finished job, as JSON and as tables."""

from typing import Any

from fractune.features.matrix.cross_table import HEADING, at_load_json, latency_cell, load_notes
from fractune.features.tune.times_table import operator_time, operators_s
from fractune.server.job_status import JobStatus, OperatorStatus, ShareResult
from fractune.text.rendering import Column, Table
from fractune.text.text import launch_notes, marked_time, moment_text, ratio_text, untuned_notes
from fractune_core.analysis.roofline import Roof, is_launch_bound
from fractune_core.names import changes_layout
from fractune_core.shares import Share, units_text

SHORT_S = 100e-6
"""a faster model's latency is explained: the call around it takes about as long"""
DOUBTFUL_DIFFERENCE = 1e-3
"""outputs that differ by more than this, relative to the largest one, are pointed out"""


def result_json(job: JobStatus, bundle: str) -> dict[str, Any]:
    """The `result` event: times in seconds, `trials` new in this job, `bundle` a path or a resource name."""
    return {
        "event": "result",
        "job": job.name,
        "wall_s": job.wall_s,
        "trials": {share: job.progress.trials_done.get(share, 0) for share in job.tuned_at},
        "trials_shared": job.progress.candidates_shared,
        "trials_saved": job.progress.trials_saved,
        "trials_per_s": job.progress.trials_per_s,
        "phases_s": dict(job.progress.phases_s),
        "busy_s": dict(job.progress.busy_s),
        "failures": dict(job.progress.failures),
        "shares": [_share_json(job, each) for each in job.results],
        "layout_transforms": layout_transforms(job),
        "operators": [operator_result_json(job, each) for each in job.operators if each.selected],
        "bundle": bundle,
        "skipped_shares": dict(job.spec.skipped_shares),
    }


def layout_transforms(job: JobStatus) -> int:
    """The number of operators of one inference that change a layout."""
    return sum(each.weight for each in job.operators if changes_layout(each.name))


def _share_json(job: JobStatus, each: ShareResult) -> dict[str, Any]:
    in_operators_s = operators_s(job, each.share) if each in job.tuned_results else None
    return {
        "share": each.share,
        "granted": each.granted.to_json(),
        "untuned_s": each.untuned_s,
        "untuned_summed": each.is_untuned_summed,
        "tuned_s": each.tuned_s,
        "timed_by": each.earlier_job or job.name,
        "timed_at": each.timed_at or None,
        "roof": _rates_json(job.roofs.get(each.share)),
        "launch_s": job.launch_s.get(each.share),
        "launch_bound": _is_launch_bound(job, each),
        "operators_s": in_operators_s,
        "rest_s": None if in_operators_s is None else each.tuned_s - in_operators_s,
        **at_load_json(each),
    }


def _rates_json(roof: Roof | None) -> dict[str, Any] | None:
    if roof is None or not roof.has_rates:
        return None
    return {name: value for name, value in roof.to_json().items() if name != "launch_s"}


def _is_launch_bound(job: JobStatus, each: ShareResult) -> bool | None:
    return is_launch_bound(each.tuned_s, job.launches_s.get(each.share))


def doubts(job: JobStatus) -> list[str]:
    """A line for each share whose tuned model's outputs are far from the untuned model's. None for a bundle whose check
    found its outputs equal to another runtime's: how far right outputs lie apart is known there.
    """
    if job.checked is not None and job.checked.is_equal:
        return []
    return [
        f"note: at {each.share} the outputs differ from the untuned model's by {each.difference:.1e} of the "
        "largest, on random inputs; every operator was right on its own, so the model rounds to half precision, or is "
        "ill-conditioned on such inputs: compare on yours by 'fractune run BUNDLE --inputs FILE.npz'"
        for each in job.results
        if (each.difference or 0.0) > DOUBTFUL_DIFFERENCE
    ]


def timed_before(job: JobStatus) -> list[str]:
    """A line for each earlier job that the latencies are from."""
    shares: dict[tuple[str, str], list[str]] = {}
    for each in job.results:
        if each.earlier_job:
            shares.setdefault((each.earlier_job, moment_text(each.timed_at)), []).append(each.share)
    return [
        f"note: the latencies at {', '.join(at)} are from {earlier}, which timed this very bundle on {day}; "
        f"{_timing_command(at[0])} times it now"
        for (earlier, day), at in shares.items()
    ]


def _timing_command(share: str) -> str:
    """A command enters whole cores by itself, and a CPU limit not."""
    if Share.parse(share).kind.measures_kernels:
        return f"'fractune run BUNDLE --share {share}'"
    return f"'fractune run BUNDLE' in a container with the limit {share}"


def _overheads(job: JobStatus) -> list[str]:
    """A line for a model so fast that a call from Python takes longer than the model."""
    if all(each.tuned_s >= SHORT_S for each in job.results):
        return []
    note = "these are times of the model alone; a call from Python adds some microseconds"
    return [f"note: {note}; 'fractune run BUNDLE' times calls"]


def latency_notes(job: JobStatus) -> tuple[str, ...]:
    """What to know of a finished job's latencies."""
    bound = (_is_launch_bound(job, each) for each in job.results)
    of_times = (*timed_before(job), *doubts(job), *_overheads(job))
    return *launch_notes(bound), *of_times, *load_notes(job.results)


def latency_table(job: JobStatus) -> Table:
    """A row for each share: what it granted, the latencies without and with tuning, and how far the outputs differ."""
    numbers = [Column(name, numbers=True) for name in ("untuned TVM", "tuned", "speed-up")]
    rows = tuple(latency_row(job, each) for each in job.results)
    return Table(
        title=f"{job.model_name}: latency{'' if job.is_disturbed else ', measured alone'}",
        columns=(
            *(Column("share"), Column("granted"), *numbers, Column(HEADING, numbers=True, dispensable=1)),
            Column("outputs differ from untuned by", numbers=True, dispensable=2, wraps_at=13),
        ),
        cells=tuple(_latency_cells(job, each) for each in job.results),
        rows=rows,
        notes=(*untuned_notes(job.results), *latency_notes(job)),
    )


def _latency_cells(job: JobStatus, each: ShareResult) -> tuple[str, ...]:
    granted = f"{each.granted.units} of {units_text(each.granted.units_total, each.granted.unit)}"
    error = each.difference
    difference = "-" if error is None else f"{error:.1e}"
    tuned = marked_time(each.tuned_s, launch_bound=_is_launch_bound(job, each), at_most=each.is_disturbed)
    times = (
        marked_time(each.untuned_s, at_most=each.is_untuned_at_most),
        tuned,
        ratio_text(each.untuned_s, each.tuned_s),
    )
    return each.share, granted, *times, latency_cell(each.at_load_best, at_most=each.is_disturbed), difference


def latency_row(job: JobStatus, each: ShareResult) -> dict[str, Any]:
    return {
        "share": each.share,
        "units": each.granted.units,
        "units_total": each.granted.units_total,
        "unit": each.granted.unit,
        "untuned_s": each.untuned_s,
        "untuned_summed": each.is_untuned_summed,
        "tuned_s": each.tuned_s,
        "speed_up": each.speed_up,
        "max_error": each.difference,
        "launch_bound": _is_launch_bound(job, each),
        **at_load_json(each),
    }


def operator_json(operator: OperatorStatus) -> dict[str, Any]:
    work = operator.arithmetic
    return {
        "name": operator.name,
        "weight": operator.weight,
        "workload_hash": operator.workload_hash,
        "trials": operator.trials,
        "best_s": dict(operator.best_s),
        "flops": None if work is None else work.flops or None,
        "io_bytes": None if work is None else work.io_bytes or None,
        "written_bytes": None if work is None else work.written_bytes or None,
    }


def operator_result_json(job: JobStatus, operator: OperatorStatus) -> dict[str, Any]:
    """By share `implementation`, `gflops`, `inside_s`, `why_slower`, `roof_part` and `model_part` (fractions),
    `memory_bound` and `launch_bound`; null for what is not known, but an unknown implementation is absent.
    """
    found = {each.share: operator_time(operator, each, job.roofs.get(each.share)) for each in job.results}
    measured = {share: time for share, time in found.items() if time is not None}
    return {
        **operator_json(operator),
        "implementation": dict(operator.implementations),
        "gflops": {share: time.gflops for share, time in measured.items()},
        "roof_part": {share: time.roof_part for share, time in measured.items()},
        "memory_bound": {share: time.memory_bound for share, time in measured.items()},
        "launch_bound": {share: time.launch_bound for share, time in measured.items()},
        "inside_s": {share: time.inside_s for share, time in measured.items()},
        "why_slower": {share: time.why_slower for share, time in measured.items()},
        "model_part": {share: time.model_part for share, time in measured.items()},
    }
