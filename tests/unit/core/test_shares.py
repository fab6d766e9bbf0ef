from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner_core.errors import BadRequest
from tuner_core.shares import GrantedShare, Share, parse_shares


@pytest.mark.parametrize(
    "text", ["cpu:1", "cpu:128", "mps:25", "mps:100", "mps-sm:4", "mig:1g.18gb", "green:32", "full"]
)
def test_a_share_reads_back_as_it_was_written(text: str) -> None:
    assert str(Share.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "cpu", "cpu:", "cpu:0", "cpu:-1", "cpu:1.5", "mps:101", "mps:0", "mig:9g.1gb", "gpu:1", "full:1"]
)
def test_anything_else_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(BadRequest, match="share"):
        Share.parse(text)


@given(st.text(max_size=20))
def test_no_text_ends_in_another_error(text: str) -> None:
    try:
        share = Share.parse(text)
    except BadRequest:
        return
    assert str(share) == text.strip()


def test_a_list_keeps_its_order_and_refuses_repeats() -> None:
    assert [str(share) for share in parse_shares("cpu:2, cpu:1")] == ["cpu:2", "cpu:1"]
    with pytest.raises(BadRequest, match="twice"):
        parse_shares("cpu:1,cpu:1")
    with pytest.raises(BadRequest, match="no share"):
        parse_shares(" , ")


def test_what_was_granted_is_the_identity_not_what_was_asked_for() -> None:
    quarter = GrantedShare("mps:25", 32, 132, "sm", 1, reserved=False)
    alike = GrantedShare("mps:26", 32, 132, "sm", 1, reserved=False)
    assert quarter.key == alike.key
    assert GrantedShare.from_json(quarter.to_json()) == quarter
    assert quarter.fraction == pytest.approx(32 / 132)
