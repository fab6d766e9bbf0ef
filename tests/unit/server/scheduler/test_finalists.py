"""Which operators are validated, how much of the work is tuned, and where a new operator starts."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from fractune_core.analysis.roofline import Arithmetic
from fractune_core.records import Status
from fractune_server.scheduler.finalists import (
    DONORS_AT_MOST,
    NEGLIGIBLE,
    TRIALS_AT_LEAST,
    Outlook,
    choose_donors,
    is_settled,
    operator_kind,
    outlook,
    short_repeats_ms,
    tuned_part,
    worth_validating,
)
from fractune_server.store.records.log import Donor
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


MANY = TRIALS_AT_LEAST


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("fused_conv2d3_add2_relu2", "conv2d"),
        ("conv2d_transpose1", "conv2d"),
        ("matmul", "matmul"),
        ("fused_matmul12_add", "matmul"),
        ("", ""),
    ],
)
def test_the_kind_is_read_off_the_name(name: str, kind: str) -> None:
    assert operator_kind(name) == kind


def test_the_operator_itself_comes_first_then_the_best_measured_of_its_kind() -> None:
    known = [
        Donor("a", "1", "conv2d1", MANY),
        Donor("b", "1", "fused_conv2d2_relu", MANY + 2),
        Donor("me", "2", "conv2d9", MANY),
        Donor("me", "1", "conv2d9", MANY + 50),
        Donor("few", "1", "conv2d3", MANY - 1),
        Donor("other", "1", "matmul", MANY + 9),
    ]
    assert [each.workload_hash for each in choose_donors(known, "conv2d9", "me", {"1"})] == ["me", "b", "a"]


def test_the_same_layer_at_another_shape_comes_before_others_of_its_kind() -> None:
    known = [Donor("a", "1", "fused_matmul1_add", MANY + 50), Donor("b", "1", "fused_matmul2_add", MANY)]
    assert [each.workload_hash for each in choose_donors(known, "fused_matmul2_add", "me", {"1"})] == ["b", "a"]


def test_the_shares_of_the_job_go_before_others() -> None:
    known = [Donor("a", "4", "conv2d1", MANY + 90), Donor("a", "1", "conv2d1", MANY)]
    assert choose_donors(known, "conv2d", "me", {"1"}) == [known[1]]
    assert choose_donors(known, "conv2d", "me", {"2"}) == [known[0]]


def test_no_more_than_a_few() -> None:
    known = [Donor(str(number), "1", "conv2d", MANY + number) for number in range(50)]
    assert [each.workload_hash for each in choose_donors(known, "conv2d", "me", {"1"})] == [
        str(number) for number in range(49, 49 - DONORS_AT_MOST, -1)
    ]
