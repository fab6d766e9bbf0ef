"""Files of TLS that cannot be used are said in one line, with the option that named them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fractune_core.access.tls_files import read_authority, read_pair
from fractune_core.errors import BadRequest
from tests.support.certificates import Authority


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
