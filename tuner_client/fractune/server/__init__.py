"""The connection to a server: calls, uploads, credentials, and data of jobs and workers."""
