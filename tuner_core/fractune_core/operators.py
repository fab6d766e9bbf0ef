"""Operators of a model: the texts of their workloads and candidates, and the names that follow from them.

The recorder checks an operator's numbers again. The refusal of a node of an ONNX file is a text for people, from which
a client learns the node again.

Implementations of an operator are other programs for the same computation, named in a candidate's text. The direct
implementation is the operator's own TIR, and has no name. A candidate of another one is written `winograd2:[[...`: its
name, a colon, and MetaSchedule's trace for that program. A trace alone begins with a bracket, so candidates from before
other implementations read the same.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fractune_core.errors import BadModel, BadRequest, shortened

MOST_NAME_CHARACTERS = 200
_MOST_TIMES = 2**31 - 1
_MOST_BYTES = 2**63 - 1
_WRONG_SHOWN = 80
UNKNOWN = "no kernel computes this operator"
_SHOWN = 200
"""characters of a name"""
_REFUSED = re.compile(r"cannot import node (with output )?'(.*?)' \(([^()' ]+)\): (.*)", re.DOTALL)
_ALSO = re.compile(r"\(also unsupported: ([^()]*)\)")


def check_operator(name: str, weight: int, flops: float, io_bytes: int, written_bytes: int) -> None:
    """Raises BadModel for an operator of a model whose name or numbers the log cannot hold."""
    if not (0 < len(name) <= MOST_NAME_CHARACTERS and name.isprintable()):
        raise BadModel(
            f"has an operator named {shortened(ascii(name), _WRONG_SHOWN)}; name its function by 1 to "
            f"{MOST_NAME_CHARACTERS} printable characters"
        )
    _check_number(flops, math.inf, f"operator '{name}' takes", "operations")
    _check_number(io_bytes, _MOST_BYTES + 1, f"operator '{name}' reads and writes", "bytes")
    _check_number(written_bytes, io_bytes + 1, f"operator '{name}' writes", "bytes")
    _check_number(weight, _MOST_TIMES + 1, f"operator '{name}' runs", "times")


def _check_number(number: float, beyond: float, does: str, what: str) -> None:
    if not 0 <= number < beyond:
        raise BadModel(f"{does} {number:g} {what}, which cannot be; export the model with smaller loops")


@dataclass(frozen=True)
class RefusedNode:
    name: str
    """of the node; empty if it has none"""
    output: str
    """its first, if it has no name"""
    operators: tuple[str, ...]
    """no node of these operators can be imported; empty if another node of the same operator may be"""

    def is_node(self, name: str, output: str, operator: str) -> bool:
        """Whether a node with this name, first output and operator is refused."""
        if operator in self.operators:
            return True
        return shortened(name, _SHOWN) == self.name if self.name else shortened(output, _SHOWN) == self.output


def node_text(name: str, output: str, operator: str) -> str:
    """The node by its name, or by its first output: exporters leave node names empty."""
    called = f"node '{shortened(name, _SHOWN)}'" if name else f"node with output '{shortened(output, _SHOWN)}'"
    return f"{called} ({operator})"


def refusal_text(opset: int, node: str, why: str) -> str:
    """`node` is its `node_text`."""
    return f"opset {opset}: cannot import {node}: {why}"


def unknown_text(others: Sequence[str]) -> str:
    """Why a node of an unknown operator is refused; `others` are more unknown operators of the model."""
    also = f" (also unsupported: {', '.join(others)})" if others else ""
    return f"{UNKNOWN}{also}; export without it"


def refused_node(message: str) -> RefusedNode | None:
    """The node that an error is about, None if it is about something else."""
    found = _REFUSED.search(message)
    if found is None:
        return None
    by_output, name, operator, why = found.groups()
    others: list[str] = []
    if why.startswith(UNKNOWN):
        also = _ALSO.search(why)
        others = [operator, *(also[1].split(", ") if also else [])]
    return RefusedNode("" if by_output else name, name if by_output else "", tuple(others))


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
