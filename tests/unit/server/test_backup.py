"""A backup holds all that a server remembers, is taken while it writes, and is put back whole or not at all."""

import errno
import hashlib
import io
import os
import tarfile
import threading
from pathlib import Path

import pytest

from fractune_core.errors import BadRequest, StateUnusable
from fractune_server.admin import back_up, restore
from fractune_server.store.blob_files import BlobStore, StateFolder
from fractune_server.store.records.rows import RecordFilter
from fractune_server.store.store import Store, sqlite_url
from tests.support.samples import validation

MODEL = b"a model"
DIGEST = hashlib.sha256(MODEL).hexdigest()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """With a record, a model and a bundle."""
    state = tmp_path / "state"
    state.mkdir()
    store, files = Store(sqlite_url(state)), BlobStore(state)
    store.log.add([validation("a", 1, 1.0)])
    with files.parts.open("", DIGEST, offset=0, size=len(MODEL)) as part:
        part.write(MODEL)
        files.add_model(DIGEST, part)
    files.add_bundle("0a1b", [b"a bundle"])
    (state / "blobs" / "tmp123").write_bytes(b"torn")
    (state / "secret").write_text("s")
    store.close()
    return state


def count(state: Path) -> int:
    store = Store(sqlite_url(state))
    try:
        return store.log.count(RecordFilter())
    finally:
        store.close()


def test_what_was_backed_up_is_there_after_a_restore(state: Path, tmp_path: Path) -> None:
    file = tmp_path / "backup.tar"
    found = back_up(state, file)
    assert (found.records, found.jobs, found.files, found.size_bytes) == (1, 0, 2, file.stat().st_size)
    again = restore(file, tmp_path / "new")
    assert again == found
    assert count(tmp_path / "new") == 1
    files = BlobStore(tmp_path / "new")
    assert (b"".join(files.model(DIGEST)), b"".join(files.bundle("0a1b"))) == (MODEL, b"a bundle")
    with tarfile.open(file) as archive:
        assert sorted(archive.getnames()) == [
            "backup.json",
            f"blobs/{DIGEST}",
            "bundles/0a1b.fractune",
            "fractune.db",
        ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup.tar", "new", "state"]


def test_a_backup_while_records_are_written_is_one_moment_of_the_log(state: Path, tmp_path: Path) -> None:
    stop, written = threading.Event(), [1]
    store = Store(sqlite_url(state))

    def write() -> None:
        while not stop.is_set():
            number = written[0]
            store.log.add([validation("a", 1, 1.0, record_id=f"r{number}-{each}") for each in range(10)])
            written[0] += 10

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(5):
            before = written[0]
            found = back_up(state, tmp_path / f"{number}.tar")
            assert before <= found.records <= written[0] + 10
            assert found.records % 10 == 1  # no part of a transaction
    finally:
        stop.set()
        writer.join()
        store.close()
    restore(tmp_path / "4.tar", tmp_path / "new")
    assert count(tmp_path / "new") == found.records


def test_a_folder_that_has_a_log_or_a_server_is_not_restored_over(state: Path, tmp_path: Path) -> None:
    file = tmp_path / "backup.tar"
    back_up(state, file)
    with pytest.raises(StateUnusable, match="has a database already; name a new folder by --state"):
        restore(file, state)
    with StateFolder(tmp_path / "new"), pytest.raises(StateUnusable, match="in use by another server"):
        restore(file, tmp_path / "new")


def test_a_folder_without_a_database_cannot_be_backed_up(tmp_path: Path) -> None:
    with pytest.raises(StateUnusable, match=r"has no fractune\.db: name the server's folder by --state"):
        back_up(tmp_path, tmp_path / "backup.tar")
    assert list(tmp_path.iterdir()) == []


def test_a_torn_backup_leaves_no_database_and_the_folder_can_be_restored(state: Path, tmp_path: Path) -> None:
    file, torn = tmp_path / "backup.tar", tmp_path / "torn.tar"
    back_up(state, file)
    whole = file.read_bytes()
    for size in (0, 100, 600, 2000, len(whole) // 2):
        torn.write_bytes(whole[:size])
        with pytest.raises(BadRequest, match=r"torn\.tar is no"):
            restore(torn, tmp_path / "new")
        assert not list((tmp_path / "new").glob("fractune.db*"))
    torn.write_bytes(whole.replace(MODEL, b"A model"))
    with pytest.raises(BadRequest, match=f"the model {DIGEST} in the backup is damaged"):
        restore(torn, tmp_path / "new")
    restore(file, tmp_path / "new")
    assert count(tmp_path / "new") == 1


@pytest.mark.parametrize("name", ["../evil", "blobs/../../evil", "/tmp/evil", "secret", "blobs/short"])
def test_a_file_that_is_none_of_ours_is_refused(state: Path, tmp_path: Path, name: str) -> None:
    file = tmp_path / "backup.tar"
    back_up(state, file)
    with tarfile.open(file, "a") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = 4
        archive.addfile(entry, io.BytesIO(b"evil"))
    with pytest.raises(BadRequest, match="which is not a file of fractune"):
        restore(file, tmp_path / "new")
    assert not list(tmp_path.rglob("evil"))


def test_another_file_is_no_backup(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 2000)
    with pytest.raises(BadRequest, match="is not a whole backup of fractune"):
        restore(tmp_path / "file", tmp_path / "new")
    with pytest.raises(StateUnusable, match="No such file"):
        restore(tmp_path / "none", tmp_path / "new")


@pytest.mark.parametrize(
    ("code", "advice"), [(errno.ENOSPC, "free space there, or name another file"), (errno.ENOENT, "name another file")]
)
def test_more_space_is_advised_only_where_the_disk_is_full(
    code: int, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    (tmp_path / "fractune.db").touch()
    monkeypatch.setattr("fractune_server.admin._copy_database", fail)
    with pytest.raises(StateUnusable, match=f": {os.strerror(code)}; {advice}$"):
        back_up(tmp_path, tmp_path / "backup")
