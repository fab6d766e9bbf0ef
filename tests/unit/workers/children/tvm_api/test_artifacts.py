"""Archives of object files: what goes in comes out, and `ar` reads them too."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractune_workers.children.tvm_api.artifacts import is_archive, pack, unpack

NAMES = st.text("abcdefghijklmnopqrstuvwxyz._0123456789", min_size=1, max_size=15)


@given(st.dictionaries(NAMES, st.binary(max_size=64), max_size=4))
def test_what_is_packed_comes_out(members: dict[str, bytes]) -> None:
    archive = pack(members)
    assert is_archive(archive)
    assert unpack(archive) == members
    assert list(unpack(archive)) == list(members)


@given(st.binary(min_size=1, max_size=9), st.integers(min_value=1))
def test_a_torn_archive_is_refused(content: bytes, cut: int) -> None:
    archive = pack({"host.o": content, "device.o": content})
    last = archive[: -(len(content) % 2) or None]  # without the byte that only fills up
    torn = last[: len(last) - 1 - cut % (len(content) + 58)]
    with pytest.raises(ValueError, match=r"torn|no member"):
        unpack(torn)


def test_an_object_file_is_no_archive() -> None:
    assert not is_archive(b"\x7fELF and more")
    with pytest.raises(ValueError, match="not an archive"):
        unpack(b"\x7fELF and more")


def test_a_name_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 15 characters"):
        pack({"a-name-too-long.o": b""})


@pytest.mark.skipif(shutil.which("ar") is None, reason="binutils' ar is not installed")
def test_ar_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "candidate.a"
    path.write_bytes(pack({"host.o": b"odd", "device.o": b"even"}))
    listed = subprocess.run(["ar", "t", path], capture_output=True, text=True, check=True).stdout
    assert listed.split() == ["host.o", "device.o"]
    assert subprocess.run(["ar", "p", path, "host.o"], capture_output=True, check=True).stdout == b"odd"
