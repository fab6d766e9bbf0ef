"""Implementations of an operator: other programs for the same computation, named in a candidate's text.

The direct implementation is the operator's own TIR, and has no name. A candidate of another one is written
`winograd2:[[...`: its name, a colon, and MetaSchedule's trace for that program. A trace alone begins with a bracket, so
candidates from before other implementations read the same.
"""

from __future__ import annotations

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
