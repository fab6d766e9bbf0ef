"""Tune deep-learning models for the share of a processor that they will run on, and run what was tuned.

    result = fractune.tune("model.onnx", shares=["cpu:1", "cpu:2"], trials=256)
    model = result.bundle.load(share="cpu:2")

docs/python.md describes every name in `__all__`. The packages below this one (`fractune.cli`, `fractune.local`, ...)
are how it is made, and change without notice; `fractune.errors` is the one module to import from.
"""

import importlib as _importlib
import os as _os
import typing as _typing

from fractune import errors as errors
from fractune_core import __version__ as __version__

if _typing.TYPE_CHECKING:
    from fractune.features.client import Client as Client
    from fractune.features.client import connect as connect
    from fractune.features.client import local_stack as local_stack
    from fractune.features.cost.cost import CostResult as CostResult
    from fractune.features.cost.cost import cost as cost
    from fractune.features.cost.job_cost import JobCost as JobCost
    from fractune.features.cost.job_cost import Prices as Prices
    from fractune.features.fuse.fuse import FusedModel as FusedModel
    from fractune.features.fuse.fuse import fuse as fuse
    from fractune.features.job import Job as Job
    from fractune.features.knee.knee import KneeResult as KneeResult
    from fractune.features.knee.knee import knee as knee
    from fractune.features.knee.report import KneeReport as KneeReport
    from fractune.features.log.log import Imported as Imported
    from fractune.features.log.log import Log as Log
    from fractune.features.log.log import Pruned as Pruned
    from fractune.features.log.log import Records as Records
    from fractune.features.log.match import MatchResult as MatchResult
    from fractune.features.log.match import match as match
    from fractune.features.matrix.cross_table import Cell as Cell
    from fractune.features.matrix.cross_table import CrossTable as CrossTable
    from fractune.features.matrix.matrix import Matrix as Matrix
    from fractune.features.matrix.matrix import matrix as matrix
    from fractune.features.noise.noise import NoiseResult as NoiseResult
    from fractune.features.noise.noise import noise as noise
    from fractune.features.pair.pair import PairResult as PairResult
    from fractune.features.pair.pair import pair as pair
    from fractune.features.pair.result import PairSide as PairSide
    from fractune.features.pair.result import RateLatency as RateLatency
    from fractune.features.plan.plan import plan as plan
    from fractune.features.plan.result import PlanResult as PlanResult
    from fractune.features.tune.bundle import BundleFile as BundleFile
    from fractune.features.tune.bundle import bundle as bundle
    from fractune.features.tune.goal_result import Goal as Goal
    from fractune.features.tune.goal_result import GoalEnd as GoalEnd
    from fractune.features.tune.goal_result import GoalStep as GoalStep
    from fractune.features.tune.goal_result import PeerTiming as PeerTiming
    from fractune.features.tune.goal_result import SideBySide as SideBySide
    from fractune.features.tune.result import TuneResult as TuneResult
    from fractune.features.tune.tune import tune as tune
    from fractune.inference.choosing import VariantChoice as VariantChoice
    from fractune.inference.comparing.compare import Comparison as Comparison
    from fractune.inference.comparing.compare import compare as compare
    from fractune.inference.model import Model as Model
    from fractune.inference.model import load as load
    from fractune.inference.session import InferenceSession as InferenceSession
    from fractune.inference.signatures import sign_bundle as sign_bundle
    from fractune.inference.signatures import verify_bundle as verify_bundle
    from fractune.server.job_status import JobStatus as JobStatus
    from fractune.server.job_status import OfferedShare as OfferedShare
    from fractune.server.job_status import OperatorMatch as OperatorMatch
    from fractune.server.job_status import OperatorStatus as OperatorStatus
    from fractune.server.job_status import ShareResult as ShareResult
    from fractune.server.job_status import Worker as Worker
    from fractune.text.rendering import Table as Table
    from fractune_core.analysis.match import Policy as Policy
    from fractune_core.analysis.noise import NoiseAdvice as NoiseAdvice
    from fractune_core.analysis.roofline import Arithmetic as Arithmetic
    from fractune_core.analysis.roofline import Roof as Roof
    from fractune_core.analysis.sharing import RoundTimes as RoundTimes
    from fractune_core.analysis.sharing import SharingFigures as SharingFigures
    from fractune_core.analysis.sharing import SideFigures as SideFigures
    from fractune_core.analysis.sharing import Verdict as Verdict
    from fractune_core.analysis.slowdown_ci import Estimate as Estimate
    from fractune_core.analysis.slowdown_ci import Slowdown as Slowdown
    from fractune_core.jobs import JobState as JobState
    from fractune_core.records import TuningRecord as TuningRecord
    from fractune_core.shares import Device as Device
    from fractune_core.shares import GrantedShare as GrantedShare
    from fractune_core.spending import Spending as Spending

# gRPC's core writes lines of its own to standard error when a server goes away; ours say it in one.
_os.environ.setdefault("GRPC_VERBOSITY", "NONE")

_HOMES = {
    "fractune.features.cost.cost": ("CostResult", "cost"),
    "fractune.features.fuse.fuse": ("FusedModel", "fuse"),
    "fractune.features.noise.noise": ("NoiseResult", "noise"),
    "fractune.features.plan.plan": ("plan",),
    "fractune.features.client": ("Client", "connect", "local_stack"),
    "fractune.features.job": ("Job",),
    "fractune.features.log.log": ("Imported", "Log", "Pruned", "Records"),
    "fractune.features.pair.pair": ("PairResult", "pair"),
    "fractune.features.tune.tune": ("tune",),
    "fractune.features.tune.bundle": ("BundleFile", "bundle"),
    "fractune.features.knee.knee": ("KneeResult", "knee"),
    "fractune.features.matrix.matrix": ("Matrix", "matrix"),
    "fractune.features.log.match": ("MatchResult", "match"),
    "fractune.features.plan.result": ("PlanResult",),
    "fractune.features.tune.result": ("TuneResult",),
    "fractune.features.cost.job_cost": ("JobCost", "Prices"),
    "fractune.features.tune.goal_result": ("Goal", "GoalEnd", "GoalStep", "PeerTiming", "SideBySide"),
    "fractune.inference.choosing": ("VariantChoice",),
    "fractune.inference.comparing.compare": ("Comparison", "compare"),
    "fractune.inference.model": ("Model", "load"),
    "fractune.inference.session": ("InferenceSession",),
    "fractune.inference.signatures": ("sign_bundle", "verify_bundle"),
    "fractune.server.job_status": (
        "JobStatus",
        "OfferedShare",
        "OperatorMatch",
        "OperatorStatus",
        "ShareResult",
        "Worker",
    ),
    "fractune.features.pair.result": ("PairSide", "RateLatency"),
    "fractune.features.matrix.cross_table": ("Cell", "CrossTable"),
    "fractune.features.knee.report": ("KneeReport",),
    "fractune.text.rendering": ("Table",),
    "fractune_core.analysis.match": ("Policy",),
    "fractune_core.analysis.noise": ("NoiseAdvice",),
    "fractune_core.analysis.sharing": ("RoundTimes", "SharingFigures", "SideFigures", "Verdict"),
    "fractune_core.analysis.slowdown_ci": ("Estimate", "Slowdown"),
    "fractune_core.jobs": ("JobState",),
    "fractune_core.records": ("TuningRecord",),
    "fractune_core.analysis.roofline": ("Arithmetic", "Roof"),
    "fractune_core.shares": ("Device", "GrantedShare"),
    "fractune_core.spending": ("Spending",),
}
"""where each name comes from: what is not asked for is not imported"""

_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Arithmetic",
    "BundleFile",
    "Cell",
    "Client",
    "Comparison",
    "CostResult",
    "CrossTable",
    "Device",
    "Estimate",
    "FusedModel",
    "Goal",
    "GoalEnd",
    "GoalStep",
    "GrantedShare",
    "Imported",
    "InferenceSession",
    "Job",
    "JobCost",
    "JobState",
    "JobStatus",
    "KneeReport",
    "KneeResult",
    "Log",
    "MatchResult",
    "Matrix",
    "Model",
    "NoiseAdvice",
    "NoiseResult",
    "OfferedShare",
    "OperatorMatch",
    "OperatorStatus",
    "PairResult",
    "PairSide",
    "PeerTiming",
    "PlanResult",
    "Policy",
    "Prices",
    "Pruned",
    "RateLatency",
    "Records",
    "Roof",
    "RoundTimes",
    "ShareResult",
    "SharingFigures",
    "SideBySide",
    "SideFigures",
    "Slowdown",
    "Spending",
    "Table",
    "TuneResult",
    "TuningRecord",
    "VariantChoice",
    "Verdict",
    "Worker",
    "bundle",
    "compare",
    "connect",
    "cost",
    "errors",
    "fuse",
    "knee",
    "load",
    "local_stack",
    "match",
    "matrix",
    "noise",
    "pair",
    "plan",
    "sign_bundle",
    "tune",
    "verify_bundle",
]


def __getattr__(name: str) -> _typing.Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    found = getattr(_importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
