"""Where a server may listen, and with what."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from fractune_core.access.tls_files import TlsFiles
from fractune_core.errors import BadRequest
from fractune_server.main import metrics_tls, server_credentials
from tests.support.certificates import Authority


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
