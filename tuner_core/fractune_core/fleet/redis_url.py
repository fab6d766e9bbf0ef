"""What it means that an address of a Redis cannot be used."""

from __future__ import annotations

from fractune_core.access.addresses import without_password
from fractune_core.errors import BadRequest, FractuneError, RedisGone


def no_redis(url: str, error: Exception) -> FractuneError:
    """What it means that no Redis answers there, or not to this user, or that this is no address."""
    shown = without_password(url)
    if isinstance(error, ValueError):  # whose text may quote a part of the password
        return BadRequest(f"--redis {shown}: no address of a Redis; write redis://USER@HOST:PORT/DB or unix:///PATH")
    return RedisGone(
        f"no Redis at {shown} ({error}); start it, name another by --redis, or check its user and the password file"
    )
