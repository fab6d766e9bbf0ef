"""Signed bundles."""

import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

import fractune
from fractune_core.errors import BadBundle, BadRequest, FractuneError, OutputsDiffer, StateUnusable
from fractune_core.files.bundles import Bundle
from fractune_core.files.manifests import _FIELDS
from fractune_core.files.sealed import SIGNATURE, write_archive
from fractune_runtime.loading import open_bundle
from fractune_runtime.signatures import sign_bundle
from tests.support.client_samples import bundle_bytes
from tests.support.paths import REPOSITORY
from tests.support.real_bundle import Small
from tests.support.wrong_weights import with_other_weight
from tests.unit.runtime.choosing.test_variants import with_variants

_PRIVATE = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
Key = ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey


def pems(key: Key) -> tuple[bytes, bytes]:
    """The private and the public half."""
    private = key.private_bytes(serialization.Encoding.PEM, *_PRIVATE)
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return private, public


PRIVATE, PUBLIC = pems(ed25519.Ed25519PrivateKey.generate())
OTHER_PRIVATE, OTHER_PUBLIC = pems(ed25519.Ed25519PrivateKey.generate())
EC_PRIVATE, EC_PUBLIC = pems(ec.generate_private_key(ec.SECP256R1()))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "m.fractune"
    path.write_bytes(bundle_bytes())
    return path


def test_a_signed_bundle_is_the_same_bundle(path: Path) -> None:
    manifest = Bundle(path).manifest_bytes
    sign_bundle(path, PRIVATE)
    once = path.read_bytes()
    open_bundle(path, PUBLIC)
    Bundle(path).verify()
    assert Bundle(path).manifest_bytes == manifest
    sign_bundle(path, PRIVATE.decode())
    assert path.read_bytes() == once
    assert list(path.parent.iterdir()) == [path]


def test_another_signer_and_no_signer_are_refused(path: Path) -> None:
    with pytest.raises(BadBundle, match=r"m.fractune is not signed"):
        open_bundle(path, PUBLIC)
    sign_bundle(path, OTHER_PRIVATE)
    with pytest.raises(BadBundle, match="does not match the given key"):
        open_bundle(path, PUBLIC)
    sign_bundle(path, PRIVATE)
    open_bundle(path, PUBLIC)


def test_load_refuses_before_it_runs_anything(path: Path) -> None:
    with pytest.raises(BadBundle, match="is not signed"):
        fractune.load(path, public_key=PUBLIC)


def test_a_manifest_changed_after_signing_is_refused(path: Path) -> None:
    sign_bundle(path, PRIVATE)
    bundle = Bundle(path)
    assert bundle.signature is not None
    entries = {name: bundle.read(name) for name in bundle.manifest["sha256"]}
    changed = bundle.manifest_bytes.replace(b"m.onnx", b"n.onnx")
    with path.open("wb") as file:
        write_archive(file, changed, {**entries, SIGNATURE: bundle.signature})
    with pytest.raises(BadBundle, match="does not match the given key"):
        open_bundle(path, PUBLIC)


@pytest.mark.parametrize("key", [b"rubbish", "", PUBLIC, EC_PRIVATE])
def test_what_is_no_private_key(path: Path, key: str | bytes) -> None:
    with pytest.raises(BadRequest, match=r"not a valid private key|not of Ed25519"):
        sign_bundle(path, key)


@pytest.mark.parametrize("key", [b"rubbish", "", PRIVATE, EC_PUBLIC])
def test_what_is_no_public_key(path: Path, key: str | bytes) -> None:
    with pytest.raises(BadRequest, match=r"not a valid public key|not of Ed25519"):
        open_bundle(path, key)


def test_a_folder_that_cannot_be_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_options: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(StateUnusable, match="cannot be written"):
        sign_bundle(path, PRIVATE)


def test_without_cryptography_the_way_to_it_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    with pytest.raises(FractuneError, match=r"install 'fractune\[sign\]'"):
        open_bundle(path, PUBLIC)


@pytest.mark.parametrize("variant", ["cpu:1", "untuned"])
def test_a_variant_that_computes_something_else_is_not_served(small: Small, tmp_path: Path, variant: str) -> None:
    """Two hundredths more in one weight; the check does not know which of the two variants is wrong."""
    wrong = with_other_weight(small.bundle, tmp_path / "wrong.fractune", variant, 1.02)
    assert fractune.load(wrong, share="cpu:1").choice.variant == "cpu:1"
    with pytest.raises(OutputsDiffer, match="'cpu:1' was to serve, and it and 'untuned' differ in the output 'y' by"):
        fractune.load(wrong, share="cpu:1", check=True)


def test_right_bundles_are_served_without_a_word(small: Small, encoders: Path, in_parts: Small, tmp_path: Path) -> None:
    """Of several shapes and in parts too; and a weight that differs by less than outputs that are as right."""
    rounded = with_other_weight(small.bundle, tmp_path / "rounded.fractune", "cpu:1", 1 + 1e-6)
    buckets = sorted(encoders.glob("*.fractune"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for path in (small.bundle, rounded, *buckets, in_parts.bundle):
            model = fractune.load(path, share="cpu:1", check=True)
            assert all(np.isfinite(each).all() for each in model.run(model.random_inputs()) if each.dtype.kind == "f")


def test_a_variant_that_is_alone_is_not_checked_which_is_said(small: Small, tmp_path: Path) -> None:
    alone = with_variants(small, tmp_path / "alone.fractune", "untuned")
    with pytest.warns(RuntimeWarning) as told:
        fractune.load(alone, share="cpu:1", check=True)
    assert str(told[-1].message) == "alone.fractune was not checked: it has one variant alone"
    assert told[-1].filename == __file__


PAGE = (REPOSITORY / "docs/bundle.md").read_text(encoding="utf-8")
EXAMPLE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]


def read(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-c", EXAMPLE, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_example_lists_the_variants_and_finds_a_change(tmp_path: Path) -> None:
    path = tmp_path / "m.fractune"
    path.write_bytes(bundle_bytes())
    ended = read(path)
    assert ended.stdout.splitlines()[1:] == [
        "variants/1: cpu:1, tuned for 1 core(s)",
        "variants/2: cpu:4, tuned for 4 core(s)",
    ]
    path.write_bytes(bundle_bytes().replace(b"rocketlake", b"rocketlaka"))
    assert read(path).returncode != 0


def test_the_page_names_every_field_that_is_checked() -> None:
    assert [field for field in (*_FIELDS, "measured", "format") if f"`{field}`" not in PAGE] == []
