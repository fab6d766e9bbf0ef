"""The words of fractune's domain: shares, devices, records, jobs, matches. Standard library and protobuf only."""

__version__ = "0.1.0"
