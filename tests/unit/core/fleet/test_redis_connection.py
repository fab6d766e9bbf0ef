"""Addresses of Redis, with and without their password; clocks that differ."""

import re
import time

import pytest
import redis

from fractune_core.access import with_password, without_password
from fractune_core.errors import BadRequest, RedisGone
from fractune_core.fleet.redis_names import CLOCK_TOLERANCE_S
from fractune_core.fleet.redis_state import CLOCK_LIMIT_S, ClockWrong, check_clock, no_redis, redis_time_s

SECRETS = ["plain", "with spaces", "a:b@c/d?e#f&g=%20", "ü"]


@pytest.mark.parametrize("password", SECRETS)
@pytest.mark.parametrize(
    "url",
    [
        "redis://measure@host:6379/0",
        "redis://host:6379/0",
        "rediss://measure@host:6379/0?ssl_ca_certs=/ca.pem",
        "unix://measure@/run/redis.sock?db=1",
        "unix:///run/redis.sock",
    ],
)
def test_the_password_arrives_and_is_not_shown(url: str, password: str) -> None:
    whole = with_password(url, password)
    told = redis.Redis.from_url(whole).connection_pool.connection_kwargs
    assert told["password"] == password
    assert told.get("username") in ("measure", "", None)
    assert told.get("username") == "measure" or "measure@" not in url
    plain = redis.Redis.from_url(url).connection_pool.connection_kwargs
    assert {name: told.get(name) for name in ("host", "port", "path", "db")} == {
        name: plain.get(name) for name in ("host", "port", "path", "db")
    }
    shown = without_password(whole)
    assert shown == url.replace("://", "://:***@" if "measure@" not in url else "://").replace("e@", "e:***@")
    assert without_password(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "redis:u:secret@h/0",
        "u:secret@h",
        "redis://us/er:secret@h",
        "redis://u:sec\nret@h",
        "redis://:a@h\n:secret@h",
        "redis://u@h://:secret@h",
        "redis:}//:secret@h://:secret@h",
    ],
)
def test_what_may_be_a_password_of_no_address_is_hidden_too(url: str) -> None:
    assert "ret" not in without_password(url)


@pytest.mark.parametrize("url", ["redis://u:secret@h/0", "redis://h/0?db=1&password=secret", "redis://:sec/re@t@h:1/0"])
def test_a_password_in_the_address_is_hidden_and_no_second_one_is_taken(url: str) -> None:
    assert "sec" not in without_password(url)
    with pytest.raises(BadRequest, match="give one of them") as refused:
        with_password(url, "other")
    assert "sec" not in str(refused.value)


def test_what_is_said_of_a_redis_that_does_not_answer_has_no_password() -> None:
    gone = no_redis("redis://u:secret@h:1/0", redis.ConnectionError("Connection refused."))
    assert isinstance(gone, RedisGone)
    assert str(gone).startswith("no Redis at redis://u:***@h:1/0 (Connection refused.); start it")


def test_what_is_said_of_no_address_does_not_quote_a_part_of_the_password() -> None:
    url = "redis://:sec/ret@h:1/0"
    with pytest.raises(ValueError, match="sec") as error:
        redis.Redis.from_url(url)
    refused = no_redis(url, error.value)
    assert isinstance(refused, BadRequest)
    assert "sec" not in str(refused)
    assert "ret" not in str(refused)


@pytest.mark.parametrize(
    ("ahead_s", "said"), [(3600.0, "1.00 h ahead of that of Redis"), (-86400.0, "24.00 h behind that of Redis")]
)
def test_a_clock_that_is_off_is_named_with_its_difference(ahead_s: float, said: str) -> None:
    with pytest.raises(ClockWrong, match=f"^the clock of this worker is {re.escape(said)}, and 0.5 h are allowed"):
        check_clock("this worker", time.time() - ahead_s)


def test_two_parts_that_are_let_in_differ_by_no_more_than_work_may() -> None:
    assert 2 * CLOCK_LIMIT_S <= CLOCK_TOLERANCE_S
    for ahead_s in (0.9, -0.9):
        check_clock("this server", time.time() - ahead_s * CLOCK_LIMIT_S)


def test_the_time_of_redis_has_its_microseconds() -> None:
    assert redis_time_s((1_000_000_000, 500_000)) == 1_000_000_000.5
