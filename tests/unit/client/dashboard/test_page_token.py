from __future__ import annotations

from pathlib import Path

from fractune.dashboard.serving import PageOptions
from fractune.features.client import Client
from fractune.server.credentials import Credentials
from tests.support.certificates import Authority


def test_a_server_with_credentials_is_guarded_and_one_in_plain_text_is_not(tmp_path: Path) -> None:
    ca = Authority.make(tmp_path / "authority").cert
    with Client("127.0.0.1:1", credentials=Credentials(ca=ca)) as client:
        assert client.is_guarded
    with Client("127.0.0.1:1") as client:
        assert not client.is_guarded


def test_a_password_is_made_for_what_others_must_not_read() -> None:
    assert PageOptions("127.0.0.1:0").token(is_guarded=True)
    assert PageOptions("127.0.0.1:0").token(is_guarded=False) == ""
    assert PageOptions("127.0.0.1:0", insecure=True).token(is_guarded=True) == ""


def test_the_password_of_a_file_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    assert PageOptions("127.0.0.1:0", token_file=file).token(is_guarded=True) == "secret"
