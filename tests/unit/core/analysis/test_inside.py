"""What is kept of the calls inside a model passes the check of a server."""

from __future__ import annotations

import pytest

from fractune_core.analysis.inside import KEPT, OTHERS, CallTime, Inside, slower_notes


def test_names_of_hundreds_of_operations_are_kept_apart() -> None:
    long = "fused_" + "_".join(["add", "abs"] * 200)
    inside = Inside((CallTime(long, 1, 2e-3), CallTime(f"{long}1", 1, 1e-3)), 4e-3, 5e-3)
    with pytest.raises(ValueError, match="longer than"):
        inside.check()
    kept = inside.brief({long: "a hash"}, {"a hash": "a schedule"})
    kept.check()
    first, second = kept.calls
    assert first.name != second.name
    assert long.startswith(first.name.partition("~")[0])
    assert (first.workload_hash, first.candidate) == ("a hash", "a schedule")
    assert (second.workload_hash, second.candidate) == ("", "")


@pytest.mark.parametrize("name", ["two\nlines", "nu\0l", "half \ud800", "\x1b" * 500, "näme" * 500])
def test_a_name_of_any_characters_can_be_kept(name: str) -> None:
    kept = Inside((CallTime(name, 1, 2e-3),), 4e-3, 5e-3).brief({name: "a hash"}, {})
    kept.check()
    assert kept.calls[0].workload_hash == "a hash"


def test_calls_beyond_the_slowest_are_one_row() -> None:
    calls = tuple(CallTime(f"call{number}", 2, 1e-3) for number in range(KEPT + 5))
    kept = Inside(calls, 1.0, 1.0).brief({}, {})
    kept.check()
    assert kept.calls[-1].name == OTHERS
    assert sum(each.calls for each in kept.calls) == 2 * len(calls)
    assert sum(each.secs for each in kept.calls) == pytest.approx(len(calls) * 1e-3)


def test_operators_that_are_slower_for_one_cause_stand_together() -> None:
    (note,) = slower_notes([("conv", "cold"), ("pool", ""), ("dense", "odd"), ("add", "cold"), ("conv", "cold")])
    assert note.endswith("alone: conv, add (cold); dense (odd)")
    assert slower_notes([("pool", "")]) == ()
