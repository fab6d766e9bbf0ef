"""The correspondence of operators: a plain operator and ours are counterparts if they are called at the same places.

Both models come from the same file, and no pass changes the order of the computation. So the third convolution of one
model is the third of the other, if both have as many. Two operators are counterparts if all calls of the one are at the
places of all calls of the other, so that their weights are equal. Both must also be fused with the same steps. Steps
that only scale and shift by constants do not count: planning puts a batch normalisation into the weights before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_LEAST_FLOPS, _MOST_FLOPS = 0.5, 2.0
"""of ours over the plain one's: a block filled up adds some, a normalisation in the weights saves some"""
_NO_STEPS = frozenset({"fused", "add", "subtract", "multiply", "divide"})
"""words in an operator's name"""


@dataclass(frozen=True)
class Call:
    """One call of an operator, as a fused model makes it."""

    name: str
    """the operator's: `fused_conv2d4_add1_relu1`"""
    workload_hash: str
    flops: float
    """arithmetic operations, as TVM estimates them"""
    computed: int
    """operands that are not constants"""


def counterparts(
    ours: Sequence[Call], plain: Sequence[Call], kinds: Sequence[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """By workload hash of ours, of the operators with one of `kinds` in the name: the workload hash of the plain
    counterpart; and of those that have none, why not.

    Both models' calls come in the order in which they are made.
    """
    found: dict[str, str] = {}
    why_not: dict[str, str] = {}
    for kind in kinds:
        own, theirs = ([call for call in calls if _kind(call, kinds) == kind] for calls in (ours, plain))
        if len(own) != len(theirs):
            reason = f"our model calls {kind} {len(own)} times, the plain one {len(theirs)} times"
            why_not |= {call.workload_hash: reason for call in own}
            continue
        for call, other in zip(own, theirs, strict=True):
            reason = _difference(call, other) or _elsewhere(call, other, own, theirs)
            found[call.workload_hash] = other.workload_hash
            why_not |= {call.workload_hash: reason} if reason else {}
    return {name: other for name, other in found.items() if name not in why_not}, why_not


def _kind(call: Call, kinds: Sequence[str]) -> str | None:
    return next((kind for kind in kinds if kind in call.name), None)


def _difference(call: Call, other: Call) -> str:
    """Empty where both do the same work."""
    same_steps = _steps(call.name) == _steps(other.name) and call.computed == other.computed
    if same_steps and _LEAST_FLOPS * other.flops < call.flops < _MOST_FLOPS * other.flops:
        return ""
    return f"the plain one in its place is {other.name} ({other.flops:.3g} operations, ours {call.flops:.3g})"


def _elsewhere(call: Call, other: Call, own: Sequence[Call], theirs: Sequence[Call]) -> str:
    """Empty where both are called at the same places."""
    places = _places(call, own)
    return (
        "" if places == _places(other, theirs) else f"{other.name} is not called at all of its places, or at others too"
    )


def _places(call: Call, calls: Sequence[Call]) -> list[int]:
    return [place for place, each in enumerate(calls) if each.workload_hash == call.workload_hash]


def _steps(name: str) -> list[str]:
    """The steps of a fused operator, by its name, except scaling and shifting."""
    return [word for part in name.split("_") if (word := part.rstrip("0123456789")) not in _NO_STEPS]
