"""Callers of a server, and how they connect: addresses, certificates, tokens."""
