"""`fractune.fit`: the least CPU limit, threads and replicas for a request rate and a p99, or those by a job's times."""

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fractune.features.fit import measuring
from fractune.features.fit.measuring import BehindServer, Measured, Verified, check_limits, measure, usable_cores
from fractune.features.fit.table import behind_lines, draw_fit, fit_json, fit_table, verified_lines
from fractune.local.model_server import check_server
from fractune.models.open_sizes import settled_once
from fractune.server.job_status import JobStatus
from fractune.sessions.progress import LineProgress, line_reporter
from fractune.text.rendering import Drawable, Table
from fractune.text.text import parse_millicores, parse_rate_per_s, parse_time_s
from fractune_core.analysis.limit_fitting import Alternative, Goal, fit as fit_services
from fractune_core.cpu_limits import service_of_time
from fractune_core.errors import BadRequest, one_line
from fractune_core.files.bundles import SUFFIX, is_bundle
from fractune_core.model_inputs import Inputs, Sizes, as_shapes
from fractune_core.shares import Share


def resources_text(best: Alternative, *, at_most: bool) -> str:
    """The block of a container; the request equals the limit, because a prediction holds only if the CPU time is
    there. A comment marks a limit that is the most that is needed.
    """
    cpu = f"{best.limit.quota_m}m{'  # at most: the times were disturbed' if at_most else ''}"
    return f"resources:\n  requests:\n    cpu: {cpu}\n  limits:\n    cpu: {cpu}"


def settings_text(best: Alternative, runtime: str, model: Path) -> tuple[str, ...]:
    """How to run the model in that container."""
    replicas = "1 replica of the model, which answers one request after the other"
    if best.replicas > 1:
        replicas = f"{best.replicas} replicas of the model in this container, with one queue for all of them"
    if runtime == measuring.OPENVINO:
        each = _openvino(best)
    else:
        each = _onnx_runtime(best.threads) if runtime == measuring.ONNX_RUNTIME else _fractune(best, model.name)
    burst = f"burst of the limit (cpu.max.burst): {best.limit.burst_us} us" if best.limit.burst_us else ""
    return tuple(filter(None, (replicas, each, burst)))


def _onnx_runtime(threads: int) -> str:
    return (
        f"session of a replica: intra_op_num_threads = {threads}, inter_op_num_threads = 1, "
        'session.intra_op.allow_spinning = "0"'
    )


def _openvino(best: Alternative) -> str:
    from fractune_runtime.sessions import stream_settings

    settings = ", ".join(f"{name} = {value}" for name, value in stream_settings(best.threads, best.replicas).items())
    return f"compiled model: {settings}; {best.replicas} infer request{'s' * (best.replicas > 1)}"


def _fractune(best: Alternative, name: str) -> str:
    if best.replicas > 1:
        return f'fractune.ReplicaPool("{name}", replicas={best.replicas}, threads={best.threads})'
    return f'fractune.load("{name}", threads={best.threads})'


DEFAULT_STEP = "50m"
_BURSTS = (0.0, 1.0)
RUNTIMES = {"onnxruntime": measuring.ONNX_RUNTIME, "openvino": measuring.OPENVINO}
"""of an ONNX file"""


@dataclass(frozen=True, repr=False)
class FitResult(Drawable):
    """The least CPU limits that are predicted to keep a goal, and the measured times behind them."""

    model: Path
    measured: Measured
    goal: Goal
    alternatives: tuple[Alternative, ...]
    """the smallest limit first"""
    verified: Verified | None = None
    """`best` under the real limit; None if that was not requested"""
    behind: BehindServer | None = None
    """`best` behind a real server; None if that was not requested"""

    def __repr__(self) -> str:
        return f"FitResult({one_line(self.model.name)}: {self.best.name}, of {len(self.alternatives)} alternatives)"

    @property
    def best(self) -> Alternative:
        """The smallest limit without a burst, which Kubernetes cannot set; with one if no other keeps the goal."""
        return _best(self.alternatives)

    @property
    def resources(self) -> str:
        """The block `resources:` of a container in Kubernetes."""
        return resources_text(self.best, at_most=self.measured.is_disturbed(self.best.threads))

    @property
    def settings(self) -> tuple[str, ...]:
        """How to run the model under the limit, line by line."""
        best = self.best
        command = (
            f"BUNDLE={self.model.name} REPLICAS={best.replicas} THREADS={best.threads}"
            f" python -m fractune_runtime.serving.{self.behind.server}"
            if self.behind
            else ""
        )
        return (*settings_text(best, self.measured.runtime, self.model), *filter(None, [command]))

    @property
    def verdict(self) -> tuple[str, ...]:
        """Whether the real limit keeps the goal, and measured beside predicted latencies, line by line; then the same
        behind the server. Empty if nothing was verified.
        """
        lines = list(verified_lines(self.best, self.goal, self.verified)) if self.verified else []
        behind = behind_lines(self.best, self.goal, self.behind, self.verified) if self.behind else ()
        return (*lines, *behind)

    @property
    def held(self) -> bool:
        """Whether all that was verified kept the goal."""
        return all(each.held for each in (self.verified, self.behind) if each is not None)

    @property
    def table(self) -> Table:
        """A row for each alternative."""
        return fit_table(self.model.name, self.measured, self.goal, self.alternatives, self.best)

    def to_json(self) -> dict[str, Any]:
        """As `fractune fit --json` prints it: times in seconds, limits in thousandths of a core."""
        return {
            **fit_json(self.model.name, self.measured, self.goal, self.alternatives, self.best),
            "resources": self.resources,
            "settings": list(self.settings),
            "verified": None if self.verified is None else asdict(self.verified),
            "behind": None if self.behind is None else asdict(self.behind),
        }

    def _draw(self, path: Path) -> None:
        verified = None if self.verified is None else (self.best, self.verified)
        draw_fit(self.model.name, self.measured, self.goal, self.alternatives, verified, path)


def fit(
    model: str | os.PathLike[str],
    rate: float | str,
    p99: float | str,
    *,
    share_steps: str = DEFAULT_STEP,
    inputs: Inputs | None = None,
    sizes: Sizes | None = None,
    verify: bool = False,
    runtime: str = "onnxruntime",
    server: str = "",
    server_python: str | os.PathLike[str] = sys.executable,
    progress: LineProgress = True,
) -> FitResult:
    """Find the least CPU limit with which a model answers requests at a rate within a p99.

    `model` is a bundle, or an ONNX file for `runtime` (`onnxruntime`, `openvino`). It is timed on this machine's whole
    cores without a limit, each number of threads interleaved with the others. Latency under limits is then predicted
    (docs/cpu-limits.md). `rate` is in requests a second, or `18/s` or `600/min`; `p99` in seconds, or `50ms`. Limits
    are multiples of `share_steps`. `inputs` as for `tune`, of an ONNX file alone. With `verify` the model then answers
    2,000 such requests under the real limit, at least (`verified`). With a `server` (`kserve`, `ray`, `litserve`,
    `fastapi`) the bundle does so behind that server (`behind`), which runs in `server_python`. `progress` is that of
    `noise`.

    Raises BadRequest with what would do where no limit keeps the goal. Raises BadModel, BadBundle, ShareUnavailable,
    also where a limit to verify cannot be made, and FractuneError when a runtime is not installed.
    """
    rate_per_s = parse_rate_per_s("--rate", rate) if isinstance(rate, str) else rate
    p99_s = parse_time_s("--p99", p99) if isinstance(p99, str) else p99
    step_m = parse_millicores("--share-steps", share_steps)
    goal = Goal(rate_per_s, p99_s, usable_cores(), step_m=step_m, bursts=_BURSTS)
    path, report_line = Path(model), line_reporter(progress)
    if runtime not in RUNTIMES:
        raise BadRequest(f"--runtime '{runtime}': write {' or '.join(RUNTIMES)}")
    if verify:
        check_limits()
    if server:
        check_server(server, server_python)
        check_limits("--server")
        if path.suffix != SUFFIX and not is_bundle(path):
            raise BadRequest(f"--server serves a bundle, and {path.name} is none; tune the model first")
    is_model = path.is_file() and path.suffix != SUFFIX and not is_bundle(path)
    if sizes and not is_model:
        raise BadRequest(f"sizes: those of {path.name} were fixed when it was made; leave them out")
    shapes = as_shapes((settled_once(path, inputs, sizes) if is_model else inputs) or {})
    measured = measure(path, shapes, report_line, RUNTIMES[runtime])
    report_line("searching the least limit of each number of threads and replicas")
    found = search(measured, goal)
    verified = measuring.verify(path, measured, _best(found), goal, shapes, report_line) if verify else None
    behind = None
    if server:
        behind = measuring.verify_behind(server, server_python, path, measured, _best(found), goal, report_line)
    return FitResult(path, measured, goal, found, verified, behind)


def search(measured: Measured, goal: Goal) -> tuple[Alternative, ...]:
    """The smallest limit first. Raises BadRequest with what would do where no limit keeps the goal."""
    try:
        return tuple(fit_services(measured.services, goal))
    except BadRequest as error:
        if not measured.doubts:
            raise
        raise BadRequest(f"{error}. But {measured.doubts}") from error


def _best(alternatives: Sequence[Alternative]) -> Alternative:
    plain = (each for each in alternatives if not each.limit.burst_us)
    return next(plain, alternatives[0])


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
    return Measured(measuring.FRACTUNE, "", services, {units: each.others_cores for units, each in found.items()})
