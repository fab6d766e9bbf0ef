"""Where a server may listen: on loopback without TLS, elsewhere with TLS or with --insecure."""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc

from fractune_core.access.addresses import UNIX, is_local
from fractune_core.access.tls_files import TlsFiles, read_authority, read_pair
from fractune_core.errors import BadRequest


def server_credentials(listen: str, tls: TlsFiles | None, *, insecure: bool) -> grpc.ServerCredentials | None:
    """None = plain text. Raises BadRequest for unusable files, and for an address that other machines can reach,
    unless TLS or `insecure` is given.
    """
    if tls is None:
        if not insecure and not is_local(listen):
            raise BadRequest(
                f"address {listen} can be reached from other machines, and calls carry no credentials; listen on "
                "127.0.0.1, pass --tls-cert and --tls-key (then calls need tokens), or pass --insecure"
            )
        return None
    if insecure:
        raise BadRequest("--insecure excludes TLS and tokens; leave out --insecure, or --tls-cert and --tls-key")
    if listen.startswith(UNIX):
        raise BadRequest(f"TLS is for HOST:PORT, and {listen} is a socket on this machine; leave --tls-cert out")
    cert, key = read_pair("--tls-cert", tls.cert, "--tls-key", tls.key)
    authority = read_authority("--client-ca", tls.client_ca) if tls.client_ca else None
    return grpc.ssl_server_credentials([(key, cert)], authority, require_client_auth=authority is not None)


def metrics_tls(address: str | None, tls: TlsFiles | None, *, insecure: bool) -> ssl.SSLContext | None:
    """TLS for the metrics port. None = plain HTTP without credentials: on loopback, or with `insecure`.

    `server_credentials` has checked the files in `tls`. Raises BadRequest if other machines can reach the address and
    `tls` is None.
    """
    if address is None or insecure or is_local(address):
        return None
    if tls is None:
        raise BadRequest(
            f"metrics address {address} can be reached from other machines, and needs no credentials; use one on "
            "127.0.0.1, pass --tls-cert and --tls-key (then metrics need a token, too), or pass --insecure"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.cert, tls.key)
    if tls.client_ca is not None:
        context.load_verify_locations(tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def bind(server: grpc.Server, listen: str, credentials: grpc.ServerCredentials | None) -> str:
    """The address that clients can use. Raises BadRequest."""
    try:
        port = server.add_insecure_port(listen) if credentials is None else server.add_secure_port(listen, credentials)
    except RuntimeError as error:
        raise BadRequest(f"cannot listen on {listen}: it is in use, or not an address of this machine") from error
    return listen if listen.startswith(UNIX) else f"{listen.rpartition(':')[0]}:{port}"


def bind_local(server: grpc.Server, path: Path) -> None:
    """Also serve at a Unix socket that only its user may open. Raises BadRequest."""
    bind(server, f"{UNIX}{path}", None)
    path.chmod(0o600)
