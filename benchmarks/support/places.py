"""The places of a model where both sides tune an operator, each its own: the same one, or its plain counterpart."""

from dataclasses import dataclass
from typing import Any

from benchmarks.support.models import INGEST_TIMEOUT_S, Model, Operator, heavy, operators_of
from benchmarks.support.processes import import_path
from fractune_workers.child import Child


@dataclass(frozen=True)
class Places:
    """The operators of a model that both sides tune."""

    model: Model
    matches: list[dict[str, Operator]]
    """by side, `stock` or `ours`, its tuned operator at the same places of the model"""
    left_out: dict[str, str]
    """by name of our operator, why it has no counterpart"""

    @property
    def operators(self) -> list[Operator]:
        """Ours."""
        return [match["ours"] for match in self.matches]

    def names(self, side: str) -> str:
        """As `fractune tune --only` takes them."""
        return ",".join(match[side].name for match in self.matches)


def places_of(model: Model, target: str, count: int, *, is_plain: bool) -> Places:
    """Of the first `count` heavy operators; with `is_plain` those that have a plain counterpart. `target`: as of
    `operators_of`. Raises SystemExit where none has one.
    """
    operators = heavy(operators_of(model, target), model.kinds, count)
    if not is_plain:
        return Places(model, [{"stock": operator, "ours": operator} for operator in operators], {})
    plain, why_not = _plain_operators(model, target)
    matches = [{"stock": plain[op.workload_hash], "ours": op} for op in operators if op.workload_hash in plain]
    left_out = {op.name: why_not[op.workload_hash] for op in operators if op.workload_hash not in plain}
    if not matches:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise SystemExit(f"benchmarks: no operator of {model.name} has a plain counterpart, take another ({reasons})")
    return Places(model, matches, left_out)


def _plain_operators(model: Model, target: str) -> tuple[dict[str, Operator], dict[str, str]]:
    """By workload hash of our operators of the model's kinds: the plain counterpart, or the reason why it has none."""
    child = Child("benchmarks.support.plain_child", env={"PYTHONPATH": import_path()})
    try:
        reply: dict[str, Any] = child.call(
            "match", INGEST_TIMEOUT_S, path=str(model.path), inputs=model.inputs, target=target, kinds=model.kinds
        )
    finally:
        child.stop()
    return {own: Operator(**other) for own, other in reply["counterparts"].items()}, reply["why_not"]
