"""Addresses of servers: which of them stay on this machine."""

from __future__ import annotations

import ipaddress

UNIX = "unix:"


def is_local(address: str) -> bool:
    """Whether what is sent to HOST:PORT or unix:PATH cannot leave this machine; False for any form not known."""
    if address.startswith(UNIX):
        return True
    host = address.rpartition(":")[0].strip("[]")
    return host == "localhost" or _is_loopback(host)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
