"""The pages of a server: what it does now, and what it found. A client of its gRPC like any other."""
