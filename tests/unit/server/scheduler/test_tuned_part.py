"""How much of a model's work its tuned operators do."""

from __future__ import annotations

from fractune_core.analysis.roofline import Arithmetic
from fractune_server.scheduler.finalists import tuned_part

WEIGHTS = {"conv": 3, "copy": 1}
ARITHMETIC = {"conv": Arithmetic(1000.0, 64), "copy": Arithmetic(0.0, 30)}


def test_operators_count_by_their_operations_and_copies_by_their_bytes() -> None:
    assert tuned_part(WEIGHTS, ARITHMETIC, ["conv", "copy"]) == 1.0
    assert tuned_part(WEIGHTS, ARITHMETIC, ["conv"]) == 3000 / 3030
    assert tuned_part(WEIGHTS, ARITHMETIC, ["copy"]) == 30 / 3030
    assert tuned_part(WEIGHTS, ARITHMETIC, []) == 0.0


def test_what_is_not_known_is_no_reason_to_refuse() -> None:
    assert tuned_part(WEIGHTS, {}, ["copy"]) == 1.0
    assert tuned_part(WEIGHTS, {}, []) == 0.0
