"""Wrong tokens are slowed by refusing, which costs no thread: who made too many is not heard for a while."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from urllib.parse import unquote

BURST = 10
"""wrong tokens that one address has at once"""
FORGIVEN_AFTER_S = 1.0
"""one of them is forgotten after this long"""
_MAX_PEERS = 4096


class Attempts:
    """Wrong tokens by the caller's address. Any thread may call; memory is bounded, the oldest address goes first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._clean_at: OrderedDict[str, float] = OrderedDict()
        """by address, the time at which all its wrong tokens are forgotten"""

    def wait_s(self, peer: str) -> float:
        """Seconds until `peer`, as gRPC names it, is heard again; 0 = now."""
        with self._lock:
            clean_at = self._clean_at.get(address_of(peer), 0.0)
        return max(clean_at - self._clock() - (BURST - 1) * FORGIVEN_AFTER_S, 0.0)

    def failed(self, peer: str) -> None:
        address = address_of(peer)
        with self._lock:
            now = self._clock()
            self._clean_at[address] = max(self._clean_at.pop(address, 0.0), now) + FORGIVEN_AFTER_S
            if len(self._clean_at) > _MAX_PEERS:
                self._clean_at.popitem(last=False)


def address_of(peer: str) -> str:
    """Of `ipv4:192.0.2.1:5000` the address, of `ipv6:[2001:db8::1]:5000` its /64, which one host may have whole."""
    kind, _, rest = peer.partition(":")
    host = unquote(rest).rpartition(":")[0].strip("[]").partition("%")[0]
    if kind != "ipv6":
        return host or peer
    try:
        found = ipaddress.IPv6Address(host)
    except ValueError:
        return peer
    return str(found.ipv4_mapped or ipaddress.ip_network((found, 64), strict=False))
