"""The connection to a server: calls, uploads, credentials, and what it answers about jobs and workers."""
