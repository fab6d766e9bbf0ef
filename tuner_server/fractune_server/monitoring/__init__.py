"""The server seen from outside: metrics for Prometheus, and whether it is healthy."""
