"""A file to write to that keeps nothing, and compares what is written with a file that is there."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any


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
