"""The job and the work of each line of the server's and the workers' logs, for programs that read them.

Every line that a thread logs inside `log_fields(job=..., work=...)` gets these fields.
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
