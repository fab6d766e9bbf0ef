"""A server, for programs: submit jobs, ask the tuning log, see who works there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from fractune.arguments import checked
from fractune.features.cost.job_cost import JobCost, job_costs
from fractune.features.job import Job
from fractune.features.log.log import Log
from fractune.features.log.match import MatchResult, answered_match, match_request
from fractune.local.state import default_state_dir
from fractune.models.source import ModelSource, model_file
from fractune.server.credentials import PLAIN, Credentials
from fractune.server.from_proto import job_status
from fractune.server.job_status import JobStatus, OfferedShare, Worker
from fractune.server.rpc import CALL_TIMEOUT_S, RECONNECT_S, RpcClient
from fractune.sessions.finding import named_server, server_address
from fractune.sessions.running import submit
from fractune.sessions.session import session
from fractune_core.codec.messages import from_proto
from fractune_core.jobs import JobOptions, JobSpec
from fractune_core.shares import share_names

if TYPE_CHECKING:
    from fractune.features.plan.plan import PlanResult


def connect(
    address: str | None = None,
    *,
    timeout_s: float = CALL_TIMEOUT_S,
    reconnect_s: float = RECONNECT_S,
    ca: str | os.PathLike[str] | None = None,
    token_file: str | os.PathLike[str] | None = None,
    client_cert: str | os.PathLike[str] | None = None,
    client_key: str | os.PathLike[str] | None = None,
) -> Client:
    """A client of the server at `address`: HOST:PORT or unix:PATH. Nothing is sent before the first call.

    Without an address it is that of FRACTUNE_SERVER, else of the stack that `fractune up` runs in the state folder:
    FRACTUNE_STATE, else the user's data folder. Raises ServerUnreachable when none runs there. `timeout_s` is for calls
    that are answered at once; uploads, downloads and matching have more. Following a job waits `reconnect_s` for a
    server that went away. With `ca`, the PEM file of the server's authority, calls go over TLS, with the token in
    `token_file`. If the server requires a certificate, `client_cert` is used with its `client_key`. What is None is
    taken from FRACTUNE_CA, FRACTUNE_TOKEN_FILE, FRACTUNE_CLIENT_CERT and FRACTUNE_CLIENT_KEY; a stack that was found
    asks for nothing. Raises BadRequest for files that cannot be used, and for a token that would go to another machine
    in plain text.
    """
    named = address or named_server(None, None)
    if named is None:
        return Client(server_address(lasting=True), timeout_s=timeout_s, reconnect_s=reconnect_s)
    found = Credentials.found(ca=ca, token_file=token_file, client_cert=client_cert, client_key=client_key)
    return Client(named, timeout_s=timeout_s, credentials=found, reconnect_s=reconnect_s)


class Client:
    """A connection to a server; close it, or use it as a context manager. Thread-safe.

    Every method raises what the server refused, as an error of `fractune.errors`, and ServerUnreachable when there is
    no server or it did not answer in time.
    """

    log: Log
    """the server's tuning log"""

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        credentials: Credentials = PLAIN,
        reconnect_s: float = RECONNECT_S,
    ) -> None:
        self._rpc = RpcClient(address, timeout_s, credentials, reconnect_s)
        self.log = Log(self._rpc)

    @property
    def address(self) -> str:
        """HOST:PORT or unix:PATH."""
        return self._rpc.address

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection and every call in progress; jobs go on."""
        self._rpc.close()

    @checked
    def submit(
        self,
        model: ModelSource,
        shares: str | Sequence[str],
        *,
        run_script: bool = False,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Send the model unless the server has it, and start a job; the options are those of `fractune.tune`.

        Raises BadModel for a model that cannot be read, BadRequest, and what the server refuses.
        """
        with model_file(model, run_script=run_script) as path:
            spec = JobSpec.requested(path.name, shares, **options)
            return Job(self._rpc, submit(self._rpc, path, spec))

    def job(self, name: str) -> Job:
        """The job of this name, with or without `jobs/`; that it exists is found out by its first call."""
        return Job(self._rpc, name)

    def jobs(self, *, open_only: bool = False, limit: int = 50) -> list[JobStatus]:
        """At most `limit` jobs, newest first, without their operators; with `open_only` those that have not ended."""
        return list(map(job_status, self._rpc.jobs(open_only=open_only, limit=limit)))

    def costs(
        self, job: str | None = None, *, since: float | None = None, tokens: bool = False, limit: int = 50
    ) -> list[JobCost]:
        """What the job, else the newest `limit` jobs that took anything, took of the fleet; as `fractune.cost`.

        Raises NotFound, ScopeMissing.
        """
        return job_costs(self._rpc, job, since=since, tokens=tokens, limit=limit)

    @checked
    def match(
        self,
        model: ModelSource,
        share: str,
        *,
        policy: str = "robust",
        allow_unmeasured: bool = False,
        inputs: Mapping[str, Sequence[int]] | None = None,
        run_script: bool = False,
        target: str = "",
        namespace: str = "",
    ) -> MatchResult:
        """Which record each operator of the model would use at `share`, and why; the options are `fractune.match`'s.

        Raises BadModel, BadRequest.
        """
        request = match_request(
            share, policy, inputs or {}, allow_unmeasured=allow_unmeasured, target=target, namespace=namespace
        )
        with model_file(model, run_script=run_script) as path:
            return answered_match(self._rpc, path, request)

    @checked
    def plan(
        self,
        source: str | os.PathLike[str] | Mapping[str, Any],
        *,
        gpus: int | None = None,
        partitioning: str = "",
        simulate: bool = False,
        seed: int = 0,
    ) -> PlanResult:
        """A plan made by the server, with what its log knows of the file's `model` entries; else as `fractune.plan`.

        Raises BadRequest, BadModel, BadBundle, NotFound, PlanInfeasible.
        """
        from fractune.features.plan.plan import plan_by_server
        from fractune.features.plan.plan_file import read_plan

        return plan_by_server(
            self._rpc, read_plan(source, gpus=gpus, partitioning=partitioning), simulate=simulate, seed=seed
        )

    def workers(self) -> list[Worker]:
        """The live workers, by role and name."""
        return sorted(map(partial(from_proto, Worker), self._rpc.workers()), key=lambda found: (found.role, found.name))

    def shares(self) -> list[OfferedShare]:
        """The shares that can be asked for now, and on which device."""
        return list(map(partial(from_proto, OfferedShare), self._rpc.shares()))


@contextlib.contextmanager
def local_stack(shares: str | Sequence[str] = (), *, state: str | os.PathLike[str] | None = None) -> Iterator[Client]:
    """A client of the one-machine stack, which runs until the block ends, with measurers for `shares`.

    Without shares nothing can be tuned, and the log can be asked. A folder `state` serves one stack at a time. Raises
    StateUnusable, ShareUnavailable, and FractuneError when the stack is not installed.
    """
    named = share_names(shares) if shares else ()
    where = Path(state) if state else default_state_dir()  # named, so that FRACTUNE_SERVER does not count
    runs = bool(named)
    with session(Client, where, None, shares=named, compile=runs, search=runs, runs_jobs=runs) as client:
        yield client
