"""Refuses addresses that sent too many wrong tokens, for a while. A refusal, unlike a delay, holds no thread."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from urllib.parse import unquote

BURST = 10
"""wrong tokens that an address may send at once"""
FORGIVEN_AFTER_S = 1.0
"""after this time one wrong token is forgotten"""
_MAX_PEERS = 4096


class Attempts:
    """Counts wrong tokens by the caller's address. Any thread may call. Memory is bounded: the oldest address goes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._clean_at: OrderedDict[str, float] = OrderedDict()
        """by address: when all of its wrong tokens are forgotten"""

    def wait_s(self, peer: str) -> float:
        """Seconds until calls of `peer`, as gRPC names it, are accepted again; 0 = now."""
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
    """The address in `ipv4:192.0.2.1:5000`; the /64 in `ipv6:[2001:db8::1]:5000`, because one host may own it."""
    kind, _, rest = peer.partition(":")
    host = unquote(rest).rpartition(":")[0].strip("[]").partition("%")[0]
    if kind != "ipv6":
        return host or peer
    try:
        found = ipaddress.IPv6Address(host)
    except ValueError:
        return peer
    return str(found.ipv4_mapped or ipaddress.ip_network((found, 64), strict=False))
