"""Which operators are validated at all."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fractune_core.records import Status
from fractune_server.scheduler.finalists import (
    NEGLIGIBLE,
    Outlook,
    is_settled,
    outlook,
    short_repeats_ms,
    worth_validating,
)
from tests.support.samples import divided, granted, validation

SHARE = granted(1).key


def test_settled_means_every_finalist_validated_at_every_share() -> None:
    validations = [validation("a", 1, 1.0), validation("a", 2, 1.0)]
    shares = [record.granted.key for record in validations]
    chosen = {validations[0].candidate_id}
    assert is_settled(chosen, validations, shares)
    assert not is_settled(chosen, validations[:1], shares)
    assert not is_settled({*chosen, "other"}, validations, shares)


def test_the_untuned_default_alone_is_timed_only_where_another_share_has_its_time() -> None:
    untuned = validation("", 2, 1.0)
    assert is_settled({untuned.candidate_id}, [], [SHARE])
    assert not is_settled({untuned.candidate_id}, [untuned], [SHARE])
    assert not is_settled({untuned.candidate_id, "a"}, [], [SHARE])


def test_an_outlook_is_the_fastest_published_and_the_fastest_trial_that_is_new() -> None:
    earlier = [validation("", 1, 4.0), validation("winner", 1, 2.0), validation("elsewhere", 2, 0.1)]
    trials = [validation("winner", 1, 1.5), validation("new", 1, 1.75), validation("newer", 1, 3.0)]
    assert outlook(3, trials, earlier, SHARE) == Outlook(6.0, 5.25)
    assert outlook(3, trials[:1], earlier, SHARE) == Outlook(6.0, math.inf)
    assert outlook(1, trials, [], SHARE) == Outlook(None, 1.5)
    wrong = replace(earlier[1], status=Status.WRONG_OUTPUT, run_secs=())
    assert outlook(1, trials, [earlier[0], wrong], SHARE) == Outlook(4.0, 1.75)


def test_what_a_validation_forgoes_is_counted_from_what_is_reported() -> None:
    earlier = [divided("lucky", 1, 1.0, 2.0), divided("other", 1, 1.5, 1.8)]
    assert outlook(1, [], earlier, SHARE).published_s == 2.0


def test_what_was_never_validated_is_worth_it_however_fast_its_trial_was() -> None:
    """Its trial says nothing of how slow the untuned default is."""
    outlooks = {"heavy": Outlook(100.0, 90.0), "light": Outlook(None, 1e-6), "idle": Outlook(5.0, math.inf)}
    assert worth_validating(outlooks) == {"heavy", "light"}


def test_small_gains_are_left_out_while_together_they_stay_negligible() -> None:
    heavy = {"heavy": Outlook(100.0, 50.0)}
    light = {f"light{number}": Outlook(1.0, 0.8) for number in range(2)}
    assert worth_validating(heavy | light) == {"heavy"}
    many = {f"light{number}": Outlook(1.0, 0.8) for number in range(10)}
    assert len(worth_validating(heavy | many)) == 1 + 10 - 2


def test_repeats_are_the_shorter_the_less_an_operator_matters() -> None:
    outlooks = {
        "heavy": Outlook(None, 98.0),
        "published": Outlook(0.9, 5.0),
        "light": Outlook(None, 0.6),
        "lightest": Outlook(None, 0.5),
        "at the limit": Outlook(None, 5.5),
        "unknown": Outlook(None, math.inf),
    }
    assert short_repeats_ms(outlooks) == {"published": 2.0, "light": 2.0, "lightest": 0.5}
    assert short_repeats_ms({}) == {}


@given(
    st.dictionaries(
        st.text(max_size=3),
        st.builds(Outlook, st.none() | st.floats(1e-6, 1e3), st.floats(1e-6, 1e3) | st.just(math.inf)),
        max_size=30,
    )
)
def test_what_is_left_out_gains_a_hundredth_of_the_model_at_most(outlooks: dict[str, Outlook]) -> None:
    left_out = [each.gain_s for name, each in outlooks.items() if name not in worth_validating(outlooks)]
    assert sum(left_out) <= NEGLIGIBLE * sum(each.known_s for each in outlooks.values()) + 1e-9
