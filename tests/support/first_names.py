"""State that was written before the names of docs/decisions/0021-names-in-storage.md; tests/assets/first_names."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import redis

from tests.support.paths import REPOSITORY

ASSETS = REPOSITORY / "tests" / "assets" / "first_names"
SCHEMA_0013 = REPOSITORY / "tests" / "assets" / "schema_0013"
"""the same kinds of files, written later"""
BUNDLE = ASSETS / "small.fractune"
LOG = ASSETS / "log.jsonl"
JOB = "75674ab1a50f"
ROUND = "5fc7023602034923a6049b8d1c1b9699"
"""the validation whose results wait in redis.aof"""
STALE_WORK = "a31f7e58418346ef8e58f895c1c0eeca"
"""a build that waits in redis.aof"""


def write_state(folder: Path, assets: Path = ASSETS) -> None:
    """A state folder with the job done: database and bundle."""
    (folder / "bundles").mkdir(parents=True)
    (folder / "fractune.db").write_bytes(gzip.decompress((assets / "fractune.db.gz").read_bytes()))
    bundle = query(folder, "SELECT bundle FROM jobs")[0][0]
    shutil.copy(assets / BUNDLE.name, folder / "bundles" / f"{bundle}.fractune")


def back_to_validation(folder: Path) -> None:
    """Take the job back to where the results in redis.aof were not yet taken in; the model has been timed already."""
    records = list(waiting_records())
    candidates = json.dumps(sorted({record["candidate_id"] for record in records}))
    marks = ",".join("?" * len(records))
    ids = [record["record_id"] for record in records]
    with sqlite3.connect(folder / "fractune.db") as connection:
        assert connection.execute(f"DELETE FROM records WHERE record_id IN ({marks})", ids).rowcount == len(ids)  # noqa: S608
        connection.execute("UPDATE jobs SET state = 'finishing', ended_at = NULL, bundle = ''")
        row = (ROUND, JOB, "final", records[0]["workload_hash"], "", 2, candidates)
        connection.execute("INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    connection.close()


def waiting_records() -> Iterator[dict[str, object]]:
    """The records in redis.aof, as JSON."""
    for command in _commands():
        if command[0] == b"XADD":
            yield json.loads(command[-1])["record"]


def fill_redis(connection: redis.Redis) -> None:
    for command in _commands():
        connection.execute_command(*command)  # type: ignore[no-untyped-call]


def query(folder: Path, sql: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(folder / "fractune.db")
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def _commands() -> Iterator[list[bytes]]:
    """An append-only file of Redis: `*COUNT`, then for each argument `$BYTES` and the bytes."""
    with (ASSETS / "redis.aof").open("rb") as file:
        while head := file.readline():
            sizes = (int(file.readline()[1:]) for _ in range(int(head[1:])))
            yield [file.read(size + 2)[:-2] for size in sizes]
