"""What a client sends where: files and the environment, and no token in plain text."""

from concurrent import futures
from pathlib import Path

import grpc
import pytest

import fractune
from fractune.server.credentials import VARIABLES, Credentials
from fractune_core.access import TokenText
from fractune_core.errors import BadRequest, ServerUnreachable
from tests.support.certificates import Authority

ELSEWHERE = "tuner.example:50051"


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TokenText.new().text)
    return path


def test_what_is_given_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRACTUNE_CA", "/env/ca")
    monkeypatch.setenv("FRACTUNE_TOKEN_FILE", "/env/token")
    assert Credentials.found(ca="/own/ca") == Credentials(ca=Path("/own/ca"), token_file=Path("/env/token"))
    monkeypatch.setenv("FRACTUNE_CA", "")
    assert Credentials.found().ca is None


def test_a_token_or_a_certificate_needs_tls_to_another_machine(token: Path) -> None:
    with pytest.raises(BadRequest, match=rf"^token_file {token} is not used .*tuner\.example.* pass ca with"):
        fractune.connect(ELSEWHERE, token_file=token)
    with pytest.raises(BadRequest, match=r"^client_cert .* is not used in plain text"):
        fractune.connect(ELSEWHERE, client_cert=token)
    for address in ("127.0.0.1:1", "localhost:1", "[::1]:1", "unix:/nowhere"):
        fractune.connect(address, token_file=token).close()
    fractune.connect(ELSEWHERE).close()


def test_files_that_cannot_be_used_are_named(token: Path, tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "a")
    pair = authority.issue("client")
    fractune.connect(ELSEWHERE, ca=authority.cert, token_file=token).close()
    fractune.connect(ELSEWHERE, ca=authority.cert, client_cert=pair.cert, client_key=pair.key).close()
    with pytest.raises(BadRequest, match=r"^ca .*token: holds no certificate"):
        fractune.connect(ELSEWHERE, ca=token)
    with pytest.raises(BadRequest, match=r"token file .*: holds no token"):
        fractune.connect(ELSEWHERE, ca=authority.cert, token_file=authority.cert)
    with pytest.raises(BadRequest, match="go together"):
        fractune.connect(ELSEWHERE, ca=authority.cert, client_cert=pair.cert)


def test_a_certificate_for_another_name_is_not_taken(token: Path, tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "a")
    pair = authority.issue("server", "tuner.example")
    server = grpc.server(futures.ThreadPoolExecutor(1))
    credentials = grpc.ssl_server_credentials([(pair.key.read_bytes(), pair.cert.read_bytes())])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        with (
            fractune.connect(f"127.0.0.1:{port}", ca=authority.cert, token_file=token) as client,
            pytest.raises(ServerUnreachable, match="no certificate for that name"),
        ):
            client.jobs()
    finally:
        server.stop(grace=None).wait()
