"""An operator's work on a server's database and files, whether or not the server runs: tokens, tenants and backups.

Each command writes a line into the server's audit. The server notes in its state folder where that is.
"""

import contextlib
import hashlib
import io
import json
import os
import pwd
import re
import shutil
import sqlite3
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fractune_core import __version__
from fractune_core.access import DEFAULT_REACH, Quotas, Reach, Scope, TokenText
from fractune_core.errors import BadRequest, StateUnusable
from fractune_core.files.bundles import SUFFIX
from fractune_core.host.machine import is_full
from fractune_core.jobs import Priority
from fractune_server.store.blob_files import StateFolder
from fractune_server.store.database.database import Database
from fractune_server.store.database.sight import Sight
from fractune_server.store.database.tenants import StoredTenant, TenantStore, Usage, UsageStore
from fractune_server.store.store import sqlite_url
from fractune_server.store.tokens import TokenStore

_NOTE = "audit"


def note_audit(state_dir: Path, file: Path | None) -> None:
    """Let commands on this state folder write to the file; None = to none any more."""
    note = state_dir / _NOTE
    if file is None:
        note.unlink(missing_ok=True)
    else:
        note.write_bytes(os.fsencode(file.absolute()))


@contextlib.contextmanager
def audited(state_dir: Path, command: str, tenant: str, about: str) -> Iterator[dict[str, str]]:
    """Write a line at the end of the block, which may replace `object`. A line that cannot be written fails no command:
    a token must be revocable.
    """
    named, began, result = {"object": about}, time.time(), "Failed"
    try:
        yield named
        result = "OK"
    except Exception as error:
        result = type(error).__name__
        raise
    finally:
        _append(
            state_dir,
            {
                "time": datetime.fromtimestamp(began, UTC).isoformat(timespec="milliseconds"),
                "call": f"admin/{command}",
                "token": "",
                "token_id": "",
                "tenant": tenant,
                "scope": "",
                "address": f"user:{_user()}",
                "object": named["object"],
                "result": result,
                "took_s": round(time.time() - began, 3),
            },
        )


def _append(state_dir: Path, line: dict[str, object]) -> None:
    """In one call, which other processes' lines cannot part."""
    named = note = state_dir / _NOTE
    try:
        if not note.exists():
            return
        named = Path(os.fsdecode(note.read_bytes()))
        descriptor = os.open(named, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with open(descriptor, "ab", buffering=0) as log:  # noqa: PTH123  a descriptor
            log.write(json.dumps(line).encode() + b"\n")
    except OSError as error:
        sys.stderr.write(f"fractune: the audit {named} lacks this command ({error.strerror})\n")


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's
        return str(os.getuid())


class Admin:
    """The database of a server: SQLite in `state_dir`, or the one of the address."""

    def __init__(self, state_dir: Path, database_url: str | None = None) -> None:
        self._url = database_url or sqlite_url(state_dir)
        self._state = state_dir

    def create_token(
        self,
        name: str,
        scope: Scope,
        lifetime_s: float | None,
        quotas: Quotas,
        max_priority: Priority = Priority.NORMAL,
        reach: Reach = DEFAULT_REACH,
    ) -> TokenText:
        """Raises StateUnusable without a database of this version, NotFound for an unknown tenant."""
        expires_at = None if lifetime_s is None else time.time() + lifetime_s
        with self._database() as database, audited(self._state, "token create", reach.tenant, "") as line:
            TenantStore(database).check(reach.tenant)
            made = TokenStore(database).create(name, scope, expires_at, quotas, max_priority, reach)
            line["object"] = made.token_id
            return made

    def list_tokens(self) -> list[dict[str, Any]]:
        """Tokens as plain values without their secrets, oldest first. Raises StateUnusable."""
        with self._database() as database, audited(self._state, "token list", "", ""):
            tokens = TokenStore(database)
            return [
                {
                    "token": each.token_id,
                    "tenant": each.reach.tenant,
                    "all_tenants": each.reach.all_tenants or each.scope is Scope.ADMIN,
                    "name": each.name,
                    "scope": each.scope.value,
                    "created_at": each.created_at,
                    "expires_at": each.expires_at,
                    "revoked_at": each.revoked_at,
                    "state": each.end(time.time()) or "good",
                    "max_priority": each.max_priority.value,
                    "quotas": asdict(each.quotas),
                    "used": _used(tokens.usage(each.token_id, each.reach.tenant)),
                }
                for each in tokens.all()
            ]

    def revoke_token(self, token_id: str) -> bool:
        """False if it was revoked before. Raises NotFound, StateUnusable."""
        with self._database() as database, audited(self._state, "token revoke", "", token_id):
            return TokenStore(database).revoke(token_id)

    def create_tenant(self, name: str, quotas: Quotas, weight: int = 1, *, shares_searches: bool = False) -> None:
        """Raises BadRequest for a name that is taken or wrong, StateUnusable."""
        with self._database() as database, audited(self._state, "tenant create", name, ""):
            TenantStore(database).create(StoredTenant(name, quotas, weight, shares_searches))

    def list_tenants(self) -> list[dict[str, Any]]:
        """Tenants as plain values, with what they use. Raises StateUnusable."""
        with self._database() as database, audited(self._state, "tenant list", "", ""):
            return [
                {
                    "tenant": each.name,
                    "weight": each.weight,
                    "shares_searches": each.shares_searches,
                    "quotas": asdict(each.quotas),
                    "used": _used(UsageStore(database.of(Sight(each.name, each.name))).of_tenant()),
                }
                for each in TenantStore(database).all()
            ]

    def set_tenant(self, name: str, quotas: Mapping[str, int | None], changes: Mapping[str, Any]) -> None:
        """Change these of its quotas, and these of its other fields. Raises NotFound, BadRequest, StateUnusable."""
        with self._database() as database, audited(self._state, "tenant set", name, ""):
            tenants = TenantStore(database)
            tenants.check(name)
            before = tenants.get(name)
            tenants.save(replace(before, quotas=replace(before.quotas, **quotas), **changes))

    def remove_tenant(self, name: str) -> None:
        """Raises NotFound, BadRequest for a tenant that has something, StateUnusable."""
        with self._database() as database, audited(self._state, "tenant remove", name, ""):
            TenantStore(database).remove(name)

    @contextlib.contextmanager
    def _database(self) -> Iterator[Database]:
        """Opens the database without creating or migrating it: a server of another version may be using it."""
        with contextlib.closing(Database(self._url, may_migrate=False)) as database:
            yield database


def _used(usage: Usage) -> dict[str, int]:
    return {field.name: getattr(usage, field.name) for field in fields(Quotas)}


_FORMAT = 1
_ABOUT, _DATABASE = "backup.json", "fractune.db"
_MODEL = re.compile(r"blobs/[0-9a-f]{64}")
_BUNDLE = re.compile(rf"bundles/[0-9A-Za-z_-]+{re.escape(SUFFIX)}")


@dataclass(frozen=True)
class BackupSummary:
    """Numbers of things in a backup, which is a tar archive of `backup.json`, the database, model files and bundles.

    SQLite's online backup copies the database at one moment. Files are written before the database names them, and
    never changed, so the files that exist after the copy include all that it names. Redis's content is not included,
    because a server requests its work again. Nor is the fleet's secret.
    """

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
