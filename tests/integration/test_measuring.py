"""Real candidates built, checked and timed under a share: of the CPU here, and of a GPU where there is one."""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fractune_core.errors import ShareUnavailable
from fractune_core.records import COLD, UNTUNED, VALIDATION_POLICY, WARM, Status, candidate_id, with_cache
from fractune_core.shares import Share
from fractune_core.targets import target_key
from fractune_workers.builder_process import BuilderProcess
from fractune_workers.child import Child
from fractune_workers.children.tvm_api.target import parse_target
from fractune_workers.confinement import confinement_for
from fractune_workers.cuda.compilers import find_compiler
from fractune_workers.gpu.nvml import UNKNOWN_CLOCKS, GpuClock, open_nvml, visible_gpu
from fractune_workers.measuring.session import ArtifactBatch, MeasurementSession, measure_stable
from fractune_workers.measuring.validation import validate
from tests.support.processes.worker_processes import matmul_workload

pytestmark = pytest.mark.alone

SIZE = 96
CANDIDATES = 2
SHARES = ["cpu:1", *(pytest.param(share, marks=pytest.mark.gpu) for share in ("full", "green:32"))]


@dataclass(frozen=True)
class Built:
    """An operator's candidates as a builder made them for the device of a share."""

    share: Share
    cores: list[int]
    untuned: str
    batch: ArtifactBatch

    def session(self, folder: Path, cache: str = WARM) -> MeasurementSession:
        return MeasurementSession(self.share, self.cores, lock_dir=folder, cache=cache)


def target_of(share: Share, workload: dict[str, Any]) -> str:
    """Skips the test where there is no such share, or no compiler for it."""
    if share.device_kind == "cpu":
        return str(workload["target"])
    try:
        gpu = visible_gpu(open_nvml().gpus())
        confinement_for(share).probe()
    except ShareUnavailable as error:
        pytest.skip(str(error))
    if find_compiler() is None:
        pytest.skip("no CUDA compiler here; pip install 'fractune[cuda]'")
    return str(parse_target(f"cuda:{gpu.arch}", 1))


@pytest.fixture(scope="module", params=SHARES)
def built(request: pytest.FixtureRequest) -> Built:
    share, workload = Share.parse(request.param), matmul_workload(SIZE)
    target = target_of(share, workload)
    known = {"workload_hash": workload["hash"]}
    search, builder = Child("fractune_workers.children.searching.child", ["2"]), BuilderProcess()
    opened = {"workload": workload["json"], "target": target, "seed": 0, "history": [], "transferred": []}
    search.call("open", 120, **known, target_key=target_key(target), **opened)
    proposed = search.call("propose", 120, **known, target_key=target_key(target), count=CANDIDATES)
    args_info = builder.learn(workload["hash"], target, lambda: workload["json"])
    codes = {}
    for trace in (UNTUNED, *(item["trace"] for item in proposed)):
        made = builder.build(workload["hash"], target, trace)
        assert (made.status, made.cause) == (Status.OK, "")
        codes[candidate_id(workload["hash"], target_key(target), trace)] = made.code
    search.stop()
    builder.stop()
    cores = sorted(os.sched_getaffinity(0))[:1] if share.device_kind == "cpu" else []
    untuned = candidate_id(workload["hash"], target_key(target), UNTUNED)
    return Built(share, cores, untuned, ArtifactBatch(args_info, 5, codes))


def test_every_candidate_computes_what_numpy_does(built: Built) -> None:
    confinement = confinement_for(built.share, built.cores)
    cores = ",".join(map(str, built.cores))
    child = Child("tests.support.children.measured_child", [str(built.share), cores], env=confinement.environment())
    try:
        child.call("begin", 60, args_info=built.batch.args_info, seed=built.batch.seed)
        for name, code in built.batch.codes.items():
            child.call("load", 60, name=name, code=code)
            child.call("check", 60, name=name)
            left, right, product = (np.array(each) for each in child.call("arguments", 60))
            assert np.abs(product - left @ right).max() < 1e-3 * np.abs(product).max()
    finally:
        child.stop()
        confinement.leave()


def test_no_kernel_of_a_gpu_takes_less_than_its_launch(built: Built, tmp_path: Path) -> None:
    session = built.session(tmp_path)
    try:
        session.handshake()
        roof, trials = session.roof(), session.trials(built.batch)
    finally:
        session.stop()
    assert roof is not None
    assert (roof.launch_s > 0, roof.has_rates) == (built.share.device_kind == "cuda", built.share.device_kind == "cpu")
    assert roof.launch_s < 1e-4
    assert all(each.median_s > 0.9 * roof.launch_s for each in trials.values())


def test_trials_and_finals_under_steady_conditions(built: Built, tmp_path: Path) -> None:
    session = built.session(tmp_path)
    on_gpu = built.share.device_kind == "cuda"
    clocks = GpuClock().read if on_gpu else lambda: UNKNOWN_CLOCKS
    try:
        session.handshake()
        trials, conditions = measure_stable(session, clocks, partial(session.trials, built.batch))
        finals, _ = measure_stable(session, clocks, partial(validate, session, built.batch, built.untuned))
    finally:
        session.stop()
    assert session.device_info["granted"]["share"] == str(built.share)
    assert session.device_info["device"]["kind"] == built.share.device_kind
    assert conditions.anchor_ratio > 0
    assert (conditions.clock_mhz > 0) == on_gpu
    assert conditions.attempts >= 1
    for each in (*trials.values(), *finals.values()):
        assert (each.disturbance is None) == on_gpu
        assert (each.cpu_secs is None) == on_gpu
        assert each.cpu_secs is None or each.cpu_secs <= 1.1 * built.share.host_cores * each.median_s
        # From one reading to the other lie at least all repeats that were kept.
        kept_s = len(each.run_secs) * each.policy.min_repeat_ms * 1e-3
        assert each.disturbance is None or each.disturbance.wall_s >= kept_s
    assert {each.status for each in trials.values()} == {Status.OK}
    assert all(0 < each.median_s < 1 for each in trials.values())
    assert {each.status for each in finals.values()} == {Status.OK}
    assert finals[built.untuned].max_error == 0.0
    assert all(len(each.run_secs) == each.policy.repeats for each in finals.values())
    assert min(finals.values(), key=lambda each: each.median_s).policy == VALIDATION_POLICY


def test_a_cold_cache_is_another_policy_and_not_faster(built: Built, tmp_path: Path) -> None:
    if built.share.device_kind == "cpu":
        pytest.skip("only a GPU's cache is emptied")
    times = {}
    for cache in (WARM, COLD):
        session = built.session(tmp_path, cache)
        try:
            outcomes = validate(session, built.batch, built.untuned)
        finally:
            session.stop()
        fastest = min(outcomes.values(), key=lambda each: each.median_s)
        assert fastest.policy == with_cache(VALIDATION_POLICY, cache)
        assert {each.policy.cache for each in outcomes.values()} == {cache}
        times[cache] = outcomes[built.untuned].median_s
    assert times[COLD] > times[WARM]
