"""`fractune server` and `fractune worker`: the parts of a stack, each on its own."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fractune.cli import logs, options
from fractune.cli.environment import database_address, fleet_secret, redis_address
from fractune.cli.logs import LogFormat, LogLevel, set_up_logs
from fractune.local.programs import run_server, run_worker
from fractune.local.state import default_state_dir
from fractune.text.text import parse_bytes
from fractune_core.errors import BadRequest
from fractune_core.fleet.options import RoleName, ServerOptions, WorkerOptions
from fractune_core.records import COLD, WARM

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
    log_level: logs.Level = LogLevel.INFO
    log_format: logs.Format = LogFormat.TEXT


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
    ] = "2GiB",
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


def worker(
    role: Annotated[RoleName, typer.Option("--role", help="Kind of work.")],
    fleet: Fleet,
    share: Annotated[str | None, typer.Option("--share", help="Measurers: the share to measure under.")] = None,
    cores: Annotated[str | None, typer.Option("--cores", metavar="0,1", help="Cores to use.")] = None,
    lock_dir: Annotated[
        Path | None, typer.Option("--lock-dir", help="Folder of the locks that keep measurements undisturbed.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name in the fleet (default: a random one).")] = None,
    margin: Annotated[
        float | None,
        typer.Option("--margin", help="Measurers: a trial this close to the fastest is timed for longer (1.25)."),
    ] = None,
    cache: Annotated[
        Cache, typer.Option("--cache", help="Measurers of a GPU: state of its cache at the beginning of a call.")
    ] = Cache.WARM,
    max_model_memory: Annotated[
        str | None,
        typer.Option(
            "--max-model-memory",
            metavar="SIZE",
            envvar="FRACTUNE_MAX_MODEL_MEMORY",
            help="Memory limit for work on a model, such as 8GiB (default: 40 % of this host's).",
        ),
    ] = None,
) -> None:
    """Run one worker alone."""
    set_up_logs(fleet.log_level, fleet.log_format)
    run_worker(
        WorkerOptions(
            role.value,
            redis_address(fleet.redis, fleet.redis_password_file),
            fleet_secret(fleet.secret_file),
            share=share,
            cores=_parse_cores(cores) if cores else None,
            lock_dir=lock_dir,
            name=name,
            margin=margin,
            cache=cache.value,
            max_model_memory_bytes=_parse_model_memory(max_model_memory) if max_model_memory else None,
            secret_files=tuple(path for path in (fleet.secret_file, fleet.redis_password_file) if path is not None),
        )
    )


def _parse_model_memory(text: str) -> int:
    size = parse_bytes("--max-model-memory", text)
    if size < _LEAST_MODEL_MEMORY:
        raise BadRequest(f"--max-model-memory '{text}': TVM alone takes most of 1GiB; write that or more")
    return size


def _parse_cores(text: str) -> list[int]:
    try:
        return [int(core) for core in text.split(",")]
    except ValueError:
        raise BadRequest(f"--cores '{text}': write core numbers, such as 0,1") from None
