"""MIG's placement table: what fits onto a GPU, counted; what does not is found and said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractune_core.errors import BadRequest
from fractune_core.planning.mig import (
    BY_NAME,
    PLAIN,
    PROFILES,
    Placed,
    Profile,
    check_layout,
    layouts,
    maximal,
    overlaps,
    placements,
)

ALL = layouts()


def placed(*names_and_places: tuple[str, int]) -> list[Placed]:
    return [(BY_NAME[name], place) for name, place in names_and_places]


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
        check_layout(list(each))


@given(st.lists(st.tuples(st.sampled_from(PLAIN), st.integers(0, 7)), min_size=1, max_size=7))
def test_a_layout_is_valid_exactly_when_it_is_listed(drawn: list[tuple[Profile, int]]) -> None:
    try:
        check_layout(drawn)
    except BadRequest:
        assert frozenset(drawn) not in ALL or len(set(drawn)) < len(drawn)
    else:
        assert frozenset(drawn) in ALL


@given(st.lists(st.sampled_from(PROFILES), min_size=1, max_size=7))
def test_every_placement_is_a_valid_layout(profiles: list[Profile]) -> None:
    for each in placements(profiles):
        check_layout(each)


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        (placed(("2g", 1)), "a 2g cannot begin at memory slice 1; it can at 0, 2, 4"),
        (placed(("4g", 4)), "a 4g cannot begin at memory slice 4; it can at 0"),
        (placed(("3g", 4), ("1g", 6)), "3g at 4 and 1g at 6 overlap"),
        (placed(("7g", 0), ("7g", 0)), "7g at 0 and 7g at 0 overlap"),
        (placed(("1g+me", 0), ("1g+me", 1)), "2 of 1g+me; a GPU has 1 at most"),
    ],
)
def test_a_layout_that_no_gpu_has_is_refused(layout: list[Placed], says: str) -> None:
    with pytest.raises(BadRequest, match=says.replace("+", r"\+")):
        check_layout(layout)


def test_overlaps_are_told_pair_by_pair() -> None:
    layout = placed(("3g", 0), ("2g", 2), ("1g", 3), ("1g", 6))
    assert [(one[0].name, other[0].name) for one, other in overlaps(layout)] == [
        ("3g", "2g"),
        ("3g", "1g"),
        ("2g", "1g"),
    ]
