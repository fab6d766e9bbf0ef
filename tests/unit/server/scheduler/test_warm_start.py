"""Whose schedules an operator that is new starts from."""

from __future__ import annotations

import pytest

from fractune_server.scheduler.finalists import DONORS_AT_MOST, TRIALS_AT_LEAST, choose_donors, operator_kind
from fractune_server.store.records.log import Donor

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
