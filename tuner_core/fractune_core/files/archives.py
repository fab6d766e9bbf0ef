"""Zip archives from strangers, read without surprises: every entry is stored, once, within the file.

A zip file can claim anything: two entries of one name, an entry that unpacks to a thousand times its size, entries
that share their bytes. All the formats that fractune reads store their entries uncompressed, so an archive that does
any of this is refused when it is opened. What is read of it is then never more than the file itself.
"""

import errno
import io
import os
import stat
import struct
import weakref
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self


class ComparingFile(io.RawIOBase):
    """Compares what is written, at any place and in any order, with the bytes that `bytes_at(offset, size)` gives.

    What is written at a place for the second time replaces what was written there first.
    """

    def __init__(self, bytes_at: Callable[[int, int], bytes]) -> None:
        self._bytes_at = bytes_at
        self._at = self._end = 0
        self._wrong: dict[int, int] = {}
        """Where a piece that differs was written: the offset of its first byte that differs"""

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._end}[whence]
        return self._at

    def write(self, data: Any, /) -> int:
        written = bytes(data)
        there = self._bytes_at(self._at, len(written))
        if there == written:
            self._wrong.pop(self._at, None)
        else:
            pairs = enumerate(zip(there, written, strict=False))
            self._wrong[self._at] = self._at + next((at for at, (a, b) in pairs if a != b), len(there))
        self._at += len(written)
        self._end = max(self._end, self._at)
        return len(written)

    def first_difference(self, file_bytes: int) -> int | None:
        """The first offset where the file of `file_bytes` differs from what was written; None where it is the same."""
        places = [*self._wrong.values(), *([min(self._end, file_bytes)] if file_bytes != self._end else [])]
        return min(places, default=None)


_MOST_DIRECTORY_BYTES = 2**24
"""Of the central directory, more than 100,000 entries: parsed, it takes several times its size in memory"""
_CHUNK_BYTES = 2**20
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_LOCAL_MAGIC = b"PK\x03\x04"
_ENCRYPTED, _SIZES_FOLLOW, _UTF8 = 0x2041, 0x8, 0x800
_IN_EXTRA_FIELD = 2**32 - 1
"""Stands in a header of 32 bits for a size that needs 64"""
_UNREADABLE = (zipfile.BadZipFile, ValueError, OSError, EOFError, struct.error, OverflowError, RuntimeError)
"""All that `zipfile` raises for a file that was changed; NotImplementedError is a RuntimeError"""


class BadArchive(Exception):
    """A defect of an archive, as a clause without the file's name and without advice."""


class Archive:
    """A zip archive opened for reading, of stored entries that lie apart from each other.

    Raises BadArchive for any other file, and OSError where a path cannot be opened.
    """

    def __init__(self, source: Path | bytes, most_directory_bytes: int = _MOST_DIRECTORY_BYTES) -> None:
        self._file = _File(io.BytesIO(source) if isinstance(source, bytes) else _OwnPlace(source))
        self._file.most_bytes = most_directory_bytes
        # As `zipfile` does with a file of its own: a bundle is open for as long as a model may load variants of it.
        weakref.finalize(self, self._file.close)
        try:
            self._zip = zipfile.ZipFile(self._file)
            self._file.most_bytes = None
            self._entries = self._checked()
        except BaseException as error:
            self._file.close()
            if isinstance(error, _UNREADABLE):
                why = "" if isinstance(error, zipfile.BadZipFile) else f" ({error})"
                raise BadArchive(f"it is not a whole zip archive{why}") from error
            raise
        self.comment = self._zip.comment
        """of the whole archive"""

    @property
    def names(self) -> list[str]:
        """The names of all entries, in the order of the central directory."""
        return list(self._entries)

    def size(self, name: str) -> int:
        """Bytes of an entry. Raises BadArchive when the archive lacks it."""
        return self._entry(name).file_size

    def read(self, name: str) -> bytes:
        """All bytes of an entry. Raises BadArchive, also when they do not match their checksum."""
        return b"".join(self.chunks(name))

    def chunks(self, name: str) -> Iterator[bytes]:
        """The bytes of an entry, piece by piece. Raises BadArchive, a wrong checksum with the last piece."""
        info = self._entry(name)
        try:
            with self._zip.open(info) as entry:
                while chunk := entry.read(_CHUNK_BYTES):
                    yield chunk
        except _UNREADABLE as error:
            raise BadArchive(f"entry '{name}' is damaged ({error})") from error

    @property
    def file_bytes(self) -> int:
        """Size of the whole file."""
        return self._file.seek(0, io.SEEK_END)

    def bytes_at(self, offset: int, size: int) -> bytes:
        """Bytes of the file as it lies there, fewer at its end."""
        self._file.seek(offset)
        return self._file.read(size)

    def place_of(self, offset: int) -> str:
        """Which part of the file lies at an offset, for messages."""
        if offset >= self._zip.start_dir:
            return "the central directory"
        before = [info for info in self._entries.values() if info.header_offset <= offset]
        if not before:
            return "the place before the first entry"
        return f"entry '{max(before, key=lambda info: info.header_offset).filename}'"

    def close(self) -> None:
        self._zip.close()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _entry(self, name: str) -> zipfile.ZipInfo:
        try:
            return self._entries[name]
        except KeyError as error:
            raise BadArchive(f"entry '{name}' is missing") from error

    def _checked(self) -> dict[str, zipfile.ZipInfo]:
        """The entries by name. Raises BadArchive for the first that is not plain."""
        entries: dict[str, zipfile.ZipInfo] = {}
        for info in self._zip.infolist():
            if info.filename in entries:
                raise BadArchive(f"it has two entries named '{info.filename}'")
            _check_plain(info)
            entries[info.filename] = info
        end = 0
        for info in sorted(entries.values(), key=lambda info: info.header_offset):
            if info.header_offset < end:
                raise BadArchive(f"entry '{info.filename}' overlaps the one before it")
            end = self._end(info)
        if end > self._zip.start_dir:
            raise BadArchive("its last entry reaches into the central directory")
        return entries

    def _end(self, info: zipfile.ZipInfo) -> int:
        """Where an entry's bytes end in the file, by its own header, which must agree with the central directory."""
        self._file.seek(info.header_offset)
        header = _LOCAL_HEADER.unpack(self._file.read(_LOCAL_HEADER.size))
        magic, _, flags, method, _, _, _, packed, size, name_bytes, extra_bytes = header
        name = self._file.read(name_bytes).decode("utf-8" if flags & _UTF8 else "cp437")
        known = (info.file_size, _IN_EXTRA_FIELD, *([0] if flags & _SIZES_FOLLOW else []))
        agrees = magic == _LOCAL_MAGIC and name == info.orig_filename and method == zipfile.ZIP_STORED
        if not agrees or flags & _ENCRYPTED or packed not in known or size not in known:
            raise BadArchive(f"entry '{info.filename}' differs from the central directory")
        begin = info.header_offset + _LOCAL_HEADER.size + int(name_bytes) + int(extra_bytes)
        return begin + info.file_size


def _check_plain(info: zipfile.ZipInfo) -> None:
    if info.filename != info.orig_filename:
        raise BadArchive(f"entry '{info.filename}' has a NUL in its name")
    if info.header_offset < 0:
        raise BadArchive(f"entry '{info.filename}' lies outside of the file")
    if info.flag_bits & _ENCRYPTED:
        raise BadArchive(f"entry '{info.filename}' is encrypted")
    if info.compress_type != zipfile.ZIP_STORED:
        raise BadArchive(f"entry '{info.filename}' is compressed")
    if info.file_size != info.compress_size:
        raise BadArchive(f"entry '{info.filename}' claims {info.file_size} bytes and stores {info.compress_size}")


class _OwnPlace(io.RawIOBase):
    """A file that is read at a place of its own. Forked processes share the kernel's place, and each would move it for
    the others.
    """

    def __init__(self, path: Path) -> None:
        if stat.S_ISFIFO(path.stat().st_mode):
            raise OSError(errno.ESPIPE, "it is a pipe, and not a file")  # opening it would wait for a writer
        self._file = io.FileIO(path)
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        count = os.preadv(self._file.fileno(), [buffer], self._place)
        self._place += count
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        begins = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: os.fstat(self._file.fileno()).st_size}
        place = begins[whence] + offset
        if place < 0:
            raise OSError(errno.EINVAL, "before the file")
        self._place = place
        return place

    def tell(self) -> int:
        return self._place

    def close(self) -> None:
        self._file.close()
        super().close()


class _File(io.BufferedReader):
    """A file that refuses to read more than `most_bytes` at once: `zipfile` reads the central directory so."""

    most_bytes: int | None = None

    def read(self, size: int | None = -1, /) -> bytes:
        if self.most_bytes is not None and size is not None and size > self.most_bytes:
            raise BadArchive(f"its central directory has {size} bytes, and {self.most_bytes} is the limit")
        return super().read(size)
