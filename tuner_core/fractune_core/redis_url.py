"""The address of a Redis: with its password where one connects, without it wherever it is shown."""

from __future__ import annotations

import re
from urllib.parse import quote

from fractune_core.errors import BadRequest, FractuneError, RedisGone

_USER = re.compile(r"(?<=://)(?P<user>[^:/@]*)(?P<password>:.*)?@", re.DOTALL)
_IN_QUERY = re.compile(r"(?<=[?&]password=)[^&]*")
_HIDDEN = "***"


def with_password(url: str, password: str) -> str:
    """The address that also says the password. Raises BadRequest for one that has another already."""
    user = _USER.search(url)
    if (user and user["password"]) or _IN_QUERY.search(url):
        raise BadRequest(f"{without_password(url)} has a password, and so has the password file; give one of them")
    scheme, _, rest = url.partition("://")
    name, place = (user["user"], url[user.end() :]) if user else ("", rest)
    return f"{scheme}://{name}:{quote(password, safe='')}@{place}"


def without_password(url: str) -> str:
    """For messages: whoever reads them may know the address and the user, and not the password. Of what is no address,
    nothing is shown that may be one.
    """
    without_query = _IN_QUERY.sub(_HIDDEN, url)
    shown, found = _USER.subn(
        lambda user: f"{user['user']}{':' + _HIDDEN if user['password'] else ''}@", without_query, count=1
    )
    if found or "@" not in without_query:
        return shown
    scheme, separator, rest = without_query.partition("://")
    return f"{scheme}{separator}{_HIDDEN}@{rest.rpartition('@')[2]}" if separator else _HIDDEN


def no_redis(url: str, error: Exception) -> FractuneError:
    """What it means that no Redis answers there, or not to this user, or that this is no address."""
    shown = without_password(url)
    if isinstance(error, ValueError):  # whose text may quote a part of the password
        return BadRequest(f"--redis {shown}: no address of a Redis; write redis://USER@HOST:PORT/DB or unix:///PATH")
    return RedisGone(
        f"no Redis at {shown} ({error}); start it, name another by --redis, or check its user and the password file"
    )
