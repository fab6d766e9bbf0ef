"""The words of fractune's domain: shares, devices, records, jobs, matches. Standard library and protobuf only."""

__version__ = "0.1.0"

LOWERING = 5
"""Rises when models are lowered to other operators than before: models read with another number are read again"""
