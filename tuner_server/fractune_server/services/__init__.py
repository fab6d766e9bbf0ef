"""gRPC services: decode, call, encode. One table maps errors to status codes."""
