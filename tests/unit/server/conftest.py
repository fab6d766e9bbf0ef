"""What the parts of a server share: a real Redis, and a store of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from fractune_server.store.blob_files import BlobStore
from fractune_server.store.store import Store
from fractune_server.transport.context import ServerContext
from tests.support.secret import SECRET
from tests.support.store_contract import make_tables


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(make_tables(tmp_path))
    yield made
    made.close()


@pytest.fixture
def context(redis_url: str, tmp_path: Path, store: Store) -> Iterator[ServerContext]:
    """Redis is empty at first."""
    with redis.Redis.from_url(redis_url) as connection:
        connection.flushall()
        yield ServerContext(store, connection, BlobStore(tmp_path), SECRET)
