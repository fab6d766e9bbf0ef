"""A real Redis for the unit tests that ask for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.support.processes.redis_process import running_redis


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with running_redis() as url:
        yield url


@pytest.fixture
def connection(redis_url: str) -> Iterator[redis.Redis]:
    """To a Redis that is empty."""
    with redis.Redis.from_url(redis_url) as connection:
        connection.flushall()
        yield connection
