"""Zip archives from strangers: what is read, and what is refused before any of it is read."""

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fractune_core.files.archives import Archive, BadArchive
from tests.support.processes.forked import succeeds_in_child

ENTRIES = {"a": b"first", "b": b"", "dir/c": bytes(2_000_000)}


def archive_of(*entries: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, contents in entries:
            archive.writestr(zipfile.ZipInfo(name), contents, method)
        archive.comment = b"note"
    return file.getvalue()


def plain() -> bytes:
    return archive_of(*ENTRIES.items())


def changed(data: bytes, at: int, form: str, *values: int | bytes) -> bytes:
    """The archive with a few bytes packed over it."""
    copy = bytearray(data)
    struct.pack_into(form, copy, at, *values)
    return bytes(copy)


def central(data: bytes, number: int = 0) -> int:
    """Where the n-th entry of the central directory begins."""
    at = data.index(b"PK\x01\x02")
    for _ in range(number):
        at = data.index(b"PK\x01\x02", at + 1)
    return at


def test_a_plain_archive_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file.zip"
    path.write_bytes(plain())
    for source in (path, path.read_bytes()):
        with Archive(source) as archive:
            assert archive.names == list(ENTRIES)
            assert {name: archive.read(name) for name in ENTRIES} == ENTRIES
            assert [archive.size(name) for name in ENTRIES] == [5, 0, 2_000_000]
            assert max(map(len, archive.chunks("dir/c"))) < 2_000_000
            assert archive.comment == b"note"
            with pytest.raises(BadArchive, match="entry 'd' is missing"):
                archive.read("d")


def test_a_forked_child_does_not_move_the_place_where_its_parent_reads(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(archive_of(("a", bytes(1 << 18)), ("b", b"b" * (1 << 18))))
    with Archive(path) as archive:
        pieces = archive.chunks("a")
        first = next(pieces)
        assert succeeds_in_child(lambda: archive.read("b") == b"b" * (1 << 18))
        assert first + b"".join(pieces) == bytes(1 << 18)


def test_an_archive_written_to_a_pipe_is_read() -> None:
    """Its sizes follow the entries, as in the archives of PyTorch."""

    class Pipe(io.BytesIO):
        def tell(self) -> int:
            raise io.UnsupportedOperation

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w") as archive:
        for name, contents in ENTRIES.items():
            archive.writestr(name, contents)
    read = Archive(pipe.getvalue())
    assert {name: read.read(name) for name in read.names} == ENTRIES


def test_an_archive_with_sizes_of_64_bits_is_read() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive, archive.open("a", "w", force_zip64=True) as entry:
        entry.write(b"first")
    assert Archive(file.getvalue()).read("a") == b"first"


def two_of_a_name() -> bytes:
    """The second is compressed, and the one that `zipfile` reads by name."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a", b"small")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("a", bytes(2**20), zipfile.ZIP_DEFLATED)
    return file.getvalue()


def nul_in_a_name() -> bytes:
    """Other readers of zip files know the entry by the whole name."""
    return archive_of(("a", b"small"), ("bXc", b"")).replace(b"bXc", b"b\0c")


def claims_more() -> bytes:
    data = plain()
    return changed(data, central(data) + 24, "<L", 2**31)


def claims_more_of_both() -> bytes:
    data = plain()
    return changed(data, central(data) + 20, "<2L", 2**31, 2**31)


def overlaps() -> bytes:
    """The second entry's directory points at the first's bytes: many entries of one body."""
    data = archive_of(("a", bytes(100)), ("b", bytes(100)))
    return changed(data, central(data, 1) + 42, "<L", 0)


def nested() -> bytes:
    """One entry lies inside another."""
    inner = archive_of(("b", bytes(50)))
    data = archive_of(("a", inner), ("b", bytes(50)))
    return changed(data, central(data, data.count(b"PK\x01\x02") - 1) + 42, "<L", 31)


def another_name_inside() -> bytes:
    data = plain()
    return changed(data, 30, "1s", b"z")


def another_size_inside() -> bytes:
    data = plain()
    return changed(data, 22, "<L", 6)


def another_method_inside() -> bytes:
    data = plain()
    return changed(data, 8, "<H", zipfile.ZIP_DEFLATED)


def encrypted() -> bytes:
    data = plain()
    return changed(data, central(data) + 8, "<H", 1)


def reaches_into_the_directory() -> bytes:
    data = archive_of(("a", bytes(100)))
    at = central(data)
    data = changed(data, at + 20, "<2L", 120, 120)
    return changed(data, 18, "<2L", 120, 120)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: b"", "not a whole zip archive"),
        (lambda: b"no zip", "not a whole zip archive"),
        (lambda: plain()[:-40], "not a whole zip archive"),
        (lambda: plain()[50:], "entry 'a' lies outside of the file"),
        (lambda: archive_of(("a", bytes(1000)), method=zipfile.ZIP_DEFLATED), "entry 'a' is compressed"),
        (two_of_a_name, "two entries named 'a'"),
        (nul_in_a_name, "entry 'b' has a NUL in its name"),
        (claims_more, "entry 'a' claims 2147483648 bytes and stores 5"),
        (claims_more_of_both, "entry 'a' differs from the central directory"),
        (overlaps, "entry 'b' overlaps the one before it"),
        (nested, "entry 'b' overlaps the one before it"),
        (another_name_inside, "entry 'a' differs from the central directory"),
        (another_size_inside, "entry 'a' differs from the central directory"),
        (another_method_inside, "entry 'a' differs from the central directory"),
        (encrypted, "entry 'a' is encrypted"),
        (reaches_into_the_directory, "its last entry reaches into the central directory"),
    ],
)
def test_anything_else_is_refused_when_it_is_opened(make: Callable[[], bytes], words: str) -> None:
    with pytest.raises(BadArchive, match=words):
        Archive(make())


def test_a_changed_byte_is_noticed_when_its_entry_is_read() -> None:
    data = plain()
    archive = Archive(changed(data, data.index(b"first"), "1s", b"F"))
    assert archive.read("b") == b""
    with pytest.raises(BadArchive, match="entry 'a' is damaged"):
        archive.read("a")


def test_a_huge_directory_is_not_parsed() -> None:
    data = archive_of(*((str(number), b"") for number in range(100)))
    with pytest.raises(BadArchive, match="its central directory has 4790 bytes, and 1000 is the limit"):
        Archive(data, most_directory_bytes=1000)
