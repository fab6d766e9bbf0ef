"""Signed bundles: Ed25519 over the manifest, which holds the digests of everything else.

openssl genpkey -algorithm ed25519 -out private.pem
openssl pkey -in private.pem -pubout -out public.pem
"""

import contextlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fractune_core.errors import BadBundle, BadRequest, FractuneError
from fractune_core.files.bundles import Bundle
from fractune_core.files.new_bundle import replacing_file
from fractune_core.files.sealed import SealedFile


def sign_bundle(path: str | os.PathLike[str], private_key_pem: str | bytes) -> None:
    """Sign the bundle at `path` in place; an existing signature is replaced. The file is replaced whole: a concurrent
    reader has the old file or the new one. Raises BadBundle, BadRequest for an invalid key, StateUnusable when the file
    cannot be written, FractuneError when `cryptography` is not installed.
    """
    sign_sealed(Bundle, Path(path), private_key_pem)


def sign_sealed(kind: type[SealedFile], path: Path, private_key_pem: str | bytes) -> None:
    """As `sign_bundle`, of a sealed file of any kind."""
    key = _load_key(private_key_pem, private=True)
    with contextlib.closing(kind(path)) as opened, replacing_file(path) as file:
        opened.copy_to(file, key.sign(opened.manifest_bytes))


def check_private_key(pem: str | bytes) -> None:
    """Raises the errors of `sign_bundle` about the key, before a bundle exists."""
    _load_key(pem, private=True)


def signature_check(public_key_pem: str | bytes) -> Callable[[str, bytes, bytes | None], None]:
    """What `Bundle` calls with its name, manifest and signature. Raises as `open_bundle` about the key."""
    return partial(_check_signature, _load_key(public_key_pem, private=False))


def _check_signature(key: Any, name: str, manifest: bytes, signature: bytes | None) -> None:
    from cryptography.exceptions import InvalidSignature

    if signature is None:
        raise BadBundle(f"{name} is not signed; get it from its signer, or sign it (sign_bundle)")
    try:
        key.verify(signature, manifest)
    except InvalidSignature as error:
        raise BadBundle(f"{name}: its signature does not match the given key; do not trust it") from error


def _load_key(pem: str | bytes, *, private: bool) -> Any:
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise FractuneError("signatures need the package cryptography; install 'fractune[sign]'") from error
    data = pem.encode() if isinstance(pem, str) else pem
    kind = "private" if private else "public"
    try:
        key = serialization.load_pem_private_key(data, None) if private else serialization.load_pem_public_key(data)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadRequest(
            f"this is not a valid {kind} key in PEM form without a password; give the contents of the file"
        ) from error
    if not isinstance(key, ed25519.Ed25519PrivateKey | ed25519.Ed25519PublicKey):
        raise BadRequest(f"the {kind} key is not of Ed25519; make one: openssl genpkey -algorithm ed25519")
    return key
