"""Results of the Python API that are hard to show: long names, four shares, every column filled."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import fractune
from fractune.comparing.beside import Comparison
from fractune.features.cost import CostResult, JobCost, Prices
from fractune.features.fit.fit import FitResult
from fractune.features.fit.measuring import ONNX_RUNTIME, Measured
from fractune.features.goal import Goal, GoalStep, LoopAndPaced, PeerTiming, SideBySide
from fractune.features.knee.knee import KneeResult
from fractune.features.knee.report import at_load_knee, fastest_knee
from fractune.features.log.log import Records
from fractune.features.log.match import MatchResult
from fractune.features.matrix.matrix import Matrix
from fractune.features.noise import NoiseResult
from fractune.features.pair.pair import PairResult
from fractune.features.pair.result import PairSide
from fractune.features.tune.bundle import BundleFile
from fractune.features.tune.result import TuneResult
from fractune.server.job_status import JobProgress, JobStatus, OperatorMatch, OperatorStatus, ShareResult
from fractune_core.analysis.at_load import AtLoad
from fractune_core.analysis.co_location import RoundTimes, co_location_figures
from fractune_core.analysis.limit_fitting import Alternative, Goal as Fitting
from fractune_core.analysis.limit_prediction import Prediction
from fractune_core.analysis.match import How
from fractune_core.analysis.noise import NoiseAdvice
from fractune_core.analysis.roofline import Arithmetic, Roof
from fractune_core.analysis.slowdown_ci import slowdown
from fractune_core.cpu_limits import CpuLimit, Service
from fractune_core.jobs import JobSpec, JobState
from fractune_core.records import Spending, Status
from fractune_runtime.choosing import VariantChoice
from tests.support.client_samples import granted, record

SHARES = ("cpu:1", "cpu:2", "cpu:4", "cpu:8")
MODEL = "light_squeezenet_with_a_long_name.onnx"
JOB = "jobs/1b35094df19f"
OPERATOR = "fused_conv2d_add_relu_with_a_long_name"
ROOF = Roof(20.0, 10.0, 1 << 25)
NOISE = (1.0, 1.3, 0.8, 1.1, 0.95, 1.2, 0.9, 1.02, 0.85, 1.15, 1.05)
ID = "0123456789abcdef" * 2


def tuned_job() -> JobStatus:
    """Finished, at four shares."""

    def repeats(secs: float) -> tuple[float, ...]:
        return tuple(secs * noise for noise in NOISE)

    operators = tuple(
        OperatorStatus(
            f"{OPERATOR}{number}",
            f"{number:016x}",
            weight=3,
            trials=120,
            selected=True,
            best_s=dict.fromkeys(SHARES, 123e-6),
            untuned_s=dict.fromkeys(SHARES, 1e-3),
            arithmetic=Arithmetic(2e7, 1 << 20),
        )
        for number in range(12)
    )
    at_one_thread = AtLoad("robust", 1, repeats(4.5e-3), repeats(4.6e-3) * 10)
    results = tuple(
        ShareResult(
            share,
            replace(granted(share, int(share[4:])), units_total=16),
            untuned_s=12.4e-3,
            tuned_s=4.31e-3,
            run_secs={
                "untuned": repeats(12.4e-3),
                **{each: repeats(4.31e-3 * (1 + 0.3 * (each != share))) for each in SHARES},
            },
            max_error={share: 1.2e-6},
            at_load=(AtLoad(share, int(share[4:]), repeats(4.31e-3), repeats(5.2e-3) * 10), at_one_thread),
        )
        for share in SHARES
    )
    return JobStatus(
        JOB,
        JobState.DONE,
        JobSpec("", MODEL, SHARES),
        JobProgress(trials_planned=256, trials_done=dict.fromkeys(SHARES, 256), candidates_done=256),
        created_at=1_700_000_000.0,
        message="the model could not be compiled: an operator has no schedule",
        operators=operators,
        results=results,
        roofs=dict.fromkeys(SHARES, ROOF),
    )


def goal() -> Goal:
    def timing(share: str) -> PeerTiming:
        ours, theirs = tuple(2e-3 * noise for noise in NOISE), (1e-3,) * len(NOISE)
        exact = LoopAndPaced(ours, theirs, SideBySide(ours, theirs))
        return PeerTiming(ours, theirs, exact.paced, share, share, exact, 1e-6, outputs_agree=True)

    peer_s = dict.fromkeys(SHARES, 1e-3)
    return Goal("onnxruntime", "1.31", 0.0, peer_s, (GoalStep(140.0, 256, tuple(map(timing, SHARES))),))


def noise_report() -> dict[str, Any]:
    def setting(name: str) -> dict[str, Any]:
        numbers = dict.fromkeys(("spread_median", "spread_p90", "regret", "lost"), 0.123)
        scores = dict.fromkeys(("tau", "tau_all"), 0.95)
        return {"name": name, **numbers, **scores, "failures": 12, "secs_per_candidate": 0.123, "median_s": {}}

    return {
        "operator": OPERATOR,
        "share": "cpu:1",
        "granted": vars(replace(granted(), ids=())),
        "candidates": 24,
        "tie_width": 0.05,
        "settings": [setting("1 measurer, nothing else running"), setting("2 measurers, with builds beside them")],
        "advice": vars(ADVICE),
        "race_margin": 1.25,
        "race_keeps_winner": True,
        "explanation": None,
        "notes": ["2 measurers share cores"],
    }


ADVICE = NoiseAdvice(2, 1.25, builds_beside=True, tau=0.95, regret=0.0, measured_at=1_700_000_000.0)


def costs() -> CostResult:
    spent = (
        *(Spending("measure", share, pieces=4, worked_s=12_345.6, cpu_s=1.0) for share in SHARES),
        Spending("search", "", pieces=4, worked_s=12_345.6, cpu_s=12_345.6),
    )
    return CostResult((JobCost(tuned_job(), spent, ID[:12]),), Prices("EUR", 0.3, dict.fromkeys(SHARES, 1.0)))


def pair() -> PairResult:
    rounds = tuple(
        (RoundTimes(0.02, 0.03 * noise, 0.03, 0.033), RoundTimes(0.1, 0.12 * noise, 0.12, 0.13)) for noise in NOISE
    )
    sides = (PairSide("light_squeezenet", "cpu:1"), PairSide("light_resnet50", "cpu:1"))
    arrangement = "cpu:1 + cpu:1, each on its own, of cpu:2"
    return PairResult(arrangement, "own units", "cpu:2", sides, rounds, co_location_figures(rounds))


def fit() -> FitResult:
    """On two cores, with and without a burst."""
    service = Service(2, (0.0096,), 0.0192, (0.0102,))
    latencies = Prediction(0.0102, 0.0201, 0.0304, 0.0123, 18.0, 0.001, 0.0402)
    limits = (CpuLimit(650, burst_us=65_000), CpuLimit(1000))
    ways = tuple(Alternative(2, 1, limit, latencies, 0.0447) for limit in limits)
    wanted = Fitting(rate_per_s=18, p99_s=0.05, cores=2)
    return FitResult(Path(MODEL), Measured(ONNX_RUNTIME, "1.31.1", (service,)), wanted, ways)


@cache
def plan() -> fractune.PlanResult:
    rows = [{"share": "1g", "batch": 8, "throughput_per_s": 400}, {"share": "3g", "batch": 8, "throughput_per_s": 950}]
    names = ("resnet50_with_a_long_name", "bert_with_a_long_name")
    models = [{"name": name, "rate_per_s": 900, "latency_ms": 200, "profile": rows} for name in names]
    return fractune.plan({"device": {"gpu": "A100-80GB"}, "models": models}, simulate=True)


def matches() -> MatchResult:
    operator = tuned_job().operators[0]
    reason = "exact share of the same device; the schedule was tuned at 1 core and lost nothing there"
    return MatchResult("cpu:1", (OperatorMatch(operator, How.EXACT, None, reason, record(ID)),) * 9, ROOF)


def records() -> Records:
    failed = record(ID, operator=OPERATOR, candidate_id=ID, status=Status.RUN_TIMEOUT, cause="took longer than 10 s")
    ran = record(ID, operator=OPERATOR, candidate_id=ID)
    return Records((ran, failed), 200, {"0123": Arithmetic(2e7, 1 << 20)}, {ID: ROOF})


def results() -> dict[str, Any]:
    """One of each type that functions of `fractune` return."""
    job = tuned_job()
    tuned = TuneResult(job, BundleFile(Path("/tmp/bundles") / "light_squeezenet.fractune", JOB), goal=goal())
    lost = slowdown((1.1,) * 11, (1.0,) * 11, interleaved=True)
    choice = VariantChoice("cpu:1", How.EXACT, 0.0, "exact", 1)
    table, shares = tuned.matrix.tables[0], {each.share: each.granted for each in job.results}
    return {
        "tune": tuned,
        "status": job,
        "matrix": Matrix((table,) * 13),
        "table": table,
        "knee": KneeResult((fastest_knee(table, shares, 0.1),) * 13, at_load_knee(table, shares, 0.1)),
        "noise": NoiseResult("cpu:1", OPERATOR, ADVICE, ("a note",), Path("noise.json"), noise_report()),
        "fit": fit(),
        "pair": pair(),
        "plan": plan(),
        "cost": costs(),
        "match": matches(),
        "records": records(),
        "compare": Comparison(lost, NOISE, NOISE, lost, NOISE, NOISE, 0.0, 1e-6, choice, choice),
    }
