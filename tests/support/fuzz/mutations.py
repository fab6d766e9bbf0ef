"""What is changed in valid inputs, and what protobuf messages are filled with: the same `Random` makes the same."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_WHOLES = (
    0,
    1,
    -1,
    2,
    7,
    255,
    2**31 - 1,
    2**31,
    -(2**31),
    2**53 + 1,
    2**63 - 1,
    -(2**63),
    2**63,
    2**64,
    10**30,
    10**400,
)
_REALS = (0.0, -0.0, 0.5, -1.5, 1e-320, 1e18, 1e308, -1e308, float("nan"), float("inf"), float("-inf"))
_TEXTS = (
    "",
    " ",
    "a",
    "0",
    "-1",
    "1e999",
    "NaN",
    "\0",
    "\ud800",
    "\u202e",
    "é",
    "𝄞",
    "cpu:1",
    "../..",
    "%s",
    "x" * 5000,
)
_OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], {"": None}, [None], {"a": [1, {"b": "c"}]})
_ODD: tuple[Any, ...] = (*_WHOLES, *_REALS, *_TEXTS, *_OTHERS)
_PIECES = (
    b"",
    b"\0",
    b"\xff",
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b"\\",
    b"\n",
    b"null",
    b"1e400",
    b"-",
    b"[" * 3000,
    b"\xed\xa0\x80",
)
_MOST_EDITS = 4
_DEEPEST = 4
"""messages inside messages"""

_LIMITS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


class Mutator:
    """Makes inputs from valid ones."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def blob(self, valid: bytes) -> bytes:
        """A few bytes changed, cut, repeated or put in."""
        made = bytearray(valid)
        for _ in range(self.random.randint(1, _MOST_EDITS)):
            start = self.random.randint(0, len(made))
            end = min(len(made), start + int(self.random.expovariate(0.2)))
            kind = self.random.randrange(5)
            if kind == 0:
                del made[start:end]
            elif kind == 1:
                made[start:start] = made[start:end]
            elif kind == 2:
                made[start:end] = self.random.choice(_PIECES)
            elif kind == 3:
                made[start:end] = self.random.randbytes(self.random.randint(1, 8))
            elif start < len(made):
                made[start] ^= 1 << self.random.randrange(8)
        return bytes(made)

    def text(self, valid: str) -> str:
        """The same for text; what is no UTF-8 any more stays in it as lone surrogates."""
        return self.blob(valid.encode(errors="surrogatepass")).decode(errors="surrogateescape")

    def words(self, words: Sequence[str], most: int = 6) -> str:
        return "".join(self.random.choices(words, k=self.random.randint(0, most)))

    def value(self, valid: Any) -> Any:
        """JSON in which a few places hold something else, or nothing."""
        for _ in range(self.random.randint(1, _MOST_EDITS)):
            valid = self._edited(valid)
        return valid

    def odd(self) -> Any:
        return self.random.choice(_ODD)

    def _edited(self, value: Any) -> Any:
        if isinstance(value, dict) and value and self.random.random() < 0.95:
            key, draw = self.random.choice(list(value)), self.random.random()
            if draw < 0.15:
                return {name: each for name, each in value.items() if name != key}
            if draw < 0.2:
                return {**value, str(self.random.choice(_TEXTS)): self.odd()}
            return {**value, key: self._edited(value[key])}
        if isinstance(value, list) and value and self.random.random() < 0.9:
            at, draw = self.random.randrange(len(value)), self.random.random()
            if draw < 0.15:
                return [*value[:at], *value[at + 1 :]]
            if draw < 0.3:
                return [*value, value[at]]
            return [*value[:at], self._edited(value[at]), *value[at + 1 :]]
        return self.odd()

    def message(self, kind: Callable[[], Message], texts: Sequence[str] = ()) -> Message:
        """A message of which each field is absent, odd, or one of `texts`, which are valid somewhere."""
        made = kind()
        self._fill(made, (*_TEXTS, *texts, *texts), 0)
        return made

    def changed(self, valid: Message, texts: Sequence[str] = ()) -> Message:
        """The message with a few of its fields, at any depth, absent or odd."""
        made = type(valid)()
        made.CopyFrom(valid)
        for _ in range(self.random.randint(1, _MOST_EDITS)):
            self._change(made, (*_TEXTS, *texts, *texts))
        return made

    def _change(self, message: Message, texts: Sequence[str]) -> None:
        if not message.DESCRIPTOR.fields:
            return
        field: Any = self.random.choice(message.DESCRIPTOR.fields)
        inner = field.message_type
        if inner is not None and not inner.GetOptions().map_entry and self.random.random() < 0.8:
            held = getattr(message, field.name)
            if not field.is_repeated:
                self._change(held, texts)
                return
            if held:
                self._change(self.random.choice(held), texts)
                return
        message.ClearField(field.name)
        if self.random.random() < 0.8:
            self._fill_one(message, field, texts, 1)

    def _fill(self, message: Message, texts: Sequence[str], depth: int) -> None:
        for field in message.DESCRIPTOR.fields:
            if self.random.random() > 0.35:
                self._fill_one(message, field, texts, depth)

    def _fill_one(self, message: Message, field: Any, texts: Sequence[str], depth: int) -> None:
        """One field, which is empty."""
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            self._fill_map(getattr(message, field.name), field, texts, depth)
        elif field.message_type is not None:
            self._fill_inner(message, field, texts, depth)
        elif field.is_repeated:
            count = self.random.choice((0, 1, 1, 2, 5))
            getattr(message, field.name).extend(self._scalar(field, texts) for _ in range(count))
        else:
            setattr(message, field.name, self._scalar(field, texts))

    def _fill_inner(self, message: Message, field: Any, texts: Sequence[str], depth: int) -> None:
        if depth >= _DEEPEST:
            return
        if not field.is_repeated:
            getattr(message, field.name).SetInParent()
            self._fill(getattr(message, field.name), texts, depth + 1)
            return
        for _ in range(self.random.choice((0, 1, 1, 2, 5))):
            self._fill(getattr(message, field.name).add(), texts, depth + 1)

    def _fill_map(self, held: Any, field: Any, texts: Sequence[str], depth: int) -> None:
        entry: Any = field.message_type
        key, value = entry.fields
        for _ in range(self.random.choice((0, 1, 2))):
            if value.message_type is not None:
                self._fill(held[self._scalar(key, texts)], texts, depth + 1)
            else:
                held[self._scalar(key, texts)] = self._scalar(value, texts)

    def _scalar(self, field: Any, texts: Sequence[str]) -> Any:
        kind = field.cpp_type
        if kind in _LIMITS:
            least, most = _LIMITS[kind]
            return max(least, min(most, self.random.choice(_WHOLES)))
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            return self.random.choice((0, 1, -1, 99))
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return self.random.random() < 0.5
        if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
            return self.random.choice((*_REALS, self.random.random(), self.random.randint(1, 100)))
        if field.type == FieldDescriptor.TYPE_BYTES:
            return self.random.randbytes(self.random.choice((0, 1, 10, 1000)))
        return self.random.choice(texts).replace("\ud800", "")  # protobuf's text is UTF-8
