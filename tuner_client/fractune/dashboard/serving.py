"""The process of the pages: its address, its credentials, its end."""

import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from fractune.dashboard.app import Advise, Site
from fractune.dashboard.guard import GuardOptions
from fractune.dashboard.sign_in import Entrance, SignedInPages
from fractune.features.client import Client
from fractune_core.access import TlsFiles, is_local, read_pair
from fractune_core.errors import BadRequest

_END_S = 2
"""A stop waits for answers this long"""


@dataclass(frozen=True)
class PageOptions:
    """Where the pages are served, and to whom."""

    listen: str
    """HOST:PORT; port 0 takes a free one"""
    tls: TlsFiles | None = None
    token_file: Path | None = None
    """with the password that a browser asks for"""
    insecure: bool = False
    """whoever reaches the address may read, without TLS and a token"""
    may_cancel: bool = False
    advise: Advise | None = None
    """of a stack on this machine"""

    def no_token(self) -> str:
        """For readers who sign in. Raises BadRequest for an address where their tokens would cross a network in plain
        text, and for a password beside them.
        """
        if self.token_file is not None or self.insecure:
            raise BadRequest("--sign-in excludes --page-token-file and --insecure: each reader has a token of its own")
        if not is_local(self.listen) and self.tls is None:
            raise BadRequest(
                "--sign-in would send tokens over the network in plain text; pass --tls-cert and --tls-key"
            )
        return ""

    def token(self, *, is_guarded: bool) -> str:
        """The password, empty for none. A page of a server that `is_guarded` has one even on loopback, which all users
        of a machine share. Raises BadRequest for an unusable file, or a page that strangers could read.
        """
        if self.token_file is None:
            if not is_local(self.listen) and not self.insecure:
                raise BadRequest(
                    f"--listen {self.listen} can be reached from other machines; listen on 127.0.0.1, pass --tls-cert, "
                    "--tls-key and --page-token-file, or pass --insecure"
                )
            return secrets.token_urlsafe() if is_guarded and not self.insecure else ""
        if not is_local(self.listen) and self.tls is None and not self.insecure:
            raise BadRequest("--page-token-file would cross the network in plain text; pass --tls-cert and --tls-key")
        try:
            token = self.token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadRequest(f"--page-token-file {self.token_file}: cannot be read as text ({error})") from error
        if not token:
            raise BadRequest(f"--page-token-file {self.token_file}: is empty; write the token to it")
        return token


class PageServer(uvicorn.Server):
    """Serves a site, or those of readers who sign in. An orderly stop ends the streams of tabs, which never end by
    themselves.
    """

    def __init__(self, site: Site | SignedInPages, tls: TlsFiles | None = None) -> None:
        config = uvicorn.Config(
            site.app() if isinstance(site, Site) else site,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_END_S,
            ssl_certfile=None if tls is None else tls.cert,
            ssl_keyfile=None if tls is None else tls.key,
        )
        super().__init__(config)
        self._site = site

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._site.end()
        await super().shutdown(sockets)


def serve_pages(client: Client | Entrance, options: PageOptions, ready: Callable[[str, str], None]) -> None:
    """Serve until SIGTERM or SIGINT. `ready` gets the address of the first page, and the password if this function made
    one. With an Entrance each reader signs in with a token of the server. Raises BadRequest.
    """
    host, _ = _parsed("--listen", options.listen)
    token = options.token(is_guarded=client.is_guarded) if isinstance(client, Client) else options.no_token()
    if options.tls is not None:
        read_pair("--tls-cert", options.tls.cert, "--tls-key", options.tls.key)
    guard = GuardOptions(is_local(options.listen), token)

    def make(of: Client) -> Site:
        return Site(of, guard, may_cancel=options.may_cancel, advise=options.advise)

    site = make(client) if isinstance(client, Client) else SignedInPages(client, make)
    bound = bound_at("--listen", options.listen)
    scheme = "http" if options.tls is None else "https"
    ready(f"{scheme}://{host}:{bound.getsockname()[1]}/", "" if options.token_file else token)
    PageServer(site, options.tls).run(sockets=[bound])


def _parsed(option: str, listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal():
        raise BadRequest(f"{option} {listen}: write HOST:PORT, such as 127.0.0.1:8080")
    return host, int(port)


def bound_at(option: str, listen: str) -> socket.socket:
    """A socket at the HOST:PORT of the option; port 0 takes a free one. Raises BadRequest."""
    host, port = _parsed(option, listen)
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host.strip("[]"), port))
        bound.listen()
    except (OSError, OverflowError) as error:
        bound.close()
        raise BadRequest(
            f"cannot listen on {listen}: it is in use, or not an address of this machine; pass {option} HOST:PORT with "
            "another port, or 0 for a free one"
        ) from error
    return bound
