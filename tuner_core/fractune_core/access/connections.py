"""Limits of connections: the size of a message, pings that find a peer that is gone, the time of a transfer.

A network that drops packets reports nothing, and a watch may be silent for hours. So client and server both send pings.
A ping without an answer ends the connection and its calls.
"""

from __future__ import annotations

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
