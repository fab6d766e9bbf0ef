"""Texts of an operator's workloads and of its candidates, and the names that follow from them.

Implementations of an operator are other programs for the same computation, named in a candidate's text. The direct
implementation is the operator's own TIR, and has no name. A candidate of another one is written `winograd2:[[...`: its
name, a colon, and MetaSchedule's trace for that program. A trace alone begins with a bracket, so candidates from before
other implementations read the same.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from fractune_core.errors import BadRequest

DIRECT = ""
WINOGRAD2, WINOGRAD4 = "winograd2", "winograd4"
"""tiles of 2 x 2 and of 4 x 4 outputs (Lavin and Gray, CVPR 2016)"""
INT8, INT16 = "int8", "int16"
"""Products of whole numbers, added up in int32: unsigned by signed bytes, and pairs of 16 bits. They are exact."""
NO_DECISIONS = "[]"
"""In the place of a trace: the implementation leaves nothing to decide. The tilings of a recurrence are such, called
`packed4x16units` for example: packed weights, blocks of 4 rows and 16 units, and units that the cores share."""
TRITON = "triton"
"""Kernels of Triton's compiler for NVIDIA GPUs. In the place of a trace are the decisions of a kernel."""
INEXACT = frozenset({WINOGRAD2, WINOGRAD4, TRITON})
"""implementations that round otherwise than the operator itself, beyond the order of additions"""
_HASH = re.compile(r"[0-9a-f]{64}")


def implementation_of(text: str) -> str:
    """The name of the implementation in a candidate's text; DIRECT for a trace alone."""
    name, colon, trace = text.partition(":")
    return name if colon and trace.startswith("[") and name.isalnum() else DIRECT


def trace_of(text: str) -> str:
    """The trace in a candidate's text."""
    name = implementation_of(text)
    return text if name == DIRECT else text[len(name) + 1 :]


def text_of(implementation: str, trace: str) -> str:
    """The candidate's text; the inverse of `implementation_of` and `trace_of`."""
    return trace if implementation == DIRECT else f"{implementation}:{trace}"


def is_exact(text: str) -> bool:
    """Whether a candidate does the operator's own arithmetic, except for the order of additions."""
    return implementation_of(text) not in INEXACT


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
