"""The least CPU limit for a request rate and a p99."""
