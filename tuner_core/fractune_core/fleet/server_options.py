"""The options of one server process: the command line builds them, the server runs by them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fractune_core.access.tls_files import TlsFiles

MODEL_LIMIT_BYTES = 2 << 30
"""default limit of one model file"""


@dataclass(frozen=True)
class ServerOptions:
    listen: str
    """HOST:PORT (port 0 = any free port) or unix:PATH"""
    redis_url: str
    state_dir: Path
    """folder of models, bundles and, without `database_url`, the database. The server locks it while it runs; with
    PostgreSQL the lock is in the database."""
    secret: bytes
    """secret of the fleet: it signs bundles"""
    database_url: str | None = None
    """SQLAlchemy's URL of another database than SQLite in the state folder; a second server on one PostgreSQL waits"""
    insecure: bool = False
    """allow an address that other machines can reach, although calls have neither encryption nor credentials"""
    tls: TlsFiles | None = None
    """serve with TLS; every call needs a token, or with `client_ca` every connection a certificate"""
    local_socket: Path | None = None
    """with TLS: also serve at this Unix socket, without credentials, for the user of this process"""
    upload_limit_bytes: int = MODEL_LIMIT_BYTES
    """limit of one model file"""
    resume: bool = True
    """continue the jobs that an earlier server left open; otherwise they end as cancelled"""
    metrics: str | None = None
    """HOST:PORT for metrics and health over HTTP; None = no such port. If other machines can reach it, it needs `tls`,
    serves HTTPS, and metrics need a token with the scope `read`."""
    webhook_hosts: str = ""
    """HOST[:PORT],...: hosts that webhooks of jobs may name; empty = none"""
    webhook_secret_file: Path | None = None
    """secret that signs webhook calls; without it there are none"""
    ready_file: Path | None = None
    """the server writes its bound address here when it serves"""
