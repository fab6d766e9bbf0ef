"""Which measurements run beside each other on one GPU, whatever the order in which they come and go."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractune_core.shares import GrantedShare
from fractune_workers.locks.gpu_slots import ALONE, Claim, claim_of

SMS = 132


def granted(share: str, units: int, *, reserved: bool = False) -> GrantedShare:
    return GrantedShare(share, units, SMS, "sm", 1 << 36, reserved=reserved)


QUARTER = claim_of(granted("mps:25", 32))
HALF = claim_of(granted("mps:50", 66))
WHOLE = claim_of(granted("mps:100", 132))
PARTITION = claim_of(granted("mps-sm:4", 32, reserved=True))
INSTANCE = claim_of(granted("mig:1g.18gb", 16, reserved=True))
LARGE_INSTANCE = claim_of(granted("mig:3g.71gb", 60, reserved=True))
FULL = claim_of(granted("full", 132))
FULL_EXCLUSIVE = claim_of(granted("full", 132, reserved=True))
GREEN = claim_of(granted("green:32", 32))
NONE = claim_of(granted("none", 132))
ALL = [ALONE, QUARTER, HALF, WHOLE, PARTITION, INSTANCE, LARGE_INSTANCE, FULL, FULL_EXCLUSIVE, GREEN, NONE]


@pytest.mark.parametrize(
    ("one", "held", "fits"),
    [
        (QUARTER, [QUARTER] * 3, True),
        (QUARTER, [QUARTER] * 4, False),
        (QUARTER, [HALF, QUARTER], True),
        (HALF, [HALF], True),
        (HALF, [HALF, QUARTER], False),
        (QUARTER, [WHOLE], False),
        (QUARTER, [FULL], False),
        (FULL, [QUARTER], False),
        (WHOLE, [], True),
        (PARTITION, [PARTITION] * 3, True),
        (PARTITION, [QUARTER], False),
        (INSTANCE, [INSTANCE] * 6, True),
        (INSTANCE, [LARGE_INSTANCE, LARGE_INSTANCE], True),
        (INSTANCE, [NONE], False),
        (GREEN, [GREEN], False),
        (GREEN, [], True),
        (FULL_EXCLUSIVE, [], True),
        (ALONE, [INSTANCE], False),
        (INSTANCE, [ALONE], False),
    ],
)
def test_shares_run_side_by_side_where_the_hardware_does_and_they_fit(
    one: Claim, held: list[Claim], *, fits: bool
) -> None:
    assert one.fits(held) is fits


@given(st.lists(st.sampled_from(ALL), max_size=30))
def test_whatever_was_let_in_one_after_the_other_fits_in_any_order(coming: list[Claim]) -> None:
    held: list[Claim] = []
    for claim in coming:
        if claim.fits(held):
            held.append(claim)
    assert bool(held) is bool(coming)
    assert sum(claim.units for claim in held) <= SMS
    assert len({claim.exclusion_group for claim in held}) <= 1
    assert len(held) <= 1 or all(claim.exclusion_group for claim in held)
    for order in itertools.islice(itertools.permutations(held), 20):
        assert all(claim.fits(order[:number]) for number, claim in enumerate(order))


@given(st.lists(st.sampled_from(ALL), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_first_come_first_served_lets_everybody_in(coming: list[Claim], chance: random.Random) -> None:
    """The queue of the gate: only the first looks, and whoever holds a claim ends some time."""
    queue, held = list(coming), list[Claim]()
    for _ in range(2 * len(coming)):
        if queue and queue[0].fits(held):
            held.append(queue.pop(0))
        elif held:
            held.pop(chance.randrange(len(held)))
    assert queue == []
