"""Which part each of two gets, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from fractune.features.pair.arrangement import Arrangement, arrange
from fractune_core.errors import BadRequest, FractuneError, ShareUnavailable


def arranged(kind: str = "cpu", cores: int = 4, **asked: Any) -> Arrangement:
    return arrange(kind, **{"shares": None, "overlap": None, "interleaved": False, "cores": range(cores), **asked})


def places(found: Arrangement) -> list[tuple[str, tuple[int, ...]]]:
    whole = [found.whole] if found.whole else []
    return [(str(place.share), place.cores) for place in (*found.placements, *whole)]


def test_shares_of_their_own_lie_on_cores_of_their_own_and_the_whole_is_both() -> None:
    found = arranged(shares="cpu:1,cpu:2")
    assert places(found) == [("cpu:1", (0,)), ("cpu:2", (1, 2)), ("cpu:3", (0, 1, 2))]
    assert str(found) == "cpu:1 + cpu:2, each on its own, of cpu:3"


def test_an_overlap_is_the_same_cores_for_both_and_is_the_whole() -> None:
    found = arranged(overlap="cpu:2")
    assert places(found) == [("cpu:2", (0, 1))] * 3
    assert (found.interleaved, str(found)) == (False, "both at cpu:2, at the same time")


def test_interleaved_is_on_the_whole_machine_or_on_the_share_that_is_named() -> None:
    assert places(arranged(interleaved=True)) == [("cpu:4", (0, 1, 2, 3))] * 3
    found = arranged(interleaved=True, overlap="cpu:2")
    assert places(found) == [("cpu:2", (0, 1))] * 3
    assert (found.interleaved, str(found)) == (True, "both at cpu:2, alternately")


@pytest.mark.parametrize(
    ("cores", "wanted"),
    [
        (2, [("cpu:1", (0,)), ("cpu:1", (1,)), ("cpu:2", (0, 1))]),
        (5, [("cpu:2", (0, 1)), ("cpu:2", (2, 3)), ("cpu:4", (0, 1, 2, 3))]),
        (1, [("cpu:1", (0,))] * 3),
    ],
)
def test_nothing_said_is_half_for_each_and_one_core_for_both_where_there_is_one(
    cores: int, wanted: list[tuple[str, tuple[int, ...]]]
) -> None:
    assert places(arranged(cores=cores)) == wanted


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({}, [("mps:50", ()), ("mps:50", ()), ("mps:100", ())]),
        ({"shares": "mps:25,mps:75"}, [("mps:25", ()), ("mps:75", ()), ("mps:100", ())]),
        ({"overlap": "mps:60"}, [("mps:60", ())] * 3),
        ({"interleaved": True}, [("full", ())] * 3),
        ({"shares": "mig:1g.18gb,mig:1g.18gb"}, [("mig:1g.18gb", ())] * 2),  # a divided GPU has no whole
        ({"shares": "mps-sm:4,mps-sm:8"}, [("mps-sm:4", ()), ("mps-sm:8", ())]),
    ],
)
def test_a_gpu_is_arranged_by_the_same_rules(asked: dict[str, Any], wanted: list[Any]) -> None:
    found = arranged("cuda", **asked)
    assert places(found) == wanted
    assert not found.is_verified


@pytest.mark.parametrize(
    ("kind", "asked", "error", "says"),
    [
        ("cpu", {"shares": "cpu:1,cpu:1", "overlap": "cpu:2"}, BadRequest, "give one of them"),
        ("cpu", {"shares": "cpu:1,cpu:1", "interleaved": True}, BadRequest, "give one of them"),
        ("cpu", {"shares": "cpu:1"}, BadRequest, "name two"),
        ("cpu", {"shares": "cpu:1,cpu:1,cpu:1"}, BadRequest, "name two"),
        ("cpu", {"shares": "cpu:0,cpu:1"}, BadRequest, "'0' is not a size"),
        ("cpu", {"shares": "mps:50,mps:50"}, BadRequest, "the bundle is for a CPU"),
        ("cuda", {"overlap": "cpu:1"}, BadRequest, "the bundle is for a GPU"),
        ("cuda", {"shares": "mps:50,mig:1g.18gb"}, BadRequest, "by one mechanism"),
        ("cuda", {"shares": "full,full"}, BadRequest, "by one mechanism"),
        ("cuda", {"shares": "green:8,green:8"}, BadRequest, "must be under its share as a whole"),
        ("cpu", {"shares": "cpu:3,cpu:2"}, ShareUnavailable, "takes 5 cores, and 4 may be used here"),
        ("cpu", {"overlap": "cpu:5"}, ShareUnavailable, "takes 5 cores, and 4 may be used here"),
        ("cuda", {"shares": "mps:60,mps:50"}, ShareUnavailable, "exceed the whole GPU"),
        ("cpu", {"shares": "cpu:500m,cpu:1"}, BadRequest, "a CPU limit reserves no cores, .* by fractune fit"),
    ],
)
def test_what_cannot_be_meant_or_had_is_refused(
    kind: str, asked: dict[str, Any], error: type[FractuneError], says: str
) -> None:
    with pytest.raises(error, match=says):
        arranged(kind, **asked)
