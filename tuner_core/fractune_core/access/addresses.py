"""Addresses of servers and services, and limits of connections to them: the size of a message, pings that find a peer
that is gone, the time of a transfer.

A network that drops packets reports nothing, and a watch may be silent for hours. So client and server both send pings.
A ping without an answer ends the connection and its calls.
"""

import ipaddress
import re
from urllib.parse import quote

from fractune_core.errors import BadRequest

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
"""of a request; what is larger is sent as a stream of messages"""

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
