"""The PEM files of TLS: read, and checked before anything listens or connects."""

from dataclasses import dataclass
from pathlib import Path

from fractune_core.errors import BadRequest


@dataclass(frozen=True)
class TlsFiles:
    """The files with which a server serves TLS."""

    cert: Path
    """its certificate, then the certificates between it and the authority"""
    key: Path
    client_ca: Path | None = None
    """authorities that must have signed the clients' certificates; None = clients need none"""


def read_authority(option: str, path: Path) -> bytes:
    """The certificates in the file. Raises BadRequest, which names the option, for a file without certificates."""
    import ssl  # imported here and below because only TLS needs it

    pem = _read(option, path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except (ssl.SSLError, ValueError) as error:
        raise BadRequest(f"{option} {path}: holds no certificate in PEM form; name the authority's file") from error
    return pem


def read_pair(cert_option: str, cert: Path, key_option: str, key: Path) -> tuple[bytes, bytes]:
    """A certificate and its key. Raises BadRequest for a file that is not PEM, needs a password, or does not match."""
    import ssl

    pems = _read(cert_option, cert), _read(key_option, key)
    try:
        # Without a password of ours OpenSSL would ask the terminal for that of an encrypted key.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise BadRequest(
                f"{cert_option} {cert} and {key_option} {key} do not belong together; name the key of this certificate"
            ) from error
        raise BadRequest(
            f"{cert_option} {cert} and {key_option} {key}: one of them is not a certificate or key in PEM form, "
            "or the key has a password; name PEM files without one"
        ) from error
    return pems


def _read(option: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadRequest(f"{option} {path}: cannot be read ({error.strerror})") from error
