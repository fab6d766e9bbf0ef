"""Dataclasses to and from the messages of the public contract, by the types of their fields.

A message holds a field under the field's own name, or under the one that `In` gives. What a message does not set takes
the dataclass's default; a number that is 0, or an empty text, is not set unless its field in the message is optional.
A message whose one field is repeated (`Shape`) stands for a list.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache, partial
from operator import attrgetter
from types import NoneType
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp

from fractune_core.codec.plain_json import In, ResourceNames
from fractune_core.errors import BadRequest

END_OF_TIME_S = 253_402_300_800
"""since 1970: no timestamp is of the year 10000"""


def timestamp(seconds: float) -> Timestamp:
    """Seconds since 1970 as protobuf's timestamp. Raises BadRequest outside the years 1 to 9999."""
    stamp = Timestamp()
    try:
        stamp.FromNanoseconds(round(seconds * 1e9))
    except (ValueError, OverflowError):
        raise _no_time(f"{seconds:g} s") from None
    return stamp


def seconds(stamp: Timestamp) -> float:
    """Seconds since 1970. Raises BadRequest outside the years 1 to 9999."""
    try:
        return stamp.ToNanoseconds() / 1e9
    except ValueError:
        raise _no_time(f"{stamp.seconds} s and {stamp.nanos} ns") from None


def _no_time(what: str) -> BadRequest:
    return BadRequest(f"{what} after 1970 began is no time of the years 1 to 9999")


_T = TypeVar("_T")
_M = TypeVar("_M", bound=Message)
_Convert = Callable[[Any], Any]
_Descriptor = Any
"""protobuf's, of a message, a field or an enumeration: one class in Python and another in C"""
_TIMESTAMP = "google.protobuf.Timestamp"


def to_proto(instance: Any, message_type: type[_M], **given: Any) -> _M:
    """The dataclass as a message; `given` are fields of the message. Raises BadRequest for what it has no room for."""
    kinds: Any = type(instance), message_type
    try:
        for name, target, write in _writers(*kinds, frozenset(given)):
            value = getattr(instance, name)
            if value is not None:
                given[target] = value if write is None else write(value)
        return message_type(**given)
    except ValueError as error:
        raise BadRequest(f"{message_type.DESCRIPTOR.name}: {error}") from error


def fits(instance: Any, message_type: type[Message], **given: Any) -> bool:
    """Whether the message has room for the dataclass: most of its whole numbers have 32 bits."""
    try:
        to_proto(instance, message_type, **given)
    except BadRequest:
        return False
    return True


def from_proto(kind: type[_T], *messages: Message, **given: Any) -> _T:
    """The dataclass `kind`, each field from the first of the messages that has it; `given` are fields of its own.

    Raises BadRequest for a value that the field cannot have.
    """
    as_key: Any = kind
    try:
        reads = _readers(as_key, tuple(map(type, messages)), frozenset(given))
        return kind(**{name: read(messages[place]) for name, place, read in reads}, **given)
    except (KeyError, ValueError) as error:
        raise BadRequest(f"{getattr(messages[0], 'name', '') or messages[0].DESCRIPTOR.name}: {error}") from error


def to_lists(messages: Mapping[str, Any]) -> dict[str, list[Any]]:
    """A map of messages that stand for lists, such as Shape."""
    return {name: list(getattr(message, _only_field(message.DESCRIPTOR).name)) for name, message in messages.items()}


def from_lists(lists: Mapping[str, Iterable[Any]], message_type: type[_M]) -> dict[str, _M]:
    """The lists as messages that stand for lists. Raises BadRequest for what they have no room for."""
    name = _only_field(message_type.DESCRIPTOR).name
    try:
        return {key: message_type(**{name: values}) for key, values in lists.items()}
    except ValueError as error:
        raise BadRequest(f"{message_type.DESCRIPTOR.name}: {error}") from error


# ---- made once for each pair of types ----------------------------------------------------------------------------


class _Slot(NamedTuple):
    """A field of a dataclass."""

    name: str
    hint: Any
    """without None and what `Annotated` adds"""
    default: Callable[[], Any] | None
    """makes what the field has where the message does not set it"""
    mark: In


@cache
def _slots(kind: Any) -> list[_Slot]:
    hints = get_type_hints(kind, include_extras=True)
    return [_slot(field, hints[field.name]) for field in fields(kind)]


def _slot(field: Field[Any], hint: Any) -> _Slot:
    mark = In(field.name)
    default: Callable[[], Any] | None = None
    if get_origin(hint) is Annotated:
        hint, mark = get_args(hint)
    if NoneType in get_args(hint):
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
        default = partial(_itself, None)
    if field.default_factory is not MISSING:
        default = field.default_factory
    elif field.default is not MISSING:
        default = partial(_itself, field.default)
    return _Slot(field.name, hint, default, mark)


def _itself(value: Any) -> Any:
    return value


@cache
def _writers(kind: Any, message_type: Any, given: frozenset[str]) -> list[tuple[str, str, _Convert | None]]:
    """Name of the field, its name in the message, and how its value is converted."""
    by_name = message_type.DESCRIPTOR.fields_by_name
    return [
        (slot.name, slot.mark.path, _writer(slot.hint, by_name[slot.mark.path], slot.mark.collection))
        for slot in _slots(kind)
        if slot.mark.path in by_name and slot.mark.path not in given
    ]


def _writer(hint: Any, field: _Descriptor, collection: ResourceNames | None = None) -> _Convert | None:
    if collection is not None:
        return collection.of
    if _is_map(field):
        inner: Any = _one_writer(get_args(hint)[1], field.message_type.fields_by_name["value"])
        return inner and (lambda values: {key: inner(value) for key, value in values.items()})
    if field.is_repeated:
        inner = _one_writer(get_args(hint)[0], field)
        return inner and (lambda values: [inner(value) for value in values])
    return _one_writer(hint, field)


def _one_writer(hint: Any, field: _Descriptor) -> _Convert | None:
    if field.enum_type is not None:
        numbers = _enum_numbers(hint, field.enum_type)
        return numbers.__getitem__
    if field.message_type is None:
        return None
    if field.message_type.full_name == _TIMESTAMP:
        return timestamp
    message_type: Any = GetMessageClass(field.message_type)
    if is_dataclass(hint):
        return lambda value: to_proto(value, message_type)
    only = _only_field(field.message_type)
    inner = _writer(hint, only)
    return lambda values: message_type(**{only.name: values if inner is None else inner(values)})


@cache
def _readers(
    kind: Any, message_types: tuple[type[Message], ...], given: frozenset[str] = frozenset()
) -> list[tuple[str, int, _Convert]]:
    """Name of the field, number of the message that has it, and how it is read there."""
    found = []
    for slot in (slot for slot in _slots(kind) if slot.name not in given):
        first = slot.mark.path.partition(".")[0]
        for place, message_type in enumerate(message_types):
            if first in message_type.DESCRIPTOR.fields_by_name:
                found.append((slot.name, place, _path_reader(slot, slot.mark.path, message_type.DESCRIPTOR)))
                break
    return found


def _path_reader(slot: _Slot, path: str, descriptor: _Descriptor) -> _Convert:
    name, _, rest = path.partition(".")
    field = descriptor.fields_by_name[name]
    if not rest:
        return _field_reader(slot, field)
    inner = _path_reader(slot, rest, field.message_type)
    return lambda message: inner(getattr(message, name))


def _field_reader(slot: _Slot, field: _Descriptor) -> _Convert:
    name, default = field.name, slot.default
    get: _Convert = attrgetter(name)
    convert = _reader(slot.hint, field, slot.mark.collection)
    read = get if convert is None else (lambda message: convert(get(message)))
    if field.has_presence and default is not None:
        return lambda message: read(message) if message.HasField(name) else default()
    if field.has_presence or default is None or slot.hint is bool:
        return read
    return lambda message: read(message) if get(message) else default()


def _reader(hint: Any, field: _Descriptor, collection: ResourceNames | None = None) -> _Convert | None:
    if collection is not None:
        return collection.parse
    if _is_map(field):
        inner: Any = _one_reader(get_args(hint)[1], field.message_type.fields_by_name["value"])
        return dict if inner is None else (lambda values: {key: inner(value) for key, value in values.items()})
    if field.is_repeated:
        collect: Any = get_origin(hint)
        inner = _one_reader(get_args(hint)[0], field)
        return collect if inner is None else (lambda values: collect(map(inner, values)))
    return _one_reader(hint, field)


def _one_reader(hint: Any, field: _Descriptor) -> _Convert | None:
    if field.enum_type is not None:
        members = {number: member for member, number in _enum_numbers(hint, field.enum_type).items()}
        return members.__getitem__
    if field.message_type is None:
        return hint if isinstance(hint, type) and issubclass(hint, Enum) else None
    if field.message_type.full_name == _TIMESTAMP:
        return seconds
    if is_dataclass(hint):
        return _nested_reader(hint, GetMessageClass(field.message_type))
    only = _only_field(field.message_type)
    inner: Any = _reader(hint, only)
    return lambda message: inner(getattr(message, only.name))


def _nested_reader(kind: Any, message_type: type[Message]) -> _Convert:
    names, _, gets = zip(*_readers(kind, (message_type,)), strict=True)
    if names != tuple(field.name for field in fields(kind)):
        return lambda message: from_proto(kind, message)
    return lambda message: kind(*[get(message) for get in gets])


def _is_map(field: _Descriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _only_field(message: _Descriptor) -> _Descriptor:
    (only,) = message.fields
    return only


def _enum_numbers(kind: type[Enum], described: _Descriptor) -> dict[Enum, int]:
    """Of the members of an enumeration, which the contract names with its own name in front: JOB_STATE_DONE."""
    unspecified = described.values_by_number[0].name
    prefix = unspecified.removesuffix("UNSPECIFIED")
    return {member: described.values_by_name[f"{prefix}{member.name}"].number for member in kind}
