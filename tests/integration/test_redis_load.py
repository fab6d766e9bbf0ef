"""What a whole fleet leaves in Redis, and by what commands it works, on a real Redis; the fleet is simulated."""

from pathlib import Path

import redis

from fractune_core.fleet.redis_state import DONE
from fractune_core.pb import fractune_pb2 as pb
from tests.support.processes.redis_process import commands_of, wait_until
from tests.support.processes.server_process import Client, model_bytes, simulated_stack

LOOKS_AT_ALL_KEYS = {"scan", "keys", "eval", "evalsha"}
"""commands that no part may need: they read all keys, or run scripts"""


def finish(client: Client, model: bytes, trials: int) -> None:
    created = client.create(client.upload(model), trials=trials)
    assert client.finish(created.name, 120).state == pb.JOB_STATE_DONE


def test_work_leaves_no_keys_behind_and_no_command_looks_at_all_of_them(tmp_path: Path) -> None:
    operators = [(f"conv2d_{number}", 1) for number in range(4)]
    with simulated_stack(tmp_path / "state") as (url, _, _, client), redis.Redis.from_url(url) as connection:
        finish(client, model_bytes(*operators), 40)
        keys, works = connection.dbsize(), connection.zcard(DONE)
        with commands_of(connection) as commands:
            finish(client, model_bytes(*operators), 240)
        assert connection.zcard(DONE) - works >= 150
        assert not commands.keys() & LOOKS_AT_ALL_KEYS
        # The second bundle goes a minute after its job; the rest is of work in hand, which ends.
        wait_until(lambda: connection.dbsize() <= keys + 1, 30)
