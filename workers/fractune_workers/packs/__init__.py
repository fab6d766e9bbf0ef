"""Packs: made on one machine, measured on another one, without a server."""
