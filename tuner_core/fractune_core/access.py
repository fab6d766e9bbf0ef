"""Callers of a server, and how they connect: tokens, the PEM files of TLS, addresses, limits of connections.

A token is text with a public id and a secret of 256 random bits. The server keeps only the SHA-256 of the secret. A
slow hash would add nothing: it protects words that people choose, and 256 random bits cannot be guessed.

A network that drops packets reports nothing, and a watch may be silent for hours. So client and server both send pings.
A ping without an answer ends the connection and its calls.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import secrets
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self
from urllib.parse import quote

from fractune_core.errors import BadRequest
from fractune_core.names import DEFAULT_TENANT

_TEXT = re.compile(r"fractune_([0-9a-f]{12})_([0-9a-f]{64})")


class Scope(StrEnum):
    """Permissions of a caller; each includes those before it."""

    READ = "read"
    SUBMIT = "submit"
    OPERATE = "operate"
    ADMIN = "admin"

    def includes(self, other: Scope) -> bool:
        order = list(Scope)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True)
class Quotas:
    """Limits of a token or of a tenant; None = no limit."""

    open_jobs: int | None = None
    """open jobs at the same time"""
    trials_a_day: int | None = None
    """trials of the jobs of the last 24 hours; an open job counts with all its requested trials"""
    stored_bytes: int | None = None
    """bytes of all uploaded models, and of all bundles that jobs have made"""
    share_seconds_a_day: int | None = None
    """seconds for which measuring workers worked for jobs in the last 24 hours"""


@dataclass(frozen=True)
class Reach:
    """Whose jobs, models and records a token reaches."""

    tenant: str = DEFAULT_TENANT
    """the owner of what the token creates"""
    all_tenants: bool = False
    """it sees what any tenant has, as each token of the scope admin does"""


DEFAULT_REACH = Reach()


@dataclass(frozen=True)
class TokenText:
    """A token as its owner holds it. Its `repr` hides the secret."""

    token_id: str
    """12 hex digits"""
    secret: str
    """64 hex digits"""

    @classmethod
    def new(cls) -> Self:
        return cls(secrets.token_hex(6), secrets.token_hex(32))

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """None for text that is not a token."""
        found = _TEXT.fullmatch(text)
        return cls(*found.groups()) if found else None

    @property
    def secret_sha256(self) -> str:
        return hashlib.sha256(self.secret.encode()).hexdigest()

    @property
    def text(self) -> str:
        return f"fractune_{self.token_id}_{self.secret}"

    def __repr__(self) -> str:
        return f"TokenText({self.token_id})"


def read_token_file(path: Path) -> str:
    """The token in a file. Raises BadRequest, which shows nothing of the file's contents."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise BadRequest(f"token file {path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise BadRequest(f"token file {path}: holds no token") from error
    if TokenText.parse(text) is None:
        raise BadRequest(f"token file {path}: holds no token; `fractune admin token create` writes such a file")
    return text


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


_ANSWER_MS = 8_000
"""grpc.keepalive_timeout_ms has the same meaning, but gRPC 1.85 closes nothing by it"""
CLIENT_KEEPALIVE = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", _ANSWER_MS),
    ("grpc.http2.max_pings_without_data", 0),
)
"""options of a channel: a call ends after 18 s without an answer from the network"""
SERVER_KEEPALIVE = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", _ANSWER_MS),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
)
"""options of a server: a watcher that is gone frees its place within 28 s; clients may ping as often as above"""

MOST_MESSAGE_BYTES = 4 << 20
"""of a request; larger ones are sent as a stream of messages"""

_BASE_TRANSFER_S = 60.0
_LEAST_BYTES_PER_S = 256 << 10


def transfer_s(size_bytes: int) -> float:
    """Seconds that a client waits, and a server holds a thread, for a transfer of this size."""
    return _BASE_TRANSFER_S + size_bytes / _LEAST_BYTES_PER_S


UNIX = "unix:"
_USER = re.compile(r"(?<=://)(?P<user>[^:/@]*)(?P<password>:.*)?@", re.DOTALL)
_IN_QUERY = re.compile(r"(?<=[?&]password=)[^&]*")
_HIDDEN = "***"


def is_local(address: str) -> bool:
    """Whether what is sent to HOST:PORT or unix:PATH cannot leave this machine; False for any form not known."""
    if address.startswith(UNIX):
        return True
    return is_loopback(address.rpartition(":")[0])


def is_loopback(host: str) -> bool:
    """Whether the name or address, an IPv6 one also in brackets, is of this machine alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def with_password(url: str, password: str) -> str:
    """The address with the password. Raises BadRequest for an address that has another password already."""
    user = _USER.search(url)
    if (user and user["password"]) or _IN_QUERY.search(url):
        raise BadRequest(f"{without_password(url)} has a password, and so has the password file; give one of them")
    scheme, _, rest = url.partition("://")
    name, place = (user["user"], url[user.end() :]) if user else ("", rest)
    return f"{scheme}://{name}:{quote(password, safe='')}@{place}"


def with_user(url: str, user: str) -> str:
    """The address with the user. Raises BadRequest for an address that names another user already."""
    scheme, separator, place = url.partition("://")
    if not separator or _USER.search(url):
        raise BadRequest(f"{without_password(url)} must be an address without a user, as redis://HOST:PORT/0")
    return f"{scheme}://{user}@{place}"


def without_password(url: str) -> str:
    """The address for messages: with its user and without its password.

    In text that is not an address, everything that may be a password is hidden.
    """
    without_query = _IN_QUERY.sub(_HIDDEN, url)
    scheme, separator, rest = without_query.partition("://")
    if "@" not in rest and "@" not in scheme:
        return without_query
    if not separator or "@" in scheme:
        return _HIDDEN
    user = _USER.search(without_query)
    place = rest.rpartition("@")[2]
    if user is None or user.end() != len(without_query) - len(place):
        return f"{scheme}://{_HIDDEN}@{place}"
    return f"{scheme}://{user['user']}{':' + _HIDDEN if user['password'] else ''}@{place}"
