import re

import pytest
from hypothesis import given, strategies as st

from fractune_core.errors import BadRequest
from fractune_core.shares import (
    MOST_SHARES,
    Device,
    GrantedShare,
    Share,
    expected_units,
    parse_shares,
    with_kernel_shares,
)


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
        *("mig:9g.1gb", "mig:1c.3g.71gb", "mig:GPU-9c5e3b4a-0001-5c0d-8a3e-0123456789ab", "mig:MIG-1"),
        "mig:1g.18gb+you",
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


@pytest.mark.parametrize(
    ("measurers", "shares"),
    [
        (4, "mps:10 mps:25 mps-sm:4 mig:1g.18gb"),
        (3, "mps:33 mig:2g.35gb"),
        (2, "mps:50 mps-sm:8 mig:3g.71gb"),
        (1, "cpu:1 mps:51 mps:100 mps-sm:40 mig:7g.141gb green:8 full none"),
        (1, "mig:MIG-00000001-0000-5000-8000-000000000001"),
    ],
)
def test_the_default_is_what_may_have_room_but_no_more_than_four(measurers: int, shares: str) -> None:
    found = {share: Share.parse(share).default_measurers for share in shares.split()}
    assert found == dict.fromkeys(shares.split(), measurers)


@pytest.mark.parametrize(
    ("share", "device_kind", "says"),
    [
        ("cpu:1", "cpu", ""),
        ("mig:1g.18gb", "cuda", ""),
        ("full", "cuda", ""),
        ("mps:25", "cpu", "is of a GPU, and the bundle is for a CPU; write cpu:N"),
        ("cpu:1", "cuda", "is of a CPU, and the bundle is for a GPU; write mps:PERCENT, .* or full"),
        ("green:8", "cuda", "must be under its share as a whole"),
        ("none", "cuda", "must be under its share as a whole"),
    ],
)
def test_a_model_is_served_at_shares_that_hold_a_whole_process(share: str, device_kind: str, says: str) -> None:
    if not says:
        Share.parse(share).check_serves(device_kind)
        return
    with pytest.raises(BadRequest, match=f"share '{share}'.*{says}"):
        Share.parse(share).check_serves(device_kind)


@pytest.mark.parametrize("text", ["numa:0", "tpu:1", "cuda:0"])
def test_a_share_without_a_descriptor_cannot_be_parsed(text: str) -> None:
    word, size = text.split(":")
    with pytest.raises(BadRequest, match=rf"unknown mechanism '{word}'; write cpu:N, .* or none"):
        Share.parse(text)
    with pytest.raises(BadRequest, match="unknown mechanism"):
        _ = Share(word, size).device_kind


def test_ranges_are_measured_at_their_ends_and_at_the_doubles_between() -> None:
    assert [str(each) for each in Share.parse("mps:25..50").kernel_shares] == ["mps:25", "mps:50"]
    assert [str(each) for each in Share.parse("mps:10..100").kernel_shares] == [
        *("mps:10", "mps:20", "mps:40", "mps:80", "mps:100")
    ]
    wide = Share.parse("cpu:3..8")
    assert (str(wide), wide.cores, wide.ends) == ("cpu:3..8", 8, (Share("cpu", "3"), Share("cpu", "8")))
    assert with_kernel_shares(["cpu:3..8", "cpu:8", "cpu:1..2"]) == ("cpu:3", "cpu:6", "cpu:8", "cpu:1", "cpu:2")
    assert [wide.spans(each) for each in ("cpu:2", "cpu:3", "cpu:8", "cpu:9", "cpu:4000m", "mps:4")] == [
        *(False, True, True, False, False, False)
    ]
    wide.check_serves("cpu")
    with pytest.raises(BadRequest, match=r"'cpu:3\.\.8': this is a range, .* write cpu:3, cpu:6, cpu:8$"):
        wide.check_measures_kernels()


def test_ranges_count_as_the_shares_at_which_they_are_measured() -> None:
    """Fifteen each: 1, 2, 4, ... 8192 cores, and the most."""
    wide = [f"cpu:1..{9999 - number}" for number in range(5)]
    assert len(parse_shares(",".join(wide[:4]))) == 4
    with pytest.raises(BadRequest, match="more than 64 shares"):
        parse_shares(",".join(wide))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mps:50..25", ".*from the guarantee up to the burst, and 50 is not below 25; write mps:25..50"),
        ("cpu:2..2", ".*2 is not below 2; write cpu:2"),
        ("mps:25..", ".*is not a size of mps"),
        ("cpu:0..2", ".*is not a size of cpu"),
        ("mps:101", "'101' is not a size of mps, which takes 1 to 100, without % or a range such as 25..50; write "),
        ("mps", "'' is not a size of mps, which takes .*; write mps:PERCENT or mps:PERCENT..MOST$"),
        ("mig:1g", "'1g' is not a size of mig, which takes a profile such as 1g.18gb, or .*; write mig:PROFILE"),
        ("cpu:1, cpu:2", "this is a list; name one share, such as cpu:1$"),
        ("full:1", "'1' is not a size of full, which takes nothing; write full"),
        (
            "cpu:x",
            "'x' is not a size of cpu, which takes 1 to 9999 cores or a range such as 1..2 or a limit ",
        ),
    ],
)
def test_a_wrong_size_or_range_names_those_that_the_share_takes(text: str, says: str) -> None:
    with pytest.raises(BadRequest, match=rf"^share '{re.escape(text)}': {says}"):
        Share.parse(text)


def test_a_long_list_is_not_quoted_whole() -> None:
    with pytest.raises(BadRequest, match=r"^share 'cpu:1' is named twice in .{,220}; name each share once$"):
        parse_shares("cpu:1," * 60)


def test_a_share_s_units_are_expected_from_its_text() -> None:
    """As an H200 with 132 SMs granted them, as far as it was seen."""
    key = Device("cuda", "sm_90", units=132, memory_gib=141, l2_kib=51200).key
    shares = ["full", "mps:25", "mps:50", "mps:1", "green:32", "mps-sm:4", "mig:3g.71gb", "none"]
    assert expected_units(key, shares) == [132, 32, 66, 2, 32, 33, 56, 132]
    assert expected_units("another key", shares) == []


def test_a_list_of_shares_has_a_limit() -> None:
    many = [f"cpu:{number}" for number in range(1, MOST_SHARES + 2)]
    assert len(parse_shares(",".join(many[:-1]))) == MOST_SHARES
    for text in (",".join(many), "," * MOST_SHARES):  # counted before any is read
        with pytest.raises(BadRequest, match=f"more than {MOST_SHARES} shares in '{text[:6]}"):
            parse_shares(text)
