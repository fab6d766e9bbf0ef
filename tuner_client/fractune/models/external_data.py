"""An ONNX model whose weights lie in files beside it, as exporters write them, made one file again.

Only the graph is walked, by protobuf's wire format; numbers are copied from file to file. A weight may lie in a regular
file in the model's folder or below it. Nothing else is opened: no link, no device, no file elsewhere.
"""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

from fractune_core.errors import BadModel, shortened
from fractune_core.files import model_files
from fractune_core.files.manifests import LOGITS, NEXT_TOKEN

_BLOCK_BYTES = 1 << 20
_LOCATION = b"location"
"""the key that each tensor with numbers elsewhere has"""
_NAME, _RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 8, 9, 13, 14
"""fields of a tensor"""
_MOST_DIGITS = 18
_MOST_TIMES = 16
"""as large as the files that it is made of may one file be: weights may share their bytes"""
_AGAIN = "copy or export the model again"


def _text_field(number: int, text: str) -> bytes:
    return _part(number, text.encode())


def _part(number: int, content: bytes) -> bytes:
    return _head(number, len(content)) + content


def _head(number: int, size: int) -> bytes:
    return model_files.varint_bytes(number << 3 | model_files.MESSAGE) + model_files.varint_bytes(size)


def _attribute(name: str, number: int) -> bytes:
    """A whole number of a node."""
    return _part(5, _text_field(1, name) + b"\x18" + model_files.varint_bytes(number % 2**64) + b"\xa0\x01\x02")


def _most_probable() -> bytes:
    """Fields of a graph: the node that takes the most probable token, and its output of 64-bit integers."""
    names = _text_field(1, LOGITS) + _text_field(2, NEXT_TOKEN) + _text_field(4, "ArgMax")
    node = _part(1, names + _attribute("axis", -1) + _attribute("keepdims", 0))
    return node + _part(_OUTPUT, _text_field(1, NEXT_TOKEN) + _part(2, _part(1, b"\x08\x07")))


_OUTPUT = 12
"""field of a graph"""


class _Range(NamedTuple):
    """Bytes of a file: of the one beside the model with this name, or with an empty name of the model's own."""

    name: str
    begin: int
    size: int


def write_one_file(path: Path, target: Path, *, greedy: bool = False) -> None:
    """Write the ONNX model at `path`, with the numbers of its weights from the files beside it, to `target`. `greedy`:
    with the most probable token of each position in place of the output `logits`.

    Raises BadModel for a damaged model, and for a weight in a place that is not allowed, in a missing file or beyond
    its end. Also for more than 128 GiB with the weights, and where `target` cannot be written.
    """
    with model_files.walk(path) as found:
        if found is None:
            raise BadModel("is not an ONNX file")
        if greedy and not any(each.name == LOGITS for each in found.interface().outputs):
            raise BadModel(f"has no output '{LOGITS}'; leave --greedy out")
        joining = _Joining(found, path.parent, greedy=greedy)
        parts = list(joining.parts("model", 0, found.size, 0))
        total, held = sum(map(_size, parts)), found.size + joining.files_bytes
        if total > _MOST_TIMES * held:
            raise BadModel(f"has {total:,} bytes of weights in files of {held:,}: too many share their bytes; {_AGAIN}")
        if total > model_files.MOST_MODEL_BYTES:
            size, most = f"{total / 2**30:.1f} GiB", model_files.MOST_MODEL_BYTES >> 30
            raise BadModel(f"has {size} with its weights, and at most {most} are supported; export it in float16")
        try:
            with target.open("xb") as out:
                for part in parts:
                    _write(part, path, out)
        except OSError as error:
            raise BadModel(
                f"cannot be copied with its weights ({total >> 20} MiB) to {target.parent} ({error.strerror}); name a "
                "folder with room by TMPDIR"
            ) from error


class _Joining:
    """The parts of the new file."""

    def __init__(self, found: model_files.Walk, folder: Path, *, greedy: bool) -> None:
        self._walk = found
        self._greedy = greedy
        self._folder = folder
        self._sizes: dict[str, int] = {}
        """of the files beside the model, in bytes"""

    @property
    def files_bytes(self) -> int:
        """Of the files with weights that were found."""
        return sum(self._sizes.values())

    def parts(self, kind: str, at: int, end: int, depth: int) -> Iterator[bytes | _Range]:
        """Of a message of that kind, from byte `at` to `end`, with the numbers of its weights inside."""
        replaces = self._greedy and (kind, depth) == ("graph", 1)
        for field in self._walk.fields(at, end):
            if replaces and field.number == _OUTPUT and self._walk.text(self._walk.last(field, 1)) == LOGITS:
                yield _most_probable()
                continue
            inner = model_files.INSIDE.get(kind, {}).get(field.number) if field.is_message else None
            has_logits = self._greedy and inner == "graph" and not depth
            if inner is None or not (has_logits or self._walk.has(_LOCATION, field)):
                yield _Range("", field.begin, field.end - field.begin)
                continue
            if depth >= model_files.DEEPEST:
                raise BadModel(f"has more than {model_files.DEEPEST} graphs in graphs; export it with fewer")
            inside = self._tensor(field) if inner == "tensor" else self.parts(inner, field.first, field.end, depth + 1)
            body = list(inside)
            yield _head(field.number, sum(map(_size, body)))
            yield from body

    def _tensor(self, tensor: model_files.Field) -> Iterator[bytes | _Range]:
        is_external = self._walk.is_external(tensor)
        for field in self._walk.inside(tensor):
            if not is_external or field.number not in model_files.NUMBERS | {_EXTERNAL_DATA, _DATA_LOCATION}:
                yield _Range("", field.begin, field.end - field.begin)
        if is_external:
            place = self._place(tensor)
            yield _head(_RAW_DATA, place.size)
            yield place

    def _place(self, tensor: model_files.Field) -> _Range:
        text, last = self._walk.text, self._walk.last
        what = f"weight '{shortened(text(last(tensor, _NAME)), 80)}'"
        fields = (field for field in self._walk.inside(tensor) if field.number == _EXTERNAL_DATA)
        entries = {text(last(field, 1)): text(last(field, 2)) for field in fields}
        name = entries.get("location", "")
        if name not in self._sizes:
            descriptor = opened(self._folder, name, what)
            self._sizes[name] = os.fstat(descriptor).st_size
            os.close(descriptor)
        held = self._sizes[name]
        begin = _number(entries.get("offset", "0"), what)
        size = _number(entries.get("length", str(max(0, held - begin))), what)
        if begin + size > held:
            raise BadModel(
                f"{what} has the bytes from {begin:,} to {begin + size:,} of {_shown(name)}, which has {held:,}; "
                f"{_AGAIN} with that file"
            )
        return _Range(name, begin, size)


def _size(part: bytes | _Range) -> int:
    return len(part) if isinstance(part, bytes) else part.size


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
        raise BadModel(f"{what} has {_shown(text)} for a place in its file; {_AGAIN}")
    return int(text)


def _shown(name: str) -> str:
    return f"'{shortened(name, 80)}'"


def opened(folder: Path, name: str, what: str) -> int:
    """A descriptor of the file for reading. Each folder on the way is opened by itself, so none of them is a link."""
    names = PurePosixPath(name).parts
    if not names or name.startswith("/") or ".." in names or "\0" in name:
        raise BadModel(f"{what} lies in {_shown(name)}; its file must be in the model's folder, or below it")
    last = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for at, each in enumerate(names):
            before = last
            # O_NONBLOCK: the opening of a pipe would wait for its other end.
            kind = os.O_NONBLOCK if at == len(names) - 1 else os.O_DIRECTORY
            last = os.open(each, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | kind, dir_fd=before)
            os.close(before)
    except OSError as error:
        os.close(last)
        raise BadModel(f"{what} lies in {_shown(name)} beside the model, {_fault(error)}") from error
    if not stat.S_ISREG(os.fstat(last).st_mode):
        os.close(last)
        raise BadModel(f"{what} lies in {_shown(name)} beside the model, which is not a file; {_AGAIN}")
    return last


def _fault(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return "and that file is missing; copy it there"
    if error.errno in {errno.ELOOP, errno.ENOTDIR}:
        return "which is a link, or leads through one; put the file itself there (cp -rL copies a folder so)"
    return f"which cannot be read ({error.strerror}); {_AGAIN}"


def _write(part: bytes | _Range, path: Path, out: BinaryIO) -> None:
    if isinstance(part, bytes):
        out.write(part)
        return
    descriptor = opened(path.parent, part.name, "a weight") if part.name else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        at, end = part.begin, part.begin + part.size
        while at < end:
            block = os.pread(descriptor, min(_BLOCK_BYTES, end - at), at)
            if not block:
                raise BadModel(f"{_shown(part.name or path.name)} became shorter while it was read; try again")
            out.write(block)
            at += len(block)
    finally:
        os.close(descriptor)
