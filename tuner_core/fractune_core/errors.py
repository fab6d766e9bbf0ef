"""Every error that fractune tells a user about.

    FractuneError                 exit code, gRPC status
    ├── BadRequest                2   INVALID_ARGUMENT      an option, a budget, a filter
    ├── BadModel                  3   INVALID_ARGUMENT      the model file, its shapes, its operators
    ├── ShareUnavailable          4   FAILED_PRECONDITION   unknown, too large, not verifiable, offered by no worker
    │   ├── ShareNotReady         4   FAILED_PRECONDITION   what serves it is still starting
    │   └── PlanInfeasible        4   FAILED_PRECONDITION   a plan that the devices cannot hold
    ├── ServerUnreachable         5   UNAVAILABLE           no server, or it went away
    │   └── RedisGone             5   UNAVAILABLE           the queue went away
    ├── JobFailed                 6   ABORTED               a job ended without a result
    │   └── JobCancelled          6   CANCELLED             somebody cancelled it
    ├── StateUnusable             7   FAILED_PRECONDITION   state folder: read-only, in use, disk full
    │   └── QuotaExceeded         7   RESOURCE_EXHAUSTED    a size or a count over its limit
    ├── BadBundle                 8   INVALID_ARGUMENT      torn, or for another processor
    ├── OutputsDiffer             12  DATA_LOSS             a bundle that computes something else than its model
    ├── NotFound                  9   NOT_FOUND             no such job, model, bundle, record
    └── AccessRefused             11  UNAUTHENTICATED       no token, or none that the server takes
        ├── ScopeMissing          11  PERMISSION_DENIED     a token that may not do this
        └── TooManyAttempts       11  RESOURCE_EXHAUSTED    wrong tokens from this address, too fast

The exit codes are a promise to scripts; `docs/exit-codes.md` lists them for users.
"""

from collections.abc import Iterable
from typing import ClassVar

_MOST_CHARACTERS = 2_000
"""Of a message"""
_MOST_NAMES = 10
"""Of a list in a message"""


class FractuneError(Exception):
    """An error with one clear line for the user: what is wrong with which value, and what to do next.

    A long line has its middle left out, for the value that it quotes may be of any length.
    """

    exit_code: ClassVar[int] = 1
    grpc_status: ClassVar[str] = "INTERNAL"

    def __str__(self) -> str:
        return as_message(super().__str__())


class BadRequest(FractuneError):
    """An option, a budget or a filter that cannot be meant."""

    exit_code = 2
    grpc_status = "INVALID_ARGUMENT"


class BadModel(FractuneError):
    """The model: its file, its shapes, an operator that cannot be imported."""

    exit_code = 3
    grpc_status = "INVALID_ARGUMENT"


class ShareUnavailable(FractuneError):
    """A share that is unknown, too large, not verifiable, or offered by no worker."""

    exit_code = 4
    grpc_status = "FAILED_PRECONDITION"


class ShareNotReady(ShareUnavailable):
    """A share with a service that is still starting: a restarted process may succeed."""


class PlanInfeasible(ShareUnavailable):
    """The devices of a plan cannot meet the rates and targets of its models."""


class ServerUnreachable(FractuneError):
    """No server answers, or it went away; what was committed is kept."""

    exit_code = 5
    grpc_status = "UNAVAILABLE"


class RedisGone(ServerUnreachable):
    """The server's queue went away; what was committed is kept."""


class JobFailed(FractuneError):
    """A job that ended without a result."""

    exit_code = 6
    grpc_status = "ABORTED"


class JobCancelled(JobFailed):
    """A job that was cancelled."""

    grpc_status = "CANCELLED"


class StateUnusable(FractuneError):
    """The state folder or an output file: read-only, in use, or on a full disk."""

    exit_code = 7
    grpc_status = "FAILED_PRECONDITION"


class QuotaExceeded(StateUnusable):
    """A size or a count over its limit."""

    grpc_status = "RESOURCE_EXHAUSTED"


class BadBundle(FractuneError):
    """A bundle that is torn, changed, of another format, for another processor, or not signed."""

    exit_code = 8
    grpc_status = "INVALID_ARGUMENT"


class OutputsDiffer(FractuneError):
    """A bundle that computes something else than its model; the message names the first node that does."""

    exit_code = 12
    grpc_status = "DATA_LOSS"


class NotFound(FractuneError):
    """No such job, model, bundle or record."""

    exit_code = 9
    grpc_status = "NOT_FOUND"


class AccessRefused(FractuneError):
    """No token, or one that the server does not know, or no longer takes."""

    exit_code = 11
    grpc_status = "UNAUTHENTICATED"


class ScopeMissing(AccessRefused):
    """A token without the scope for this call."""

    grpc_status = "PERMISSION_DENIED"


class TooManyAttempts(AccessRefused):
    """Too many wrong tokens came from this address; the server accepts calls from it again after a short time."""

    grpc_status = "RESOURCE_EXHAUSTED"


def one_line(text: str) -> str:
    """The text on one line: blanks for line ends, and escapes for characters that a terminal would act on or cannot
    show. A message may quote a value from anywhere.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in " ".join(text.split()))


def as_message(text: str) -> str:
    """The text on one line of at most 2,000 characters, each of them printable: every log and database holds it."""
    short = shortened(text, _MOST_CHARACTERS)  # first: the text may have millions of characters
    return shortened(one_line(short), _MOST_CHARACTERS)


def shortened(text: str, most: int) -> str:
    """The text; a text longer than `most` characters loses its middle."""
    gap = " ... "
    kept = most - len(gap)
    return text if len(text) <= most else f"{text[: kept - kept // 2]}{gap}{text[len(text) - kept // 2 :]}"


def some_of(names: Iterable[str]) -> str:
    """The names for a message; of many names the first ten, and the number of the others."""
    known = list(names)
    others = f" and {len(known) - _MOST_NAMES} more" if len(known) > _MOST_NAMES else ""
    return ", ".join(known[:_MOST_NAMES]) + others


def first_line(error: BaseException) -> str:
    """The first line of an error of TVM, ONNX or PyTorch: it says what went wrong; the rest says where in C++."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)[:300].rstrip(".")


def error_kinds() -> dict[str, type[FractuneError]]:
    """Every error class by name: how an error is named on the wire and found again on the other side."""
    kinds: dict[str, type[FractuneError]] = {}
    pending: list[type[FractuneError]] = [FractuneError]
    while pending:
        kind = pending.pop()
        kinds[kind.__name__] = kind
        pending.extend(kind.__subclasses__())
    return kinds


def error_from_name(name: str, message: str) -> FractuneError:
    """The error that `name` (a class name) and `message` describe; a plain FractuneError for an unknown name."""
    return error_kinds().get(name, FractuneError)(message)
