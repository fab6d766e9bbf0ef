"""Names in Redis: of queues, streams, keys and blobs; and how long what they name is kept.

Work goes out as JSON through RQ, to the queue of a role. Events come back over Redis streams: one stream for each
tuner instance (its trials' results) and one for the server (everything else). The recorder reads all of them
through the consumer group RECORDER; a tuner instance reads its own through the group TUNER.
"""

PROTOCOL = 11
"""Version of the messages. It rises when older workers would not understand a message. Every queue has it in its name,
so that work reaches only workers that can do it."""

PREFIX = "fractune:"
PROTOCOL_KEY = PREFIX + "protocol"
"""the server's, for workers that start"""
GREETING_KEY = PREFIX + "greeting"
"""something that the server has sealed: a worker that cannot open it has another secret, and does not start"""
UNREADABLE = PREFIX + "unreadable"
"""a stream: results that the recorder could not read, whole, each with the stream that it came from and the reason"""
SERVER_STREAM = PREFIX + "results:server"
STREAMS = PREFIX + "streams"
"""a set: the name of every results stream"""
RECORDER = "recorder"
TUNER = "tuner"
EVENT_FIELD = "event"
"""the one field of a stream entry; its value is an Event, sealed"""
REPLAYED_FIELD = "replayed"
"""in place of EVENT_FIELD, if an operator has requested that the server read an unreadable result again"""

HANDLER = "fractune_workers.entry.handle"
"""the function that RQ's jobs name, with one sealed Work as its argument; a worker calls no other function"""

BLOB_TTL_S = 24 * 3600
"""life of a blob that work may need; it starts again whenever further work for the blob is handed out"""
RELEASED_BLOB_TTL_S = 60
"""life of a blob that no open job needs any more"""
WORK_MAX_AGE_S = BLOB_TTL_S
"""older work is refused: the files that it needs are gone by then"""
CLOCK_TOLERANCE_S = 3600
"""how far the clocks of two hosts may differ; a message from further in the future is refused"""
MARK_TTL_S = WORK_MAX_AGE_S + 2 * CLOCK_TOLERANCE_S
"""what marks work as done outlives every copy of it, by whatever clock"""
WORKERS = PREFIX + "workers"
"""a set: the name of every worker that has an entry, or had one not long ago"""
WORKER_TTL_S = 6
"""a worker that has not renewed its entry for this long counts as dead"""


def tuner_stream(instance: str) -> str:
    return f"{PREFIX}results:{instance}"


def blob_key(name: str) -> str:
    return f"{PREFIX}blob:{name}"


def model_blob(tenant: str, sha256: str) -> str:
    """Each tenant's own: whether it is there already tells nothing of others."""
    return f"model:{tenant}:{sha256}"


def bundle_blob(bundle: str) -> str:
    return f"bundle:{bundle}"


def artifact_blob(round_id: str, candidate: str) -> str:
    return f"artifact:{round_id}:{candidate}"


def kernel_blob(tenant: str, candidate: str) -> str:
    """A finalist's code for a CPU, behind a line with what names its kernel: kept a while for the tenant's bundle."""
    return f"kernel:{tenant}:{candidate}"


def workload_blob(workload_hash: str) -> str:
    return f"workload:{workload_hash}"


COMPILE_QUEUE = f"compile.{PROTOCOL}"
BUILD_QUEUE = f"build.{PROTOCOL}"


def tune_queue(instance: str) -> str:
    return f"tune.{PROTOCOL}:{instance}"


def measure_queue(device_key: str, share: str) -> str:
    return f"measure.{PROTOCOL}:{device_key}:{share}"


def is_of_protocol(queue: str) -> bool:
    """Whether the queue is one of those above, and not of another protocol."""
    return queue.partition(":")[0].partition(".")[2] == str(PROTOCOL)


def role_and_share(queue: str) -> tuple[str, str]:
    """Of the workers that serve a queue; without a share for roles that do not measure."""
    name, _, served = queue.partition(":")
    role = name.partition(".")[0]
    return role, served.partition(":")[2] if role == "measure" else ""
