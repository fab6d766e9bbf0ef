"""Texts of an operator's workloads, and the names that follow from them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from fractune_core.errors import BadRequest
from fractune_core.implementations import DIRECT

_HASH = re.compile(r"[0-9a-f]{64}")


def joined_workloads(graphs: Mapping[str, Any]) -> str:
    """The text of an operator: the canonical forms of its implementations by name, the direct one's name is empty."""
    return json.dumps(graphs, separators=(",", ":"), sort_keys=True)


def parted_workloads(text: str) -> dict[str, Any]:
    """The canonical form of each implementation by name, the direct one first; the inverse of `joined_workloads`."""
    found = json.loads(text)
    return {DIRECT: found[DIRECT], **found}


def workload_hash(text: str) -> str:
    """64 hex digits that name an operator everywhere: the SHA-256 of its text.

    The text has all implementations, because a candidate's trace is for the program of one of them.
    """
    return hashlib.sha256(text.encode()).hexdigest()


def is_workload_hash(name: str) -> bool:
    return _HASH.fullmatch(name) is not None


def check_workload(name: str, text: str) -> None:
    """Raises BadRequest unless the text is the one that the name stands for."""
    if not is_workload_hash(name):
        raise BadRequest(f"workload '{name}': that is not a workload hash, which is a SHA-256")
    if workload_hash(text) != name:
        raise BadRequest(f"workload {name}: its text has another SHA-256, {workload_hash(text)}; export the log again")
