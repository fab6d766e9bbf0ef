"""Latency and throughput of a model under a CPU limit (a CFS quota), predicted from its times without one."""
