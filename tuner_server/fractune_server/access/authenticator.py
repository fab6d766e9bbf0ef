"""Checks the token of a call, and names its caller."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial

from fractune_core.access.addresses import UNIX
from fractune_core.access.tokens import Quotas, Scope, TokenText
from fractune_core.errors import AccessRefused, FractuneError, ScopeMissing, TooManyAttempts
from fractune_core.jobs import Priority
from fractune_server.access.attempts import Attempts
from fractune_server.store.tokens import StoredToken, TokenStore

_SCHEME = "Bearer "
_NO_TOKEN = "this server needs a token; ask its operator for one, and pass --token-file or FRACTUNE_TOKEN_FILE"  # noqa: S105
_WRONG = "this server does not know the token; ask its operator for one"

CHECK_EVERY_S = 2.5
"""how often a long call checks its token again; a watcher may check up to one second later"""

_log = logging.getLogger(__name__)


class _Check:
    """Calls `check` at most every CHECK_EVERY_S. One thread at a time."""

    def __init__(self, check: Callable[[], object]) -> None:
        self._check = check
        self._checked_at = time.monotonic()

    def __call__(self) -> None:
        now = time.monotonic()
        if now - self._checked_at >= CHECK_EVERY_S:
            self._checked_at = now
            self._check()


def _check_nothing() -> None:
    pass


@dataclass(frozen=True)
class Caller:
    """Who calls, and what the caller may do."""

    token_id: str = ""
    """empty = a caller who needed no token"""
    scope: Scope = Scope.ADMIN
    quotas: Quotas = field(default_factory=Quotas)
    max_priority: Priority = Priority.HIGH
    check: Callable[[], None] = field(default=_check_nothing, compare=False)
    """for long calls: raises AccessRefused once the token is revoked or expired"""


ANYBODY = Caller()
_caller: ContextVar[Caller] = ContextVar("caller")


def caller() -> Caller:
    """The caller of the call that this thread answers."""
    return _caller.get()


def set_caller(found: Caller) -> None:
    """Set the caller before a call is answered. Nothing resets it, because every call sets its own."""
    _caller.set(found)


class Authenticator:
    """Checks the tokens of calls. Any thread may call."""

    def __init__(self, tokens: TokenStore, *, token_needed: bool, attempts: Attempts | None = None) -> None:
        """If `token_needed` is False, calls without a token may do everything."""
        self._tokens = tokens
        self._token_needed = token_needed
        self._attempts = attempts or Attempts()
        self._lines = Attempts()

    def admit(self, path: str, needed: Scope, peer: str, metadata: Mapping[str, str | bytes]) -> Caller:
        """Raises AccessRefused, ScopeMissing or TooManyAttempts."""
        if peer.startswith(UNIX):  # the permissions of the socket's file decide
            return ANYBODY
        try:
            return self._admit(needed, peer, str(metadata.get("authorization", "")))
        except FractuneError as error:
            if not self._lines.wait_s(peer):  # strangers must not fill the log's disk
                self._lines.failed(peer)
                _log.warning("refused %s from %s: %s", path, peer, error)
            raise

    def _admit(self, needed: Scope, peer: str, authorization: str) -> Caller:
        if not authorization:
            if self._token_needed:
                raise AccessRefused(_NO_TOKEN)
            return ANYBODY
        wait_s = self._attempts.wait_s(peer)
        if wait_s:
            raise TooManyAttempts(
                f"too many wrong tokens came from this address; try again in {wait_s:.1f} s with a valid token"
            )
        text = TokenText.parse(authorization.removeprefix(_SCHEME))
        token = None if text is None else self._tokens.find(text)
        if text is None or token is None:
            self._attempts.failed(peer)
            raise AccessRefused(_WRONG)
        _check_open(token)
        if not token.scope.includes(needed):
            raise ScopeMissing(
                f"token {token.token_id} ({token.name}) has the scope {token.scope}, and this needs {needed}; "
                "ask the server's operator for such a token"
            )
        check = _Check(partial(self._check_again, text))
        return Caller(token.token_id, token.scope, token.quotas, token.max_priority, check)

    def _check_again(self, text: TokenText) -> None:
        token = self._tokens.find(text)
        if token is None:
            raise AccessRefused(_WRONG)
        _check_open(token)


def _check_open(token: StoredToken) -> None:
    """Raises AccessRefused for a token that is revoked or expired."""
    end = token.end(time.time())
    if end:
        raise AccessRefused(f"token {token.token_id} ({token.name}) is {end}; ask the server's operator for a new one")
