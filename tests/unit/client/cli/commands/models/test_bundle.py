"""`fractune bundle`: signed, and nothing written by a key that is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from fractune.cli import main
from fractune_core.files.bundles import Bundle
from tests.support.processes.cli_process import only_line
from tests.support.processes.scripted_server import ScriptedServer


def test_a_bundle_is_signed_and_a_key_that_is_none_is_told_before_anything_is_written(
    server: ScriptedServer, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, key = tmp_path / "signed.fractune", tmp_path / "key.pem"
    at = ["--server", server.address, "--out", str(out), "--sign", str(key)]
    for of in (["j1"], [str(model), "--shares", "cpu:1"]):
        assert main(["bundle", *of, *at]) == 2
        assert "key.pem: cannot be read" in only_line(capsys.readouterr().err)
        key.write_text("no key")
        assert main(["bundle", *of, *at]) == 2
        assert "no private key" in only_line(capsys.readouterr().err)
        key.unlink()
    assert server.specs == []
    assert not out.exists()
    pem = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    key.write_bytes(ed25519.Ed25519PrivateKey.generate().private_bytes(*pem))
    assert main(["bundle", "j1", *at]) == 0
    assert Bundle(out).signature is not None
