"""How client and server find out that the other one is gone, though its connection was never closed.

A network that drops packets says nothing, and a watch may be silent for hours. So both ask: a ping that is not answered
ends the connection, and with it its calls.
"""

from __future__ import annotations

_ANSWER_MS = 8_000
"""grpc.keepalive_timeout_ms says the same, and gRPC 1.85 closes nothing by it"""
CLIENT_KEEPALIVE = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", _ANSWER_MS),
    ("grpc.http2.max_pings_without_data", 0),
)
"""options of a channel: a call without an answer of the network for 18 s ends"""
SERVER_KEEPALIVE = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", _ANSWER_MS),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
)
"""options of a server: a client that is gone gives its place among the watchers back within 28 s, and clients may ask
as often as those above do"""
