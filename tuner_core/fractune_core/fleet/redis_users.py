"""The users of a fleet's Redis: one a role, each with only the keys and the commands that the role needs.

As rules of an ACL file of Redis 7 or later, or of Valkey. A rule in brackets (a selector) allows its commands on its
keys alone; `%R~` allows only to read a key. What is not allowed is forbidden: no user has scripts, the list of keys,
publish and subscribe, or anything that administers Redis.
"""

import hashlib
from collections.abc import Mapping, Sequence

from fractune_core.fleet.options import RoleName

SERVER = "server"
ROLES = tuple(RoleName)
USERS = (SERVER, *ROLES)

_CONNECT = "+ping +info +time +select +multi +exec +discard +unwatch"
"""of everybody. INFO has no names of keys: RQ asks it for the version"""

_SERVER_COMMANDS = (
    "+get +set +mset +mget +del +exists +expire +persist +watch",
    "+sadd +srem +smembers +zadd +zrem +zscore +zrange +zcard +zremrangebyscore",
    "+hget +hset +hmget +hgetall +hdel +hexists +hincrby +rpush +lpush +llen +lrange +lindex +lrem",
    "+xadd +xreadgroup +xack +xgroup|create +xinfo|groups +xinfo|stream +xpending",
    "+xtrim +xrange +xrevrange +xlen +xdel",
    "+time",
)


def _worker(role: str) -> Sequence[str]:
    """Rules of every worker: to renew its entry, take work of its role, and deliver results."""
    return (
        "(+get %R~fractune:protocol %R~fractune:greeting)",
        f"(+set +del ~fractune:worker:{role}-*)",
        "(+sadd +srem ~fractune:workers)",
        "(+zscore %R~fractune:done %R~fractune:cancelled)",
        "(+zadd ~fractune:done ~fractune:handed-back)",
        "(+xadd ~fractune:results:*)",
        # The books of `fractune_workers.entry`: the worker, its queue, and the work that it has taken from there.
        f"(+hset +expire +del ~rq:worker:{role}-*)",
        f"(+blmove +lrem ~rq:queue:{role}.*)",
        "(+hget +hset +del +watch ~rq:job:*)",
        "(+hset +expire +del ~rq:execution:*)",
        f"(+zadd +zrem ~rq:wip:{role}.* ~rq:failed:{role}.*)",
    )


def _reads_blobs(*kinds: str) -> str:
    return "(+llen +lrange " + " ".join(f"%R~fractune:blob:{kind}:*" for kind in kinds) + ")"


def _writes_blobs(*kinds: str) -> str:
    return "(+del +rename +rpush +expire +exists " + " ".join(f"~fractune:blob:{kind}:*" for kind in kinds) + ")"


def _enqueues(role: str) -> Sequence[str]:
    """For the workers of another role; of a job's hash, every worker may write the fields already."""
    return ("(+sadd ~rq:queues)", f"(+rpush +lpush ~rq:queue:{role}.*)")


_RULES: Mapping[str, Sequence[str]] = {
    SERVER: (f"({' '.join(_SERVER_COMMANDS)} ~fractune:* ~rq:*)", "(+rename ~fractune:blob:*)"),
    "compile": (*_worker("compile"), _reads_blobs("model", "kernel"), _writes_blobs("bundle")),
    "tune": (
        *_worker("tune"),
        _reads_blobs("workload"),
        *_enqueues("build"),
        "(+xgroup|create +xreadgroup +xack ~fractune:results:tune-*)",
        "(+sadd ~fractune:streams)",
    ),
    "build": (
        *_worker("build"),
        _reads_blobs("workload", "artifact"),
        _writes_blobs("artifact", "kernel"),
        *_enqueues("measure"),
    ),
    "measure": (
        *_worker("measure"),
        _reads_blobs("artifact", "bundle"),
        # To take work of the same tenant first.
        "(+lrange +watch ~rq:queue:measure.*)",
        "(+rpush ~rq:queue:measure.*:intermediate)",
    ),
}


def acl_file(passwords: Mapping[str, str]) -> str:
    """The lines of Redis's `aclfile`: each user of USERS with its password's SHA-256, and the default user off."""
    lines = ["user default off resetpass resetkeys resetchannels -@all"]
    lines += [f"user {user} on #{_digest(passwords[user])} {user_rules(user)}" for user in USERS]
    return "\n".join(lines) + "\n"


def user_rules(user: str) -> str:
    """The rules of the user, as the words of `ACL SETUSER`."""
    return " ".join(("resetkeys", "resetchannels", "-@all", _CONNECT, *_RULES[user]))


def _digest(password: str) -> str:
    return hashlib.sha256(password.encode()).hexdigest()
