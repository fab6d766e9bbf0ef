"""Places for requests on their way in, taken by real threads; and how many wrong tokens an address has."""

import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from fractune_core.access import TlsFiles
from fractune_core.errors import BadRequest, QuotaExceeded
from fractune_server import authenticator
from fractune_server.authenticator import BURST, FORGIVEN_AFTER_S, Attempts, Places, address_of
from fractune_server.main import metrics_tls, server_credentials
from tests.support.certificates import Authority


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


@pytest.fixture
def tls(tmp_path: Path) -> TlsFiles:
    authority = Authority.make(tmp_path / "a")
    pair = authority.issue("server", "localhost")
    return TlsFiles(pair.cert, pair.key, authority.cert)


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "localhost:1", "[::1]:0", "unix:/s"])
def test_this_machine_needs_nothing(listen: str) -> None:
    assert server_credentials(listen, None, insecure=False) is None


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "tuner:1", "192.0.2.1:1"])
def test_another_address_needs_tls_or_a_word(listen: str, tls: TlsFiles) -> None:
    with pytest.raises(BadRequest, match=r"pass --tls-cert and --tls-key .* or pass --insecure"):
        server_credentials(listen, None, insecure=False)
    assert server_credentials(listen, None, insecure=True) is None
    assert server_credentials(listen, tls, insecure=False) is not None


def test_metrics_that_others_can_reach_have_the_servers_tls(tls: TlsFiles) -> None:
    assert metrics_tls(None, tls, insecure=False) is None
    assert metrics_tls("127.0.0.1:0", tls, insecure=False) is None
    assert metrics_tls("0.0.0.0:0", None, insecure=True) is None
    made = metrics_tls("0.0.0.0:0", tls, insecure=False)
    assert made is not None
    assert made.verify_mode is ssl.CERT_REQUIRED
    own = metrics_tls("0.0.0.0:0", TlsFiles(tls.cert, tls.key), insecure=False)
    assert own is not None
    assert own.verify_mode is ssl.CERT_NONE
    with pytest.raises(
        BadRequest, match=r"metrics address tuner:1 .* pass --tls-cert and --tls-key .* or pass --insec"
    ):
        metrics_tls("tuner:1", None, insecure=False)


def test_what_contradicts_itself_is_refused(tls: TlsFiles) -> None:
    with pytest.raises(BadRequest, match="--insecure excludes TLS and tokens"):
        server_credentials("0.0.0.0:0", tls, insecure=True)
    with pytest.raises(BadRequest, match=r"TLS is for HOST:PORT, and unix:/s is a socket on this machine"):
        server_credentials("unix:/s", tls, insecure=False)


def test_files_that_cannot_be_used_are_named(tls: TlsFiles, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"--tls-cert .*none: cannot be read"):
        server_credentials("0.0.0.0:0", TlsFiles(tmp_path / "none", tls.key), insecure=False)
    with pytest.raises(BadRequest, match=r"--client-ca .*server\.key: holds no certificate"):
        server_credentials("0.0.0.0:0", TlsFiles(tls.cert, tls.key, tls.key), insecure=False)
