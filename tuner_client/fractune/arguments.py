"""Arguments of the public functions: former names still work, and a wrong type is BadRequest before any work."""

from __future__ import annotations

import functools
import inspect
import numbers
import os
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from fractune_core.errors import BadRequest

P = ParamSpec("P")
R = TypeVar("R")

_NEW_NAMES = {
    "by": "min_gain",
    "in_turn": "interleaved",
    "layouts": "partitioning",
    "more": "extra_trials",
    "neighbour": "co_runner",
    "scope": "namespace",
}
"""by the former name; a function without the new argument may use the name for something else"""
_NUMBERS: dict[Any, type] = {int: numbers.Integral, float: numbers.Real}
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


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which takes arguments by their former names too, with a DeprecationWarning.

    It raises BadRequest for an argument that its annotation does not allow.
    """
    signature, names = inspect.signature(function), inspect.unwrap(function).__globals__

    @functools.cache
    def hint(name: str) -> Any:
        """Any for an annotation that names a type of a package that may not be installed."""
        annotation = signature.parameters[name].annotation
        try:
            return eval(annotation, names) if isinstance(annotation, str) else Any  # noqa: S307  - ours
        except NameError:
            return Any

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        named = _with_new_names(kwargs, signature.parameters)
        for name, value in signature.bind(*args, **named).arguments.items():
            if signature.parameters[name].kind is not inspect.Parameter.VAR_KEYWORD:
                _check(name, value, hint(name))
                continue
            (options,) = get_args(hint(name))  # of Unpack
            known = get_type_hints(options)
            for option, given in value.items():
                if option not in known:
                    raise BadRequest(f"{option} is not an option of {function.__name__}; it has {', '.join(known)}")
                _check(option, given, known[option])
        return function(*args, **named)

    return call


def _with_new_names(given: Any, parameters: Mapping[str, inspect.Parameter]) -> Any:
    """The keyword arguments, by the names that the function has for them. Raises BadRequest for one given by both."""
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    named = dict(given)
    for old, new in _NEW_NAMES.items():
        if old in named and old not in parameters and (takes_any or new in parameters):
            if new in named:
                raise BadRequest(f"{old} is the former name of {new}; give {new} alone")
            warnings.warn(f"{old} is now called {new}", DeprecationWarning, stacklevel=3)
            named[new] = named.pop(old)
    return named


def _check(name: str, value: object, hint: Any) -> None:
    if not _fits(value, hint):
        raise BadRequest(f"{name}: {value!r:.80} is of type {type(value).__name__}; give {_words(hint)}")


def _fits(value: Any, hint: Any) -> bool:
    origin, inner = get_origin(hint) or hint, get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, each) for each in inner)
    if origin is Literal:
        return value in inner
    if origin is None:
        return value is None
    if origin in _NUMBERS:
        return isinstance(value, _NUMBERS[origin]) and not isinstance(value, bool)
    if origin is Any or not isinstance(origin, type):
        return True  # also the name of a type of another package
    if not isinstance(value, origin) or (isinstance(value, str) and origin is Sequence):
        return False
    whole: Any = value
    if issubclass(origin, Mapping) and len(inner) == 2:
        return all(_fits(key, inner[0]) and _fits(each, inner[1]) for key, each in whole.items())
    if issubclass(origin, Sequence) and inner:
        return all(_fits(each, inner[0]) for each in whole)
    return True


def _words(hint: Any) -> str:
    origin, inner = get_origin(hint) or hint, get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_words(each) for each in inner))
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin is Sequence and inner:
        return f"a sequence ({_words(inner[0])} each)"
    if origin is Mapping and len(inner) == 2:
        return f"a mapping ({_words(inner[0])} to {_words(inner[1])})"
    return _WORDS.get(origin, getattr(origin, "__name__", str(hint)))
