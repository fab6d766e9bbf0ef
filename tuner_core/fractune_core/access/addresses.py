"""Addresses of servers and services: whether they stay on this machine, and the passwords in them."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import quote

from fractune_core.errors import BadRequest

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
