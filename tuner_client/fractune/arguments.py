"""Arguments of the public functions: a wrong type is BadRequest before any work.

Errors name arguments, not the options of the command line.

No library takes the place of `_misfit`. Of a list, beartype checks one element, chosen at random. True is a number for
typeguard, and NumPy's numbers are none without a hook for the whole process. Each also costs 0.1 s or more at the first
call.
"""

import contextlib
import functools
import inspect
import numbers
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from types import SimpleNamespace, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from fractune_core.errors import BadRequest, FractuneError

P = ParamSpec("P")
R = TypeVar("R")

_NUMBERS: dict[Any, type] = {int: numbers.Integral, float: numbers.Real}
_UNLIKE: dict[Any, type] = {int: bool, float: bool, Sequence: str}
"""what Python takes for another type, and no caller means"""
_WORDS: dict[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    bytes: "bytes",
    type(None): "None",
    os.PathLike: "a path",
    Sequence: "a sequence",
    Mapping: "a mapping",
    Callable: "a function",
}
_OPTION = re.compile(r"(?<!\w)'[^']*'|--([a-z][a-z-]*)")
"""an option of the command line, or a quoted text such as a whole command, which stays; no quote begins in a word"""
_CONNECTION = frozenset({"server", "state", "ca", "token_file", "client_cert", "client_key"})
"""arguments that errors of any call may name"""
_command_line = ContextVar("_command_line", default=False)


@contextlib.contextmanager
def command_line() -> Iterator[None]:
    """Within the block errors keep the names of options: the command line calls these functions too."""
    token = _command_line.set(True)
    try:
        yield
    finally:
        _command_line.reset(token)


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The function. It raises BadRequest for an argument that its annotation does not allow, and its errors name
    arguments.
    """
    signature, names = inspect.signature(function), inspect.unwrap(function).__globals__

    @functools.cache
    def hint(name: str) -> Any:
        """Any for an annotation that names a type of a package that may not be installed."""
        annotation = signature.parameters[name].annotation
        declared = SimpleNamespace(__annotations__={name: Any if annotation is inspect.Parameter.empty else annotation})
        try:
            return get_type_hints(declared, names)[name]
        except NameError:
            return Any

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        known_names = {*signature.parameters, *_CONNECTION}
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            if signature.parameters[name].kind is not inspect.Parameter.VAR_KEYWORD:
                _check(name, value, hint(name))
                continue
            (options,) = get_args(hint(name))  # of Unpack
            known = get_type_hints(options)
            known_names |= known.keys()
            for option, given in value.items():
                if option not in known:
                    raise BadRequest(f"{option} is not an option of {function.__name__}; it has {', '.join(known)}")
                _check(option, given, known[option])
        try:
            return function(*args, **kwargs)
        except FractuneError as error:
            if not _command_line.get():
                error.args = (_with_arguments(str(error), known_names),)
            raise

    return call


def _with_arguments(text: str, known: set[str]) -> str:
    """`text` with arguments in place of options: `--min-gain` becomes `min_gain`."""

    def name_of(option: re.Match[str]) -> str:
        name = (option[1] or "").replace("-", "_")
        return name if name in known else option[0]

    return _OPTION.sub(name_of, text)


def _check(name: str, value: object, hint: Any) -> None:
    wrong = _misfit(name, value, hint)
    if wrong is None:
        return
    place, found, wanted = wrong
    is_value = get_origin(wanted) is Literal  # its type may be right
    said = f"{place} is {found!r:.80}" if is_value else f"{place}: {found!r:.80} is of type {type(found).__name__}"
    raise BadRequest(f"{said}; give {_words(wanted)}")


def _misfit(place: str, value: Any, hint: Any) -> tuple[str, Any, Any] | None:
    """The place, value and hint of the first element that does not fit, such as `shares[1]`; None if all fit."""
    origin, inner = get_origin(hint) or hint, get_args(hint)
    wrong = (place, value, hint)
    if origin in (Union, UnionType):
        tried = [_misfit(place, value, each) for each in inner]
        return None if None in tried else next((each for each in tried if each and each[0] != place), wrong)
    if origin is Literal:
        return None if value in inner else wrong
    if origin is Any or not isinstance(origin, type):
        return None  # also the name of a type of another package
    kind: Any = _NUMBERS.get(origin, origin)
    if not isinstance(value, kind) or isinstance(value, _UNLIKE.get(origin, ())):
        return wrong
    if issubclass(origin, Mapping) and inner:
        parts = [
            part
            for key, held in value.items()
            for part in ((f"{place}, a key", key, inner[0]), (f"{place}[{key!r}]", held, inner[1]))
        ]
    elif issubclass(origin, Sequence) and inner:
        hints = inner if _is_record(origin, inner) else inner[:1] * len(value)
        if len(hints) != len(value):
            return wrong
        parts = [(f"{place}[{at}]", *each) for at, each in enumerate(zip(value, hints, strict=True))]
    else:
        return None
    return next(filter(None, (_misfit(*part) for part in parts)), None)


def _is_record(origin: type, inner: Sequence[Any]) -> bool:
    """Whether a type is a tuple in which each element has its own type."""
    return origin is tuple and bool(inner) and Ellipsis not in inner


def _words(hint: Any) -> str:
    origin, inner = get_origin(hint) or hint, get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_words(each) for each in inner))
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin is Sequence and inner:
        return f"a sequence ({_words(inner[0])} each)"
    if _is_record(origin, inner):
        return f"a tuple ({', '.join(map(_words, inner))})"
    if origin is Mapping and len(inner) == 2:
        return f"a mapping ({_words(inner[0])} to {_words(inner[1])})"
    return _WORDS.get(origin, getattr(origin, "__name__", str(hint)))
