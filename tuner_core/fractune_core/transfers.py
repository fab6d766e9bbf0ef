"""How long a transfer to a server may take."""

from __future__ import annotations

_BASE_S = 60.0
_LEAST_BYTES_PER_S = 256 << 10


def transfer_s(size_bytes: int) -> float:
    """Seconds that a client waits, and a server holds a thread, for so many bytes: slower senders are cut off."""
    return _BASE_S + size_bytes / _LEAST_BYTES_PER_S
