"""A client for programs: submit jobs, query the tuning log, list the workers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, Unpack

from fractune.arguments import checked
from fractune.features.cost import DEFAULT_LIMIT, JobCost, job_costs
from fractune.features.log.log import Log
from fractune.features.log.match import MatchResult, answered_match, match_request, match_source
from fractune.features.matrix.matrix import Matrix, job_tables
from fractune.features.tune.bundle import BundleFile, download_bundle
from fractune.features.tune.result import TuneResult
from fractune.local.state import default_state_dir
from fractune.models.open_sizes import sized_model
from fractune.models.source import ModelSource, check_arrays
from fractune.server.credentials import PLAIN, Credentials
from fractune.server.job_status import Fleet, JobStatus, OfferedShare, WaitingWork, Worker, check_ended_well, job_status
from fractune.server.rpc import CALL_TIMEOUT_S, RECONNECT_S, RpcClient, job_name, submit
from fractune.sessions.progress import ProgressOption, choose_view
from fractune.sessions.session import follow, named_server, server_address, session, skipped_shares
from fractune.text.output_files import new_bundle
from fractune_core.analysis.model_times import MeasuredPair, RuntimeTime
from fractune_core.codec.messages import from_proto, to_proto
from fractune_core.jobs import JobOptions, JobSpec
from fractune_core.model_inputs import Inputs, Sizes
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.shares import share_names

if TYPE_CHECKING:
    from fractune.features.plan.plan import PlanResult


class Job:
    """A job of a server, from `Client.submit` or `Client.job`. It runs whether or not it is watched.

    Every method raises ServerUnreachable if the server is gone, and NotFound for an unknown job.
    """

    name: str
    """`jobs/...`"""

    def __init__(self, rpc: RpcClient, name: str) -> None:
        self.name = job_name(name)
        self._rpc = rpc

    def __repr__(self) -> str:
        return f"<Job {self.name}>"

    def status(self) -> JobStatus:
        """The job as it is now."""
        return job_status(self._rpc.get_job(self.name))

    def watch(self) -> Iterator[JobStatus]:
        """The job now and at each change, until it has ended.

        An unreachable server is awaited for `reconnect_s` of `fractune.connect`. Leaving the loop does not cancel the
        job.
        """
        return map(job_status, self._rpc.watch_job(self.name))

    @checked
    def wait(self, *, progress: ProgressOption = False) -> JobStatus:
        """Follow the job to its end and return its status. Ctrl-C ends the waiting, not the job.

        Raises the error that ended the job (BadModel, ShareUnavailable, JobFailed, ...), or JobCancelled.
        """
        with choose_view(progress) as view:
            ended = follow(self._rpc, self.name, view.show, view.show_absence)
        check_ended_well(ended)
        return ended

    def matrix(self, *, operators: bool = False) -> Matrix:
        """The ended job's table tuned at x run at, as `fractune.matrix` makes it; nothing is measured."""
        job = self.status()
        return Matrix(tuple(job_tables(self._rpc, job, operators=operators)), job.spec.skipped_shares)

    def cancel(self) -> JobStatus:
        """Cancel the job; its measurements stay in the log."""
        return job_status(self._rpc.cancel_job(self.name))

    @checked
    def bundle(self, out: str | os.PathLike[str] | None = None, *, force: bool = False) -> BundleFile:
        """Download the bundle to the file `out` (default: `<model>.fractune` in the current folder).

        Raises JobFailed if the job has no bundle, StateUnusable if the file cannot be written, and without `force`
        BadRequest for a bundle there that serves more, or another file.
        """
        return self._download(self.status(), out, force=force)

    @checked
    def result(
        self, out: str | os.PathLike[str] | None = None, *, force: bool = False, progress: ProgressOption = False
    ) -> TuneResult:
        """Wait for the end and download the bundle as by `bundle`. Raises the errors of `wait` and `bundle`."""
        ended = self.wait(progress=progress)
        return TuneResult(ended, self._download(ended, out, force=force))

    def _download(self, job: JobStatus, out: str | os.PathLike[str] | None, *, force: bool) -> BundleFile:
        return download_bundle(self._rpc, job, new_bundle(out, job.model_name, force=force))


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
    """A client of the server at `address`: HOST:PORT or unix:PATH. It sends nothing before the first call.

    The default address is FRACTUNE_SERVER, else that of the stack of `fractune up` in the state folder: FRACTUNE_STATE,
    else the user's data folder. Raises ServerUnreachable if no stack is running there. `timeout_s` is for quick calls;
    uploads, downloads and matching have longer limits. Following a job waits `reconnect_s` for an unreachable server.

    With `ca`, the PEM file of the server's authority, calls use TLS, with the token in `token_file`. If the server
    requires a certificate, `client_cert` is used with its `client_key`. For each None the environment counts:
    FRACTUNE_CA, FRACTUNE_TOKEN_FILE, FRACTUNE_CLIENT_CERT, FRACTUNE_CLIENT_KEY. A found stack needs none of them.
    Raises BadRequest for unusable files, and for a token that would reach another machine in plain text.
    """
    named = address or named_server(None, None)
    if named is None:
        found = server_address(lasting=True)
        return Client(found, timeout_s=timeout_s, reconnect_s=reconnect_s, skipped_shares=skipped_shares())
    credentials = Credentials.found(ca=ca, token_file=token_file, client_cert=client_cert, client_key=client_key)
    return Client(named, timeout_s=timeout_s, credentials=credentials, reconnect_s=reconnect_s)


class Client:
    """A connection to a server; close it, or use it as a context manager. Thread-safe.

    Every method raises the errors of the server, of `fractune.errors`, and ServerUnreachable if there is no server or
    its answer is late.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        credentials: Credentials = PLAIN,
        reconnect_s: float = RECONNECT_S,
        skipped_shares: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`skipped_shares`: those that the server's stack could not verify, with causes; jobs leave them out."""
        self._rpc = RpcClient(address, timeout_s, credentials, reconnect_s, skipped_shares)

    @cached_property
    def log(self) -> Log:
        """The server's tuning log."""
        return Log(self._rpc)

    @property
    def address(self) -> str:
        """HOST:PORT or unix:PATH."""
        return self._rpc.address

    @property
    def is_guarded(self) -> bool:
        """Whether the server answers only who has credentials, or may open its socket."""
        return self._rpc.is_guarded

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
        sizes: Sizes | None = None,
        greedy: bool = False,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Upload the model unless the server has it, and start a job; the options are those of `fractune.tune`.

        Raises BadModel for an unreadable model, BadRequest, and the errors of the server.
        """
        inputs = options.get("inputs")
        known = sized_model(model, run_script=run_script, inputs=inputs, sizes=sizes, greedy=greedy)
        with known as (path, options["inputs"]):
            spec = JobSpec.requested(path.name, shares, **options)
            check_arrays([spec], path)
            return Job(self._rpc, submit(self._rpc, path, spec).name)

    @checked
    def job(self, name: str) -> Job:
        """The job of this name, with or without `jobs/`. The first call finds out whether it exists."""
        return Job(self._rpc, name)

    @checked
    def jobs(self, *, open_only: bool = False, limit: int = 50) -> list[JobStatus]:
        """At most `limit` jobs, newest first, without their operators; only open ones with `open_only`."""
        return list(map(job_status, self._rpc.jobs(open_only=open_only, limit=limit)))

    @checked
    def costs(
        self, job: str | None = None, *, since: float | None = None, tokens: bool = False, limit: int = DEFAULT_LIMIT
    ) -> list[JobCost]:
        """The costs of the job, else of the newest `limit` jobs with costs; as `fractune.cost`.

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
        inputs: Inputs | None = None,
        sizes: Sizes | None = None,
        run_script: bool = False,
        target: str = "",
        namespace: str = "",
    ) -> MatchResult:
        """The record that each operator of the model would use at `share`, and the reason; as `fractune.match`.

        `model` may also be the name of a model that the server has: `JobStatus.model`. Raises BadModel, BadRequest.
        """
        with match_source(model, run_script=run_script, inputs=inputs, sizes=sizes) as (source, shapes):
            request = match_request(
                share, policy, shapes, allow_unmeasured=allow_unmeasured, target=target, namespace=namespace
            )
            return answered_match(self._rpc, source, request)

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
        """A plan by the server, with its log's data on the file's `model` entries; otherwise as `fractune.plan`.

        Raises BadRequest, BadModel, BadBundle, NotFound, PlanInfeasible.
        """
        from fractune.features.plan.plan import plan_by_server
        from fractune.features.plan.plan_file import read_plan

        return plan_by_server(
            self._rpc, read_plan(source, gpus=gpus, partitioning=partitioning), simulate=simulate, seed=seed
        )

    def add_pair(self, pair: MeasuredPair) -> bool:
        """Keep what `fractune.pair` measured (`PairResult.measured()`) in the log; False if it is there already."""
        return self._rpc.add_pair(to_proto(pair, pb.MeasuredPair))

    @checked
    def pairs(self, model_name: str = "", *, limit: int = 100) -> list[MeasuredPair]:
        """The log's pairs, the newest first; with `model_name` only those with a model of this name."""
        return list(map(partial(from_proto, MeasuredPair), self._rpc.pairs(model_name, limit)))

    @checked
    def add_runtime_times(self, times: Sequence[RuntimeTime]) -> int:
        """Keep what `fractune.compete` timed (`CompeteResult.measured()`) in the log; the number of new ones."""
        return self._rpc.add_runtime_times(to_proto(each, pb.RuntimeTime) for each in times)

    @checked
    def runtime_times(self, model: str = "", *, limit: int = 100) -> list[RuntimeTime]:
        """The log's times of other runtimes, the newest first; with `model` (`models/...`) only those of this model."""
        return list(map(partial(from_proto, RuntimeTime), self._rpc.runtime_times(model, limit)))

    def workers(self) -> list[Worker]:
        """The live workers, by role and name."""
        return list(self.fleet().workers)

    def fleet(self) -> Fleet:
        """The live workers, and the work that waits for them."""
        answer = self._rpc.fleet()
        workers = sorted(map(partial(from_proto, Worker), answer.workers), key=lambda found: (found.role, found.name))
        return Fleet(tuple(workers), tuple(map(partial(from_proto, WaitingWork), answer.waiting)))

    def shares(self) -> list[OfferedShare]:
        """The available shares and their devices."""
        return list(map(partial(from_proto, OfferedShare), self._rpc.shares()))


@contextlib.contextmanager
def local_stack(shares: str | Sequence[str] = (), *, state: str | os.PathLike[str] | None = None) -> Iterator[Client]:
    """A client of the one-machine stack, which runs until the block ends, with measurers for `shares`.

    Without shares the stack cannot tune, but its log can be queried. Jobs leave out shares that could not be verified
    (`JobStatus.spec.skipped_shares`). A folder `state` serves one stack at a time.
    Raises StateUnusable, ShareUnavailable, and FractuneError if the stack is not installed.
    """
    named = share_names(shares) if shares else ()
    where = Path(state) if state else default_state_dir()  # named, so that FRACTUNE_SERVER does not count
    runs = bool(named)
    with session(Client, where, None, shares=named, compile=runs, search=runs, runs_jobs=runs) as client:
        yield client
