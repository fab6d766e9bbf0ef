"""Counters of the server, which `fractune_server.monitoring` shows."""
