"""Rounds: the candidates of one operator that are under way together."""

from __future__ import annotations

from dataclasses import dataclass, field

from fractune_core.records import Kind
from fractune_core.shares import GrantedShare


@dataclass
class Round:
    """Kept in the store while it lasts, so that a restarted server knows what is under way."""

    round_id: str
    job: str
    """that asked for it first"""
    kind: Kind
    workload_hash: str
    instance: str
    """the tuner instance that searches; empty for validations"""
    asked: int
    """candidates asked for"""
    candidates: list[str] | None = None
    """None until the tuner instance has proposed them"""
    granted: dict[str, GrantedShare] = field(default_factory=dict)
    """by share as text: where the candidates are measured"""
