"""Which job and which work the lines of a log are about, for those who read logs by machine.

What is logged inside `log_fields(job=..., work=...)`, by the same thread, is about them, whoever logs it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from types import MappingProxyType

_fields: ContextVar[Mapping[str, str]] = ContextVar("log_fields", default=MappingProxyType({}))


@contextlib.contextmanager
def log_fields(**fields: str) -> Iterator[None]:
    """Within the block, what is logged has these fields, beside those of the blocks around it."""
    token = _fields.set({**_fields.get(), **fields})
    try:
        yield
    finally:
        _fields.reset(token)


def current_log_fields() -> Mapping[str, str]:
    """Those of the block that this thread is in."""
    return _fields.get()
