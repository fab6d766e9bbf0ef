"""Tuning until a peer is beaten, in steps of more and more trials; each bundle is timed beside the peer."""

import contextlib
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fractune.features import goal as goals
from fractune.features.goal import Goal, GoalStep, LoopAndPaced, PeerTiming, SideBySide, goal_end, goal_news, step_times
from fractune.features.tune.bundle import BundleFile
from fractune.features.tune.result import TuneResult
from fractune.local.stack import own_env
from fractune.local.timing_process import check_share, timing_process
from fractune.server.job_status import JobStatus
from fractune.server.rpc import RpcClient
from fractune.sessions.progress import View
from fractune.sessions.session import PlaceOptions, run_job, tuning_session
from fractune_core.codec.messages import to_proto
from fractune_core.errors import BadRequest, FractuneError
from fractune_core.files import buckets, fused, model_files, new_bundle
from fractune_core.files.bundles import Bundle
from fractune_core.jobs import JobSpec, SearchOptions
from fractune_core.names import Collection
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.shares import Share

PEERS = ("onnxruntime",)
DEFAULT_MINUTES = 15.0
_REPEATS = 15
"""timings of both at each share after each step"""
_FAR, _REPEATS_FAR = 2.0, 6
"""a bundle that the job found this many times slower than the peer gets fewer timings, which may take seconds"""
_SHORTEST_SEARCH_S = 1.0


@dataclass(frozen=True)
class GoalSpec:
    """The goal and its limits."""

    peer: str
    min_gain: float
    """a fraction: 0.05 = 5 %"""
    minutes: float
    """limit of the whole tuning; the last search ends then, and its validation follows"""
    trials: int | None
    """limit of trials, including those in the log; None = no limit"""


def goal_spec(
    until_beats: str | None,
    min_gain: float | None,
    model: Path,
    spec: JobSpec,
    options: SearchOptions,
    server: str | None,
) -> GoalSpec | None:
    """The caller's goal after checks; None for none. `spec` is of `options`. Raises BadRequest, ShareUnavailable."""
    if until_beats is None:
        if min_gain is not None:
            raise BadRequest(
                f"--min-gain is {min_gain} and needs --until-beats; name the peer there, or leave --min-gain out"
            )
        return None
    if until_beats not in PEERS:
        raise BadRequest(f"--until-beats '{until_beats}' is unknown; write {' or '.join(PEERS)}")
    if min_gain is not None and not 0 <= min_gain < 1:
        raise BadRequest(f"--min-gain is {min_gain}; it must be at least 0 and below 1, 0.05 being 5 %")
    if server is not None:
        raise BadRequest(
            f"--until-beats times the peer on this machine; leave the server out ({server}), or tune without a goal"
        )
    _check_job(model, spec)
    minutes = options.get("minutes")
    return GoalSpec(
        until_beats, min_gain or 0.0, DEFAULT_MINUTES if minutes is None else minutes, options.get("trials")
    )


def _check_job(model: Path, spec: JobSpec) -> None:
    """Raise BadRequest or ShareUnavailable for a model or options that do not fit a goal."""
    if fused.is_fused(model):
        raise BadRequest(f"{model.name} is a fused model, which no peer runs; leave --until-beats out")
    if model.stat().st_size > model_files.MOST_PARSED_BYTES:
        raise BadRequest(f"{model.name} has more than 2 GiB, which no peer reads as one file; leave --until-beats out")
    if spec.extra_trials or spec.rerank:
        raise BadRequest(
            "--until-beats chooses its trials, and --trials limits them; leave --extra-trials and --rerank out"
        )
    if spec.fresh:
        raise BadRequest("--fresh: --until-beats tunes in steps, and each reads the measurements of those before it")
    for share in map(Share.parse, spec.shares):
        if share.device_kind != "cpu":
            raise BadRequest(f"share '{share}': --until-beats compares on the CPU; name shares such as cpu:1")
        share.check_measures_kernels()
        check_share(share)


def tune_until_beaten(
    model: Path, spec: JobSpec, goal: GoalSpec, written: new_bundle.NewBundle, where: PlaceOptions, view: View
) -> TuneResult:
    """Tune `model` until its bundle, in the file `written` from the first step on, beats the peer at every share.

    1. The peer is timed at each share.
    2. The first step searches nothing; each later one goes to more trials in the same log.
    3. After each step the bundle is timed beside the peer. What seems to beat it is timed once more, and that counts:
       of many timings one would be lucky.
    4. The end is a beaten peer, or the limit of time or trials, or a search that finds nothing new.

    Raises what `fractune.tune` raises; the bundle of the step before stays where it is.
    """
    with view:
        pursuit = _Pursuit(model, spec, goal, view)
        with tuning_session(where, spec.shares) as place:
            target = 0
            while True:
                job = run_job(place, model, pursuit.spec_of_step(target), view)
                place.client.download_bundle(job.bundle, written)
                pursuit.take(job, written.path)
                pursuit.record(place.client, job, written.path)
                if pursuit.goal.end is not None:
                    return TuneResult(job, BundleFile(written.path, job.name), place.client.measurers(), pursuit.goal)
                operators = sum(operator.selected for operator in job.operators)
                target = goals.next_trials(max(target, _known(job)), operators, goal.trials)


class _Pursuit:
    """The progress toward the goal, and the elapsed time. Making it times the peer."""

    def __init__(self, model: Path, spec: JobSpec, goal: GoalSpec, view: View) -> None:
        self._model, self._spec, self._goal_spec, self._view = model, spec, goal, view
        self._began = time.monotonic()
        self._empty_steps = 0
        self.goal = _timed_peer(model, spec, goal)
        self._timing_s = self._elapsed_s
        self._show()

    def _show(self) -> None:
        self._view.show_goal(goal_news(self.goal))

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def spec_of_step(self, target: int) -> JobSpec:
        """The job up to `target` trials. The first one has no trials and no time limit."""
        left_s = max(self._goal_spec.minutes * 60 - self._elapsed_s, _SHORTEST_SEARCH_S)
        return replace(self._spec, trials=target, minutes=left_s / 60 if target else 0.0)

    def take(self, job: JobStatus, bundle: Path) -> None:
        """Time the bundle of a step beside the peer, and decide whether to go on."""
        tuning_s = self._elapsed_s - self._timing_s
        searched = bool(self.goal.steps)
        self._empty_steps = self._empty_steps + 1 if searched and not job.progress.candidates_had else 0
        timings = self._timed_beside(job, bundle)
        if all(timing.beats(self._goal_spec.min_gain) for timing in timings):
            timings = self._timed_beside(job, bundle)
        self._timing_s = self._elapsed_s - tuning_s
        trials = job.progress.candidates_had + (self.goal.steps[-1].trials if searched else 0)
        self.goal = replace(self.goal, steps=(*self.goal.steps, GoalStep(tuning_s, trials, timings)))
        over = self._elapsed_s >= self._goal_spec.minutes * 60
        end = goal_end(self.goal, _known(job), self._goal_spec.trials, self._empty_steps, minutes_over=over)
        self.goal = replace(self.goal, end=end)
        self._show()

    def record(self, client: RpcClient, job: JobStatus, bundle: Path) -> None:
        """Keep the peer's times in the log of the job, for its page. A failure costs these times alone."""
        try:
            with contextlib.closing(Bundle(bundle)) as opened:
                inputs = buckets.input_shapes(opened.manifest)
            times = step_times(self.goal, Collection.MODELS.parse(job.model), inputs)
            client.add_runtime_times(to_proto(each, pb.RuntimeTime) for each in times)
        except FractuneError as error:
            self._view.show_step(f"the times of {self.goal.peer} are not in the log: {error}")

    def _timed_beside(self, job: JobStatus, bundle: Path) -> tuple[PeerTiming, ...]:
        far = {each.share for each in job.results if each.tuned_s > _FAR * self.goal.peer_s[each.share]}
        return tuple(
            peer_timing(share, self._model, bundle, _REPEATS_FAR if share in far else _REPEATS)
            for share in self._spec.shares
        )


def _known(job: JobStatus) -> int:
    """Trials in the log for the job's operators."""
    return sum(operator.trials for operator in job.operators if operator.selected)


def _timed_peer(model: Path, spec: JobSpec, goal: GoalSpec) -> Goal:
    version, peer_s = "", {}
    for share in spec.shares:
        with timing_process(share, own_env()) as call:
            timed = call("time_peer", path=str(model), shapes=spec.inputs, repeats=_REPEATS)
        version, peer_s[share] = timed["version"], statistics.median(timed["run_secs"])
    return Goal(goal.peer, version, goal.min_gain, peer_s)


def peer_timing(share: str, model: Path, bundle: Path, repeats: int) -> PeerTiming:
    """The bundle and its ONNX file, interleaved at `share` of this machine's CPU, `repeats` times.

    Raises ShareUnavailable, BadModel, BadBundle, FractuneError if ONNX Runtime is not installed.
    """
    with timing_process(share, own_env()) as call:
        return timing_in(call, share, model, bundle, repeats)


def timing_in(call: Callable[..., Any], share: str, model: Path, bundle: Path, repeats: int) -> PeerTiming:
    """As `peer_timing`, in a process at `share` that runs already; `call` calls the methods of `TimingChild` there."""
    timed = call("time_beside", path=str(model), bundle=str(bundle), repeats=repeats)
    ours, exact = timed["ours"][timed["variant"]], timed["exact"]
    beside = partial(_beside, timed["others_cores"], Share.parse(share).cores, ours)
    theirs = beside(timed["theirs"])
    return PeerTiming(
        theirs.our_secs,
        theirs.peer_secs,
        theirs.paced,
        share=share,
        variant=timed["variant"],
        exact=None if exact is None else beside(exact),
        max_rel_difference=timed["max_rel_difference"],
        outputs_agree=timed["outputs_agree"],
        unproved=timed["unproved"],
        others_cores=theirs.others_cores,
        cores=theirs.cores,
    )


def _beside(others_cores: float, cores: int, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> LoopAndPaced:
    """Two `Times` as JSON."""
    in_loop, paced = ((tuple(ours[key]), tuple(theirs[key])) for key in ("loop_secs", "paced_secs"))
    side = SideBySide(*paced, others_cores=others_cores, cores=cores)
    return LoopAndPaced(*in_loop, side, others_cores=others_cores, cores=cores)
