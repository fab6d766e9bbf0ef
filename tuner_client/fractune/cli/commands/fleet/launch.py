"""`fractune server` and `worker`, the parts of a fleet; `node`, all workers of a machine; `health` of a server."""

import contextlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fractune.cli import options
from fractune.cli.ending import Stopped
from fractune.cli.options import database_address, fleet_secret, redis_address
from fractune.local.node import DEFAULT_GRACE_S, NodeOptions, node_shares, run_node
from fractune.local.programs import run_server, run_worker
from fractune.local.state import default_state_dir
from fractune.server.credentials import Credentials
from fractune.server.rpc import RpcClient
from fractune.sessions.session import named_server
from fractune.text.text import parse_bytes
from fractune_core.access import with_user
from fractune_core.errors import BadRequest, FractuneError
from fractune_core.fleet.options import RoleName, ServerOptions, WorkerOptions
from fractune_core.names import HealthPart
from fractune_core.records import COLD, WARM
from fractune_core.tracing import current_log_fields

_CHATTY = ("alembic", "rq")
"""libraries with INFO messages about their own insides"""


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


LogLevelOption = Annotated[LogLevel, typer.Option("--log-level", help="Least level of logged messages.")]
LogFormatOption = Annotated[LogFormat, typer.Option("--log-format", help="Lines of text, or one JSON object a line.")]


def set_up_logs(level: LogLevel, form: LogFormat) -> None:
    """Let this process log to standard error."""
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s")
    handler.setFormatter(_JsonLines() if form is LogFormat.JSON else text)
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(level=number, handlers=[handler], force=True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **current_log_fields(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


AUTO = "auto"
_LEAST_MODEL_MEMORY = 1 << 30


@dataclass(frozen=True)
class Fleet:
    """Options of every part of a fleet."""

    redis: Annotated[
        str,
        typer.Option(
            "--redis", metavar="URL", envvar="FRACTUNE_REDIS", help="redis[s]://USER@HOST:PORT/DB or unix:///PATH."
        ),
    ]
    redis_password_file: Annotated[
        Path | None,
        typer.Option("--redis-password-file", help="File with the password of the user that --redis names."),
    ] = None
    secret_file: Annotated[
        Path | None, typer.Option("--secret-file", help="File with the fleet's secret (else FRACTUNE_SECRET).")
    ] = None
    log_level: LogLevelOption = LogLevel.INFO
    log_format: LogFormatOption = LogFormat.TEXT

    def arguments(self, role: str, passwords: Path | None) -> Iterator[str]:
        """The same options for a worker of the role. With a folder of passwords, as `fractune admin redis-acl` writes
        it, each role is a user of its own. Raises BadRequest.
        """
        if passwords is not None and self.redis_password_file is not None:
            raise BadRequest("--redis-passwords and --redis-password-file exclude each other; give one of them")
        file = self.redis_password_file if passwords is None else passwords / f"{role}.password"
        redis_address(self.redis, file)  # refused here, once, and not by each worker
        yield from ("--redis", self.redis if passwords is None else with_user(self.redis, role))
        if file is not None:
            yield from ("--redis-password-file", str(file))
        if self.secret_file is not None:
            yield from ("--secret-file", str(self.secret_file))
        yield from ("--log-level", self.log_level, "--log-format", self.log_format)


class Cache(StrEnum):
    WARM = WARM
    COLD = COLD


def server(
    fleet: Fleet,
    serving: options.Serving,
    state: options.State = None,
    database: options.Database = None,
    database_password_file: options.DatabasePasswordFile = None,
    local_socket: Annotated[
        Path | None,
        typer.Option("--local-socket", help="With TLS: serve at this Unix socket too, for its user, without a token."),
    ] = None,
    upload_limit: Annotated[
        str, typer.Option("--upload-limit", metavar="SIZE", help="Largest size of a model file, such as 500MiB.")
    ] = "16GiB",
    resume: Annotated[bool, typer.Option(help="Continue jobs that were open when the last server ended.")] = True,
    ready_file: Annotated[
        Path | None, typer.Option("--ready-file", help="Write the bound address here once serving.")
    ] = None,
) -> None:
    """Run the server alone."""
    set_up_logs(fleet.log_level, fleet.log_format)
    run_server(
        ServerOptions(
            redis_url=redis_address(fleet.redis, fleet.redis_password_file),
            state_dir=state or default_state_dir(),
            secret=fleet_secret(fleet.secret_file),
            database_url=database_address(database, database_password_file),
            local_socket=local_socket,
            upload_limit_bytes=parse_bytes("--upload-limit", upload_limit),
            resume=resume,
            ready_file=ready_file,
            **serving.parsed(),
        )
    )


LockDir = Annotated[
    Path | None, typer.Option("--lock-dir", help="Folder of the locks that keep measurements undisturbed.")
]
ModelMemory = Annotated[
    str | None,
    typer.Option(
        "--max-model-memory",
        metavar="SIZE",
        envvar="FRACTUNE_MAX_MODEL_MEMORY",
        help="Memory limit for work on a model, such as 8GiB (default: 40 % of this host's).",
    ),
]


def worker(
    role: Annotated[RoleName, typer.Option("--role", help="Kind of work.")],
    fleet: Fleet,
    share: Annotated[str | None, typer.Option("--share", help="Measurers: the share to measure under.")] = None,
    cores: Annotated[str | None, typer.Option("--cores", metavar="0,1", help="Cores to use.")] = None,
    lock_dir: LockDir = None,
    name: Annotated[str | None, typer.Option("--name", help="Name in the fleet (default: a random one).")] = None,
    margin: Annotated[
        float | None,
        typer.Option("--margin", help="Measurers: a trial this close to the fastest is timed for longer (1.25)."),
    ] = None,
    cache: Annotated[
        Cache, typer.Option("--cache", help="Measurers of a GPU: state of its cache at the beginning of a call.")
    ] = Cache.WARM,
    max_model_memory: ModelMemory = None,
) -> None:
    """Run one worker alone."""
    set_up_logs(fleet.log_level, fleet.log_format)
    run_worker(
        WorkerOptions(
            role.value,
            redis_address(fleet.redis, fleet.redis_password_file),
            fleet_secret(fleet.secret_file),
            share=share,
            cores=options.parse_numbers("--cores", cores) if cores else None,
            lock_dir=lock_dir,
            name=name,
            margin=margin,
            cache=cache.value,
            max_model_memory_bytes=_parse_model_memory(max_model_memory) if max_model_memory else None,
            secret_files=tuple(path for path in (fleet.secret_file, fleet.redis_password_file) if path is not None),
        )
    )


def node(
    fleet: Fleet,
    shares: Annotated[
        str, typer.Option("--shares", help="A measurer for each, of a GPU's share on each GPU; one may stand twice.")
    ] = "",
    builders: Annotated[
        str, typer.Option("--builders", help="Number of builders; auto: one for each free core.")
    ] = AUTO,
    compilers: Annotated[int, typer.Option("--compilers", help="Workers that read and compile models.")] = 1,
    tuners: Annotated[int, typer.Option("--tuners", help="Tuner instances, which search.")] = 1,
    redis_passwords: Annotated[
        Path | None,
        typer.Option("--redis-passwords", help="Folder that 'fractune admin redis-acl' wrote: a user for each role."),
    ] = None,
    cores: Annotated[str | None, typer.Option("--cores", metavar="0,1", help="Cores to use.")] = None,
    lock_dir: LockDir = None,
    grace_s: Annotated[
        float, typer.Option("--grace", metavar="SECONDS", help="Time for the work in hand, once asked to end.")
    ] = DEFAULT_GRACE_S,
    max_model_memory: ModelMemory = None,
) -> None:
    """Run all workers of this machine, or of its allotted part."""
    set_up_logs(fleet.log_level, fleet.log_format)
    fleet_secret(fleet.secret_file)
    placed = [] if lock_dir is None else ["--lock-dir", str(lock_dir)]
    if max_model_memory is not None:
        _parse_model_memory(max_model_memory)
        placed += ["--max-model-memory", max_model_memory]
    node_options = NodeOptions(
        shares=node_shares(shares),
        builders=None if builders == AUTO else parse_count("--builders", builders),
        compilers=compilers,
        tuners=tuners,
        cores=tuple(options.parse_numbers("--cores", cores)) if cores else (),
        grace_s=grace_s,
    )
    arguments = {role: [*fleet.arguments(role, redis_passwords), *placed] for role in node_options.roles()}
    with contextlib.suppress(Stopped, KeyboardInterrupt):
        run_node(replace(node_options, arguments=arguments))


def parse_count(option: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise BadRequest(f"{option} '{text}': write a number, or {AUTO}")
    return int(text)


def _parse_model_memory(text: str) -> int:
    size = parse_bytes("--max-model-memory", text)
    if size < _LEAST_MODEL_MEMORY:
        raise BadRequest(f"--max-model-memory '{text}': TVM alone takes most of 1GiB; write that or more")
    return size


def health(
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            metavar="HOST:PORT",
            help=f"The server; unix:PATH too (else FRACTUNE_SERVER, else {options.DEFAULT_LISTEN}).",
        ),
    ] = None,
    timeout_s: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds to wait for an answer.")] = 5.0,
    live: Annotated[bool, typer.Option("--live", help="Check only whether the server must be restarted.")] = False,
    as_json: options.Json = False,
) -> None:
    """Report whether a server is healthy. The exit code is 0 or 1, and 5 if the server does not answer."""
    parts = [HealthPart.ENGINE] if live else list(HealthPart)
    server = named_server(None, server) or options.DEFAULT_LISTEN
    with RpcClient(server, timeout_s, Credentials.found()) as client:
        found = {part.value: client.is_serving(part.value) for part in parts}
    if as_json:
        print(json.dumps({"server": server, "healthy": all(found.values()), "parts": found}))
    else:
        for part, works in found.items():
            print(f"{part}: {'ok' if works else 'failing'}")
    failing = [part for part, works in found.items() if not works]
    if failing:
        raise FractuneError(f"the server at {server} is not ready: {', '.join(failing)}; its log says why")
