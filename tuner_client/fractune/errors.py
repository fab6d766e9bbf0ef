"""The errors that fractune raises, all of them a FractuneError: docs/exit-codes.md says when, and what to do."""

from fractune_core.errors import (
    BadBundle,
    BadModel,
    BadRequest,
    FractuneError,
    JobCancelled,
    JobFailed,
    NotFound,
    PlanInfeasible,
    QuotaExceeded,
    RedisGone,
    ServerUnreachable,
    ShareNotReady,
    ShareUnavailable,
    StateUnusable,
)

__all__ = [
    "BadBundle",
    "BadModel",
    "BadRequest",
    "FractuneError",
    "JobCancelled",
    "JobFailed",
    "NotFound",
    "PlanInfeasible",
    "QuotaExceeded",
    "RedisGone",
    "ServerUnreachable",
    "ShareNotReady",
    "ShareUnavailable",
    "StateUnusable",
]
