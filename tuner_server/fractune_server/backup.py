"""Backups: a server's state in one file, taken while the server runs, and restored into a new state folder.

The file is a tar archive of `backup.json`, the database, model files and bundles. SQLite's online backup copies the
database at one moment. Files are written before the database names them, and never changed, so the files that exist
after the copy include all that it names. Redis's content is not included, because a server requests its work again.
Nor is the fleet's secret.
"""

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fractune_core import __version__
from fractune_core.errors import BadRequest, StateUnusable
from fractune_core.files.bundles import SUFFIX
from fractune_core.host.machine import is_full
from fractune_server.operator_audit import audited
from fractune_server.store.blob_files import StateFolder

_FORMAT = 1
_ABOUT, _DATABASE = "backup.json", "fractune.db"
_MODEL = re.compile(r"blobs/[0-9a-f]{64}")
_BUNDLE = re.compile(rf"bundles/[0-9A-Za-z_-]+{re.escape(SUFFIX)}")


@dataclass(frozen=True)
class BackupSummary:
    """Numbers of things in a backup."""

    records: int
    jobs: int
    files: int
    """models and bundles"""
    size_bytes: int


def back_up(state: Path, file: Path) -> BackupSummary:
    """Back up the server of the folder `state` to `file`, which appears whole or not at all.

    Raises StateUnusable for a folder without a SQLite database, and for a file that cannot be written.
    """
    database = state / _DATABASE
    if not database.is_file():
        raise StateUnusable(
            f"{state} has no {_DATABASE}: name the server's folder by --state; back up a server with PostgreSQL by "
            "pg_dump, then copy blobs and bundles from its folder"
        )
    file = file.absolute()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with (
            audited(state, "backup", "", str(file)),
            tempfile.TemporaryDirectory(dir=file.parent, prefix=".backup-") as drafts,
        ):
            moment, archive = Path(drafts) / _DATABASE, Path(drafts) / "archive"
            _copy_database(database, moment)
            records, jobs = _counts(moment)
            files = _write(archive, moment, state)
            size_bytes = archive.stat().st_size
            archive.replace(file)
    except (OSError, sqlite3.Error) as error:
        remedy = "free space there, or " if _is_full(error) else ""
        raise StateUnusable(f"no backup at {file}: {_text(error)}; {remedy}name another file") from error
    return BackupSummary(records, jobs, files, size_bytes)


def restore(file: Path, state: Path) -> BackupSummary:
    """Restore the backup `file` into the folder `state`, which has no database yet.

    Raises BadRequest for a file that is not a whole backup, StateUnusable for a folder that is in use, has a database,
    or cannot be written. After a failure the folder has no database, and can be restored again.
    """
    with StateFolder(state):
        database = state / _DATABASE
        if database.exists():
            raise StateUnusable(f"{state} has a database already; name a new folder by --state")
        draft = state / f"{_DATABASE}.restored"
        try:
            with _opened(file) as archive:
                files = sum(_extract(archive, member, state, draft) for member in iter(archive.next, None))
            records, jobs = _counts(draft)
            draft.replace(database)
        except (tarfile.TarError, EOFError, sqlite3.Error, KeyError, ValueError) as error:
            raise BadRequest(f"{file} is not a whole backup of fractune: {_text(error)}") from error
        except OSError as error:
            raise StateUnusable(f"{state} or {file}: {_text(error)}; nothing was restored") from error
        finally:
            draft.unlink(missing_ok=True)
    return BackupSummary(records, jobs, files, file.stat().st_size)


def _copy_database(database: Path, to: Path) -> None:
    """Copy the database at one moment, while others may read and write."""
    with (
        contextlib.closing(sqlite3.connect(f"file:{database}?mode=rw", uri=True)) as source,
        contextlib.closing(sqlite3.connect(to)) as copy,
    ):
        source.backup(copy)


def _counts(database: Path) -> tuple[int, int]:
    """Numbers of records and jobs. Raises sqlite3.Error for a damaged database."""
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro&immutable=1", uri=True)) as connection:
        (fault,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if fault != "ok":
            raise sqlite3.DatabaseError(fault)
        ((records,), (jobs,)) = (
            connection.execute("SELECT count(*) FROM records").fetchone(),
            connection.execute("SELECT count(*) FROM jobs").fetchone(),
        )
    return records, jobs


def _write(archive: Path, moment: Path, state: Path) -> int:
    """Write the archive; returns the number of models and bundles."""
    header = json.dumps({"format": _FORMAT, "fractune": __version__, "made_at": time.time()}).encode()
    names = sorted(
        f"{path.parent.name}/{path.name}" for kind in ("blobs", "bundles") for path in (state / kind).glob("*")
    )
    files = [name for name in names if _is_file(name)]
    with archive.open("xb") as output:
        with tarfile.open(fileobj=output, mode="w") as tar:
            entry = tarfile.TarInfo(_ABOUT)
            entry.size = len(header)
            tar.addfile(entry, io.BytesIO(header))
            for name, path in [*((name, state / name) for name in files), (_DATABASE, moment)]:
                tar.add(path, name, recursive=False)
        output.flush()
        os.fsync(output.fileno())
    return len(files)


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[tarfile.TarFile]:
    """The archive after its first member. Raises BadRequest for another file or format."""
    with tarfile.open(file, mode="r|") as archive:
        header = archive.next()
        text = archive.extractfile(header) if header is not None and header.name == _ABOUT else None
        if text is None:
            raise BadRequest(f"{file} is not a backup of fractune")
        found = json.loads(text.read())
        if found["format"] != _FORMAT:
            raise BadRequest(f"{file} is of fractune {found['fractune']}; restore it with that version or a later one")
        yield archive


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, state: Path, database: Path) -> bool:
    """Extract a member; True for a model or bundle, False for the database. Raises BadRequest for anything else."""
    content = archive.extractfile(member) if member.isreg() else None
    if content is None or not (member.name == _DATABASE or _is_file(member.name)):
        raise BadRequest(f"the backup holds '{member.name}', which is not a file of fractune")
    path = database if member.name == _DATABASE else state / member.name
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as output:
        shutil.copyfileobj(content, output)
        output.flush()
        os.fsync(output.fileno())
    if _MODEL.fullmatch(member.name) and _digest(path) != path.name:
        path.unlink()
        raise BadRequest(f"the model {path.name} in the backup is damaged")
    return path is not database


def _is_file(name: str) -> bool:
    return bool(_MODEL.fullmatch(name) or _BUNDLE.fullmatch(name))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_full(error: OSError | sqlite3.Error) -> bool:
    if isinstance(error, OSError):
        return is_full(error)
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL


def _text(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
