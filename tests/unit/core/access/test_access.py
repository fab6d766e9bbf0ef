"""Tokens, and the files of certificates and keys."""

import hashlib
from pathlib import Path

import pytest

from fractune_core.access import TokenText, is_local, read_authority, read_pair, read_token_file
from fractune_core.errors import BadRequest
from tests.support.certificates import Authority


def test_a_token_is_read_back_and_no_two_are_alike() -> None:
    made = TokenText.new()
    assert TokenText.parse(made.text) == made
    assert made.secret_sha256 == hashlib.sha256(made.secret.encode()).hexdigest()
    assert len(bytes.fromhex(made.secret)) * 8 == 256
    assert TokenText.new() != made


@pytest.mark.parametrize(
    "text", ["", "fractune_", f"fractune_{'a' * 12}_{'g' * 64}", f"xfractune_{'a' * 12}_{'0' * 64}"]
)
def test_what_is_no_token(text: str) -> None:
    assert TokenText.parse(text) is None


def test_a_token_file_is_read_and_a_wrong_one_is_named_without_its_contents(tmp_path: Path) -> None:
    path, made = tmp_path / "token", TokenText.new()
    path.write_text(made.text + "\n")
    assert read_token_file(path) == made.text
    for contents in (b"almost a secret", b"\xff\xfe", b""):
        path.write_bytes(contents)
        with pytest.raises(BadRequest, match=r"token: holds no token") as refused:
            read_token_file(path)
        assert "almost" not in str(refused.value)
    with pytest.raises(BadRequest, match="cannot be read"):
        read_token_file(tmp_path / "none")


def test_addresses_of_this_machine() -> None:
    here = ("unix:/s", "127.0.0.1:1", "localhost:1", "LOCALHOST:1", "[::1]:1", "127.1.2.3:1")
    others = ("0.0.0.0:1", "192.0.2.1:1", "[::]:1", "host:1", "localhost.example:1", "")
    assert [each for each in (*here, *others) if is_local(each)] == list(here)


def test_good_files_are_read_whole(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "a")
    pair = authority.issue("server", "localhost")
    assert read_authority("--ca", authority.cert) == authority.cert.read_bytes()
    assert read_pair("--c", pair.cert, "--k", pair.key) == (pair.cert.read_bytes(), pair.key.read_bytes())


def test_bad_files_are_named(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "a")
    pair, other = authority.issue("server", "localhost"), authority.issue("other")
    text, empty = tmp_path / "text", tmp_path / "empty"
    text.write_text("no PEM")
    empty.write_text("")
    for path in (text, empty, pair.key):
        with pytest.raises(BadRequest, match=rf"--ca {path}: holds no certificate"):
            read_authority("--ca", path)
    with pytest.raises(BadRequest, match=r"--ca .*none: cannot be read \(No such file"):
        read_authority("--ca", tmp_path / "none")
    with pytest.raises(BadRequest, match="do not belong together"):
        read_pair("--c", pair.cert, "--k", other.key)
    for cert, key in ((text, pair.key), (pair.cert, text), (pair.cert, pair.cert), (pair.cert, authority.locked_key())):
        with pytest.raises(BadRequest, match="one of them is not a certificate or key"):
            read_pair("--c", cert, "--k", key)
    with pytest.raises(BadRequest, match=r"--k .*none: cannot be read"):
        read_pair("--c", pair.cert, "--k", tmp_path / "none")
