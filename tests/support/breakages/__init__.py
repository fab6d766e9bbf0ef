"""Promises of the docs, each broken on purpose: the test that keeps it must fail."""
