"""Wrong tokens: how many an address has, when they are forgotten, and that memory is bounded."""

from __future__ import annotations

import pytest

from fractune_server.access import authenticator
from fractune_server.access.authenticator import BURST, FORGIVEN_AFTER_S, Attempts, address_of


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_burst_is_heard_and_then_one_at_a_time(clock: Clock) -> None:
    kept = Attempts(clock)
    for number in range(BURST):
        assert kept.wait_s("ipv4:192.0.2.1:5000") == 0, number
        kept.failed(f"ipv4:192.0.2.1:{number}")  # another port is the same caller
    assert kept.wait_s("ipv4:192.0.2.1:1") == pytest.approx(FORGIVEN_AFTER_S)
    assert kept.wait_s("ipv4:192.0.2.2:1") == 0
    clock.now += FORGIVEN_AFTER_S
    assert kept.wait_s("ipv4:192.0.2.1:1") == 0
    kept.failed("ipv4:192.0.2.1:1")
    assert kept.wait_s("ipv4:192.0.2.1:1") == pytest.approx(FORGIVEN_AFTER_S)
    clock.now += BURST * FORGIVEN_AFTER_S
    for _ in range(BURST):
        assert kept.wait_s("ipv4:192.0.2.1:1") == 0
        kept.failed("ipv4:192.0.2.1:1")


def test_memory_is_bounded_and_the_oldest_goes_first(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authenticator, "_MAX_PEERS", 3)
    kept = Attempts(clock)
    for _ in range(BURST):
        for host in range(3):
            kept.failed(f"ipv4:192.0.2.{host}:1")
    kept.failed("ipv4:192.0.2.9:1")
    assert kept.wait_s("ipv4:192.0.2.0:1") == 0
    assert kept.wait_s("ipv4:192.0.2.1:1") > 0
    assert len(kept._clean_at) == 3


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:192.0.2.1:5000", "192.0.2.1"),
        ("ipv6:%5B2001:db8::1%5D:5000", "2001:db8::/64"),
        ("ipv6:[2001:db8::ffff:1]:5000", "2001:db8::/64"),
        ("ipv6:%5Bfe80::1%25eth0%5D:5000", "fe80::/64"),
        ("ipv6:%5B::ffff:192.0.2.1%5D:5000", "192.0.2.1"),
        ("ipv6:strange", "ipv6:strange"),
        ("strange", "strange"),
    ],
)
def test_who_a_peer_is(peer: str, address: str) -> None:
    assert address_of(peer) == address
