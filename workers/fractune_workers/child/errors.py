"""Errors of a child's calls, and the rule by which a death of the child counts against its work."""

import errno
import logging
import signal
from collections.abc import Callable, Mapping
from typing import TypeVar

from fractune_core.errors import BadModel, BadRequest, FractuneError, error_from_name
from fractune_core.host.limits import memory_limit

TRIES = 3
"""A process must be killed from outside this often before its death counts against its work."""
_REFUSED_MEMORY = "bad_alloc"
"""TVM's errors contain this text where C++ was refused memory."""
_KILLS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class ChildDied(FractuneError):
    """The child process ended in the middle of a call; the message says how.

    Raised in a child it means that the process has lost what it works with, and ends after this answer.
    """


class ChildKilled(ChildDied):
    """The child process was ended from outside: by a user, or by a kernel that was out of memory."""


class LimitMet(ChildDied):
    """The work that the child was given takes more memory or CPU time than it may."""


class ChildUnwanted(FractuneError):
    """The answer of a call is not wanted any more; the child was killed."""


class ChildTimeout(FractuneError):
    """A call took longer than its deadline; the child was killed."""

    def __init__(self, message: str, *, released: bool = True) -> None:
        super().__init__(message)
        self.released = released
        """whether the device let go of the child before it was killed"""


class CallFailed(FractuneError):
    """The call raised inside the child, which lives on; the message is the exception's first line."""


_OF_READERS = frozenset(kind.__name__ for kind in (BadModel, BadRequest, ChildDied, LimitMet))
"""errors that a child which reads models may raise, beside CallFailed"""

CALL_ERRORS = (CallFailed, ChildDied, ChildTimeout)
"""Raised by a call when what it runs may be to blame."""


def memory_met(memory_bytes: int) -> LimitMet:
    return LimitMet(
        f"it takes more than {memory_bytes / 2**30:.3g} GiB of memory; make it smaller, or start workers with a larger "
        "--max-model-memory"
    )


def memory_met_by(error: Exception) -> LimitMet | None:
    """The limit on this process's memory, where an error says that it was refused some; None for another error."""
    refused = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    limit_bytes = memory_limit()
    if limit_bytes is None or not (refused or _REFUSED_MEMORY in str(error)):
        return None
    return memory_met(limit_bytes)


def cpu_met(cpu_s: int) -> LimitMet:
    return LimitMet(f"it takes more than {cpu_s} s of CPU time; make it smaller")


def is_kill(number: int) -> bool:
    """Whether a process that signal `number` has ended was ended from outside; 0 = by no signal."""
    return number in _KILLS


def retry_if_killed(run: Callable[[], _T]) -> _T:
    """The result of `run`, which calls a child. It is called again when the child is killed from outside, which does
    not count against the work unless it happens TRIES times in a row. Raises what `run` raises.
    """
    for _ in range(TRIES - 1):
        try:
            return run()
        except ChildKilled as error:
            _log.warning("%s from outside; its work is done again", error)
    try:
        return run()
    except ChildKilled as error:
        raise ChildKilled(f"{error}, {TRIES} times in a row; is this machine out of memory?") from error


def error_of(answer: Mapping[str, str], *, trusted: bool) -> FractuneError:
    """The error that a child's answer names.

    A child that has read or run what a stranger made may be hostile. Another name than those of `_OF_READERS` could
    end its worker, or have the work done again without end. It makes a plain FractuneError.
    """
    name, message = answer["error"], answer["message"]
    if name == CallFailed.__name__:
        return CallFailed(message)
    return error_from_name(name if trusted or name in _OF_READERS else "", message)
