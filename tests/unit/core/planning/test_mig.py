"""MIG's placement table: what fits onto a GPU, counted; what does not is found and said."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fractune_core.planning.devices import (
    PLAIN,
    PROFILES,
    Placed,
    Profile,
    placements,
)
from tests.support.mig_layouts import broken_rule, layouts, maximal

ALL = layouts()


def names(layout: frozenset[Placed]) -> tuple[str, ...]:
    return tuple(sorted(profile.name for profile, _ in layout))


def test_the_layouts_of_a_gpu_are_those_that_are_known() -> None:
    """297 layouts, 19 of them maximal, of 14 kinds: counted from NVIDIA's placements by hand."""
    found = ALL
    assert len(found) == 297
    assert len(maximal(found)) == 19
    kinds = {names(each) for each in maximal(found)}
    assert len(kinds) == 14
    assert ("1g", "1g", "2g", "3g") in kinds
    assert ("1g", "1g", "1g", "4g") in kinds


def test_every_layout_that_is_listed_is_valid() -> None:
    for each in layouts(PROFILES):
        assert not broken_rule(list(each))


@given(st.lists(st.tuples(st.sampled_from(PLAIN), st.integers(0, 7)), min_size=1, max_size=7))
def test_a_layout_is_valid_exactly_when_it_is_listed(drawn: list[tuple[Profile, int]]) -> None:
    is_listed = frozenset(drawn) in ALL and len(set(drawn)) == len(drawn)
    assert is_listed is not bool(broken_rule(drawn))


@given(st.lists(st.sampled_from(PROFILES), min_size=1, max_size=7))
def test_every_placement_is_a_valid_layout(profiles: list[Profile]) -> None:
    for each in placements(profiles):
        assert not broken_rule(each)
