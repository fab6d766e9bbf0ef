"""Costs of work in the fleet: the ledger's entries, one for each piece of work."""

from dataclasses import dataclass

MEASURING = ("measure", "time_model")
"""work that holds a share; all other work takes CPU time"""


@dataclass(frozen=True)
class WorkCost:
    """Cost of one piece of work, as its worker reports it."""

    work_id: str
    job: str
    """the job that requested it first, where others wait for it too"""
    task: str
    """kind of work: `Work.task`"""
    share: str
    """share of the measurement; empty for work that measures nothing"""
    worked_s: float
    """from its beginning to its end, without waiting for cores or a GPU"""
    cpu_s: float
    """CPU time of the worker and its children during the work"""
    ended_at: float
    """seconds since 1970, by the worker's clock"""


@dataclass(frozen=True)
class Spending:
    """Total cost of one kind of work."""

    task: str
    share: str
    pieces: int
    worked_s: float
    cpu_s: float
