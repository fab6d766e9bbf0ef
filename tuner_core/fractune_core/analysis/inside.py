"""The time of each call inside a model.

An operator that is measured alone meets warm caches, and no other kernel runs before it. Inside the model it may take
longer. The rest of a model's time is in kernels that were not tuned, and in what TVM's virtual
machine does between them, where the model needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256

from fractune_core.codec.plain_json import JsonObject
from fractune_core.errors import one_line

KEPT = 200
"""calls by name that are kept; the others are summed up"""
OTHERS, BETWEEN = "other calls", "between calls"
SLOWER, _COUNTS = 1.3, 0.01
"""An operator is marked whose time inside is more than so many times the one alone, by at least this part of the model.
Less may be the time of the clock at each call."""
MACHINE = "vm.builtin."
"""how the names of the virtual machine's own calls begin"""
_LONGEST_NAME, _MOST_CALLS = 80, 2**31
_SHORTEST_S, _LONGEST_S = 1e-9, 1e6
"""of a model; sums and ratios of such times are numbers"""


def is_slower(inside_s: float, alone_s: float, whole_s: float) -> bool:
    """Whether an operator takes much longer inside a model of `whole_s` seconds than alone."""
    return inside_s > SLOWER * alone_s and inside_s - alone_s >= _COUNTS * whole_s


def why_slower(inside_s: float, alone_s: float, whole_s: float, from_memory_s: float | None) -> str:
    """Why an operator takes much longer inside a model of `whole_s` seconds than alone; empty if it does not.

    `from_memory_s`: seconds of reading and writing all its data in memory; None = not known.
    """
    if not is_slower(inside_s, alone_s, whole_s):
        return ""
    if from_memory_s is not None and inside_s - alone_s <= from_memory_s:
        return "its data comes from memory there"
    return "the cause is not known"


def slower_notes(whys: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The note on the mark `+` of operators, from their names, each with why it is slower; none without a mark."""
    found: dict[str, dict[str, None]] = {}
    for name, why in whys:
        if why:
            found.setdefault(why, {})[name] = None
    causes = "; ".join(f"{', '.join(names)} ({why})" for why, names in found.items())
    note = f"+ inside the model an operator takes more than {SLOWER} times as long as alone: {causes}"
    return (note,) if found else ()


@dataclass(frozen=True)
class CallTime:
    """All calls of one name in one inference."""

    name: str
    calls: int
    secs: float
    """of all these calls together, the least of the runs"""
    workload_hash: str = ""
    """of the operator that the kernel of this name computes; empty for any other call"""
    candidate: str = ""
    """the operator's schedule; empty for the untuned default, and for any other call"""


@dataclass(frozen=True)
class Inside(JsonObject):
    """One inference of a variant, call by call."""

    calls: tuple[CallTime, ...]
    """the slowest first"""
    whole_s: float
    """of an inference without a clock at its calls, the least of the runs"""
    clocked_s: float
    """with a clock, which lengthens it"""

    def brief(self, kernels: Mapping[str, str], candidates: Mapping[str, str]) -> Inside:
        """The slowest calls by name, and one row for the others. A long name is cut: a kernel's joins those of all
        operations in it. `kernels` are workload hashes by kernel, and `candidates` schedules by workload hash.
        """
        calls = []
        for each in self.calls:
            own = kernels.get(each.name, "")
            calls.append(replace(each, name=_cut(each.name), workload_hash=own, candidate=candidates.get(own, "")))
        if len(calls) > KEPT:
            others = calls[KEPT - 1 :]
            rest = CallTime(OTHERS, sum(each.calls for each in others), sum(each.secs for each in others))
            calls = [*calls[: KEPT - 1], rest]
        return replace(self, calls=tuple(calls))

    def check(self) -> None:
        """Raises ValueError for what no model has, or `brief` does not leave."""
        if len(self.calls) > KEPT:
            raise ValueError(f"{len(self.calls)} calls by name are more than {KEPT}")
        if not all(_SHORTEST_S <= each <= _LONGEST_S for each in (self.whole_s, self.clocked_s)):
            raise ValueError("a model's time is too short, or too long")
        if not all(0 <= each.secs <= _LONGEST_S and 0 <= each.calls < _MOST_CALLS for each in self.calls):
            raise ValueError("a call's time or number is negative, or too large")
        names = [name for each in self.calls for name in (each.name, each.workload_hash, each.candidate)]
        if any(not name.isprintable() or len(name) > _LONGEST_NAME for name in names):
            raise ValueError(f"a call's name is not printable, or longer than {_LONGEST_NAME} characters")

    def of_operator(self, workload_hash: str) -> list[CallTime]:
        """The calls of the kernels that compute the operator."""
        return [each for each in self.calls if each.workload_hash == workload_hash]

    @property
    def between_s(self) -> float:
        """Seconds between the calls; 0 if the calls took longer with the clock than the model without it."""
        return max(0.0, self.whole_s - sum(each.secs for each in self.calls))


def _cut(name: str) -> str:
    """The name, printable, or its begin and a digest: two long ones stay apart."""
    name = one_line(name)
    if len(name) <= _LONGEST_NAME:
        return name
    digest = sha256(name.encode()).hexdigest()[:8]
    return f"{name[: _LONGEST_NAME - len(digest) - 1]}~{digest}"
