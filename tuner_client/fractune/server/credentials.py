"""Files that authenticate server and client, named by the caller or by the environment."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fractune_core.access import UNIX, TokenText, is_local, read_authority, read_pair, read_token_file
from fractune_core.errors import BadRequest

if TYPE_CHECKING:
    import grpc

VARIABLES = {
    "ca": "FRACTUNE_CA",
    "token_file": "FRACTUNE_TOKEN_FILE",
    "client_cert": "FRACTUNE_CLIENT_CERT",
    "client_key": "FRACTUNE_CLIENT_KEY",
}
"""the environment variable of each field of `Credentials`"""


@dataclass(frozen=True)
class Credentials:
    """PEM files, and the file of a token, which is sent over TLS only. Without any of them calls are in plain text."""

    ca: Path | None = None
    """authorities that may have signed the server's certificate"""
    token_file: Path | None = None
    token: TokenText | None = None
    """in place of a file"""
    client_cert: Path | None = None
    """certificate of this client, for a server that requires one"""
    client_key: Path | None = None

    @classmethod
    def found(cls, **given: str | os.PathLike[str] | None) -> Self:
        """The given files; for each None the one that the environment names."""
        named = {field: given.get(field) or os.environ.get(variable) for field, variable in VARIABLES.items()}
        paths: dict[str, Any] = {field: Path(path).expanduser() if path else None for field, path in named.items()}
        return cls(**paths)

    def channel(self, address: str, options: Sequence[tuple[str, Any]]) -> grpc.Channel:
        """A channel to `address`. Raises BadRequest for unusable files, and if a token would leave this machine in
        plain text.
        """
        import grpc  # here, because commands that call no server read VARIABLES too

        if self.ca is None or address.startswith(UNIX):
            self._check_plain(address)
            return grpc.insecure_channel(address, options=options)
        credentials = grpc.ssl_channel_credentials(read_authority("--ca", self.ca), *self._client_pair())
        text = self.token.text if self.token else read_token_file(self.token_file) if self.token_file else ""
        if text:
            credentials = grpc.composite_channel_credentials(credentials, grpc.access_token_call_credentials(text))
        return grpc.secure_channel(address, credentials, options=options)

    def _check_plain(self, address: str) -> None:
        """Raise BadRequest if credentials would be unused. A local server in plain text needs none, so none are
        sent.
        """
        if is_local(address):
            return
        for option, path in (("--token-file", self.token_file), ("--client-cert", self.client_cert)):
            if path is not None:
                raise BadRequest(
                    f"{option} {path} is not used in plain text with another machine ({address}); pass --ca with the "
                    "server's authority, or /etc/ssl/certs/ca-certificates.crt for the public ones"
                )

    def _client_pair(self) -> tuple[bytes | None, bytes | None]:
        """Key and certificate, in gRPC's order."""
        if self.client_cert is None and self.client_key is None:
            return None, None
        if self.client_cert is None or self.client_key is None:
            raise BadRequest("--client-cert and --client-key go together; pass both")
        cert, key = read_pair("--client-cert", self.client_cert, "--client-key", self.client_key)
        return key, cert


PLAIN = Credentials()
