"""The table of errors is complete: every error has a real status code, a name on the wire, and comes back."""

from __future__ import annotations

import pytest
import redis

from fractune_core.errors import FractuneError, RedisGone, error_from_name, error_kinds
from fractune_server.services.errors import STATUS_CODES, translate


@pytest.mark.parametrize("name", sorted(error_kinds()))
def test_every_error_has_a_status_and_comes_back(name: str) -> None:
    kind = error_kinds()[name]
    assert kind.grpc_status in STATUS_CODES
    assert kind.exit_code > 0
    told = translate(kind("what is wrong"))
    assert told is not None
    back = error_from_name(type(told).__name__, str(told))
    assert (type(back), str(back)) == (kind, "what is wrong")


def test_redis_away_is_told_and_other_errors_are_not() -> None:
    assert isinstance(translate(redis.ConnectionError("refused")), RedisGone)
    assert isinstance(translate(redis.TimeoutError("slow")), RedisGone)
    assert translate(KeyError("mistake")) is None


def test_an_unknown_name_is_still_an_error_of_ours() -> None:
    assert type(error_from_name("FromTheFuture", "hm")) is FractuneError
