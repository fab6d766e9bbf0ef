"""Searches stay with the tuner instance that knows them."""

from __future__ import annotations

from fractune_server.engine.rounds import SearchOwners
from fractune_server.store.records.log import LogKey

FIRST, SECOND, THIRD = (LogKey(name * 16, "target", "device") for name in "abc")


def test_a_search_goes_on_where_it_is_known_until_its_instance_is_gone() -> None:
    owners = SearchOwners()
    assert owners.may_search(FIRST, "one")
    assert owners.give(FIRST, "one")
    assert not owners.give(FIRST, "one")
    assert owners.may_search(FIRST, "one")
    assert not owners.may_search(FIRST, "two")
    owners.drop({"one"})
    assert owners.may_search(FIRST, "two")
    assert owners.give(FIRST, "two")
    owners.forget(FIRST)
    assert owners.may_search(FIRST, "one")
    assert owners.give(FIRST, "two")


def test_of_many_searches_those_not_asked_for_the_longest_time_are_new_again() -> None:
    owners = SearchOwners(kept=2)
    for search in (FIRST, SECOND, FIRST, THIRD):
        owners.give(search, "one")
    assert owners.may_search(SECOND, "two")
    assert not owners.may_search(FIRST, "two")
    assert not owners.give(THIRD, "one")
