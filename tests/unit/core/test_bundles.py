from __future__ import annotations

import io
import time
from pathlib import Path

import pytest

from tuner_core.bundles import Bundle, object_entry, write_bundle
from tuner_core.errors import BadBundle


def a_bundle() -> bytes:
    file = io.BytesIO()
    entries = {object_entry(0, "lib0.o"): b"code", "records.jsonl": b'{"a": 1}\n{"a": 2}\n'}
    write_bundle(file, {"variants": [{"name": "untuned", "objects": ["lib0.o"]}]}, entries)
    return file.getvalue()


def test_what_was_written_is_read() -> None:
    bundle = Bundle(a_bundle())
    assert bundle.objects("untuned") == [b"code"]
    assert bundle.records() == [{"a": 1}, {"a": 2}]


def test_the_same_contents_make_the_same_file(monkeypatch: pytest.MonkeyPatch) -> None:
    first = a_bundle()
    monkeypatch.setattr(time, "localtime", lambda *_: time.gmtime(1_000_000_000))
    assert a_bundle() == first


def test_a_variant_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(BadBundle, match=r"no variant 'cpu:9'; it has untuned"):
        Bundle(a_bundle()).objects("cpu:9")


@pytest.mark.parametrize("keep", [0, 10, 100, 200])
def test_a_torn_file_is_refused(keep: int, tmp_path: Path) -> None:
    path = tmp_path / "torn.fractune"
    path.write_bytes(a_bundle()[:keep])
    with pytest.raises(BadBundle, match="torn"):
        Bundle(path)


def test_a_changed_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "changed.fractune"
    path.write_bytes(a_bundle().replace(b"code", b"c0de"))
    with pytest.raises(BadBundle, match=r"torn|digest"):
        Bundle(path).objects("untuned")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(BadBundle, match="no such file"):
        Bundle(tmp_path / "none.fractune")
