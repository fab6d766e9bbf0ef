"""Names of several values."""

from __future__ import annotations

from itertools import combinations

import pytest

from fractune_core.names import digest_of
from fractune_core.records import candidate_id, record_id


def test_a_digest_knows_where_one_value_ends() -> None:
    values = [("a", "b"), ("ab",), ("a", "b", ""), ("", "a", "b"), ("a\nb",), ("a", ("b",)), ("a", ["b", ""]), ()]
    digests = [digest_of(*each) for each in values]
    assert all(len(each) == 32 and int(each, 16) >= 0 for each in digests)
    assert all(one != other for one, other in combinations(digests, 2))
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    assert len({digest_of(each) for each in (1, "1", 1.5, True, None)}) == 5


@pytest.mark.parametrize("name", [candidate_id, record_id])
def test_no_two_candidates_or_records_share_a_name(name: object) -> None:
    """With parts that only a line break kept apart, these were one."""
    assert callable(name)
    assert name("w", "target\n", "[]") != name("w", "target", "\n[]")
    assert name("w\n", "target", "[]") != name("w", "\ntarget", "[]")
