"""Places for requests on their way in, taken by real threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from fractune_core.errors import QuotaExceeded
from fractune_server.access.places import Places


def test_one_caller_has_at_most_half_and_the_others_still_get_in() -> None:
    places = Places(4, "large requests", wait_s=0.01)
    with ExitStack() as held:
        for _ in range(2):
            held.enter_context(places.place("greedy"))
        with pytest.raises(QuotaExceeded, match="has as many large requests as it can hold; try again"):
            held.enter_context(places.place("greedy"))
        for _ in range(2):
            held.enter_context(places.place("other"))
        with pytest.raises(QuotaExceeded):
            held.enter_context(places.place("third"))
    with places.place("third"):
        pass


def test_a_place_that_is_left_early_is_free_once() -> None:
    places = Places(2, "imports", wait_s=0.01)
    with places.place("a") as place:
        place.leave()
        place.leave()
        with places.place("a"), pytest.raises(QuotaExceeded), places.place("a"):
            pass
    with places.place("a"), pytest.raises(QuotaExceeded), places.place("a"):
        pass


def test_who_waits_gets_the_place_that_becomes_free() -> None:
    places, inside = Places(2, "imports", wait_s=30.0), threading.Event()

    def come() -> None:
        with places.place("a"):
            inside.set()

    with ThreadPoolExecutor(1) as pool:
        with places.place("a"):
            waiting = pool.submit(come)
            assert not inside.is_set()
        waiting.result()
    assert inside.is_set()
