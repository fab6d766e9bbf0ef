"""Tokens: the calls that a caller may make to a server, and its quotas.

A token is text with a public id and a secret of 256 random bits. The server keeps only the SHA-256 of the secret. A
slow hash would add nothing: it protects words that people choose, and 256 random bits cannot be guessed.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self

from fractune_core.errors import BadRequest
from fractune_core.names import DEFAULT_TENANT

_TEXT = re.compile(r"fractune_([0-9a-f]{12})_([0-9a-f]{64})")


class Scope(StrEnum):
    """Permissions of a caller; each includes those before it."""

    READ = "read"
    SUBMIT = "submit"
    OPERATE = "operate"
    ADMIN = "admin"

    def includes(self, other: Scope) -> bool:
        order = list(Scope)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True)
class Quotas:
    """Limits of a token or of a tenant; None = no limit."""

    open_jobs: int | None = None
    """open jobs at the same time"""
    trials_a_day: int | None = None
    """trials of the jobs of the last 24 hours; an open job counts with all its requested trials"""
    stored_bytes: int | None = None
    """bytes of all uploaded models, and of all bundles that jobs have made"""
    share_seconds_a_day: int | None = None
    """seconds for which measuring workers worked for jobs in the last 24 hours"""


@dataclass(frozen=True)
class Reach:
    """Whose jobs, models and records a token reaches."""

    tenant: str = DEFAULT_TENANT
    """the owner of what the token creates"""
    all_tenants: bool = False
    """it sees what any tenant has, as each token of the scope admin does"""


DEFAULT_REACH = Reach()


@dataclass(frozen=True)
class TokenText:
    """A token as its owner holds it. Its `repr` hides the secret."""

    token_id: str
    """12 hex digits"""
    secret: str
    """64 hex digits"""

    @classmethod
    def new(cls) -> Self:
        return cls(secrets.token_hex(6), secrets.token_hex(32))

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """None for text that is not a token."""
        found = _TEXT.fullmatch(text)
        return cls(*found.groups()) if found else None

    @property
    def secret_sha256(self) -> str:
        return hashlib.sha256(self.secret.encode()).hexdigest()

    @property
    def text(self) -> str:
        return f"fractune_{self.token_id}_{self.secret}"

    def __repr__(self) -> str:
        return f"TokenText({self.token_id})"


def read_token_file(path: Path) -> str:
    """The token in a file. Raises BadRequest, which shows nothing of the file's contents."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise BadRequest(f"token file {path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise BadRequest(f"token file {path}: holds no token") from error
    if TokenText.parse(text) is None:
        raise BadRequest(f"token file {path}: holds no token; `fractune admin token create` writes such a file")
    return text
