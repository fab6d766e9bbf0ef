from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractune_core.errors import BadRequest
from fractune_core.shares import GrantedShare, Share, parse_shares


@pytest.mark.parametrize(
    "text",
    [
        *("cpu:1", "cpu:128", "mps:25", "mps:100", "mps-sm:4", "green:32", "full", "none"),
        *("mig:1g.18gb", "mig:1g.10gb+me", "mig:MIG-9c5e3b4a-0001-5c0d-8a3e-0123456789ab"),
    ],
)
def test_a_share_reads_back_as_it_was_written(text: str) -> None:
    assert str(Share.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "cpu", "cpu:", "cpu:0", "cpu:-1", "cpu:1.5", "mps:101", "mps:0", "gpu:1", "full:1", "none:1", "None"),
        *(
            "mig:9g.1gb",
            "mig:1c.3g.71gb",
            "mig:GPU-9c5e3b4a-0001-5c0d-8a3e-0123456789ab",
            "mig:MIG-1",
            "mig:1g.18gb+you",
        ),
    ],
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


def test_instances_with_as_many_sms_and_other_memory_are_other_shares() -> None:
    slim, wide = (GrantedShare("mig:1g.5gb", 14, 108, "sm", gib << 30, reserved=True) for gib in (5, 10))
    assert slim.key != wide.key
    assert slim.key == GrantedShare("mig:1g.5gb", 14, 108, "sm", (5 << 30) - 4096, reserved=True).key


@pytest.mark.parametrize(("text", "kind"), [("cpu:1", "cpu"), ("mps:25", "cuda"), ("full", "cuda"), ("none", "cuda")])
def test_a_share_tells_the_kind_of_its_device(text: str, kind: str) -> None:
    assert Share.parse(text).device_kind == kind
