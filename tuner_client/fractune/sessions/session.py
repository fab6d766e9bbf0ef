"""A client for one piece of work, of a named or found server or of a new stack; and a job on it from its request to its
end.
"""

import contextlib
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

from fractune.local.stack import Stack, StackOptions, running_stack
from fractune.local.state import StackEntry, default_state_dir, is_running, read_entry
from fractune.server.credentials import PLAIN, Credentials
from fractune.server.job_status import JobStatus, check_ended_well, job_status
from fractune.server.pace import Pace
from fractune.server.rpc import RECONNECT_S, Absence, RpcClient, submit
from fractune.sessions.progress import View
from fractune_core.errors import BadRequest, FractuneError, JobFailed, ServerUnreachable, ShareUnavailable
from fractune_core.files.compared import ONNX_RUNTIME
from fractune_core.jobs import JobSpec, JobState

SERVER = "FRACTUNE_SERVER"
"""environment variable with the server for callers that name neither a server nor a state folder"""


PathText: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True)
class PlaceOptions:
    """The options of a call that say where its jobs run."""

    server: str | None
    state: PathText | None
    reconnect_s: float
    """an unreachable server is awaited for that long"""

    @property
    def named_server(self) -> str | None:
        """The server that the call or FRACTUNE_SERVER names; None if neither does. Raises BadRequest for both a folder
        and a server.
        """
        return named_server(self.state, self.server)


def named_server(state: PathText | None, server: str | None) -> str | None:
    """The server that the caller or FRACTUNE_SERVER names; None if neither does.

    A given `state` overrides the environment. Raises BadRequest for both a folder and a server.
    """
    if server is not None and state is not None:
        raise BadRequest("--state and --server exclude each other: a server has its own state folder")
    return server if server is not None or state is not None else os.environ.get(SERVER) or None


def running_stack_of(state: PathText | None) -> StackEntry | None:
    """The stack that is serving in the folder (default: the user's), or None."""
    folder = state_folder(state)
    entry = read_entry(folder) if is_running(folder) else None
    return entry if entry and entry.address else None


def server_address(state: PathText | None = None, server: str | None = None, *, lasting: bool) -> str:
    """The address of the named server, or else of the running stack of the state folder; starts no stack.

    `lasting` requires a stack that outlives the command that started it, such as that of `fractune up`. Raises
    ServerUnreachable if no stack is running or it has died, and BadRequest for both a folder and a server.
    """
    named = named_server(state, server)
    if named is not None:
        return named
    found = running_stack_of(state)
    if found is None or (lasting and not found.for_others):
        folder = state_folder(state)
        raise ServerUnreachable(f"{_missing(folder)}, or pass --server HOST:PORT")
    return found.address


def skipped_shares(state: PathText | None = None, server: str | None = None) -> Mapping[str, str]:
    """The shares that the running stack of the state folder could not verify, each with the cause; a named server has
    none.
    """
    found = None if named_server(state, server) else running_stack_of(state)
    return found.skipped_shares if found else {}


def state_folder(state: PathText | None) -> Path:
    """The folder of the caller's stack (default: the user's)."""
    return Path(state or default_state_dir()).expanduser().absolute()


def _missing(folder: Path) -> str:
    entry = read_entry(folder)
    if is_running(folder):
        if entry is not None and entry.address:
            return f"the stack in {folder} ends with the command that started it (pid {entry.pid}); wait for it"
        return f"the stack in {folder} is still starting; try again in a moment"
    if entry is None:
        return f"no stack is running in {folder}; start one with 'fractune up'"
    return f"the stack that ran in {folder} has died (pid {entry.pid} is gone); start it again with 'fractune up'"


@contextlib.contextmanager
def naming_missing_shares(folder: Path, address: str, wanted: Sequence[str]) -> Iterator[None]:
    """Let a refusal of shares name the stack that `fractune up` runs in `folder`, its shares, and the remedy."""
    try:
        yield
    except ShareUnavailable as error:
        remedy = _remedy(folder, address, wanted)
        if not remedy:
            raise
        raise ShareUnavailable(f"{error}. {remedy}") from error


def _remedy(folder: Path, address: str, wanted: Sequence[str]) -> str:
    """Empty if the stack lacks none of the shares, or does not answer."""
    try:
        with RpcClient(address) as client:
            held = sorted(client.measurers())
    except FractuneError:
        return ""
    missing = [share for share in wanted if share not in held]
    if not missing:
        return ""
    command = shlex.join(["fractune", "up", "--shares", ",".join([*held, *missing]), "--state", str(folder)])
    offered = f"workers for {', '.join(held)}" if held else "no measuring workers"
    return f"The stack of 'fractune up' in {folder} has {offered}. Stop it, then start it by: {command}"


_VERDICT_S = 1.0
"""seconds to wait for the stack's own error after a lost connection"""


class _Closable(Protocol):
    def close(self) -> None: ...


AnyClient = TypeVar("AnyClient", bound=_Closable)


@contextlib.contextmanager
def session(
    connect: Callable[..., AnyClient],
    state: PathText | None,
    server: str | None,
    *,
    shares: tuple[str, ...] = (),
    compile: bool = False,  # noqa: A002  - the role's name
    search: bool = False,
    runs_jobs: bool = False,
) -> Iterator[AnyClient]:
    """`connect` to the named or found server, or run a stack in `state` with only the requested workers.

    A caller that needs no workers also takes the stack of another command. Jobs that an earlier stack left open stay
    open, unless this one `runs_jobs`: then they count as interrupted. Raises BadRequest for both a state and a server,
    and the errors of RpcClient and running_stack. A broken stack raises its own error, not that of the lost connection.
    """
    options = StackOptions(Path(), shares=shares, compile=compile, search=search, resume=not runs_jobs)
    any_stack = not (shares or compile or search)
    with _connected(connect, state, server, options, any_stack=any_stack) as (client, _):
        yield client


@contextlib.contextmanager
def server_session(
    connect: Callable[..., AnyClient],
    state: PathText | None,
    server: str | None,
    *,
    lasting: bool,
    shares: tuple[str, ...] = (),
    reconnect_s: float = RECONNECT_S,
) -> Iterator[AnyClient]:
    """As `session`, on a running server that `server_address` finds. `shares` are those of a job for it."""
    address = server_address(state, server, lasting=lasting)
    with _on_server(partial(connect, reconnect_s=reconnect_s), address, state, server, shares) as client:
        yield client


@contextlib.contextmanager
def _on_server(
    connect: Callable[..., AnyClient],
    address: str,
    state: PathText | None,
    server: str | None,
    shares: tuple[str, ...],
) -> Iterator[AnyClient]:
    """A named server takes credentials from the environment. A found stack needs none, and a refusal says how to start
    it with all of `shares`.
    """
    is_named = named_server(state, server) is not None
    credentials = Credentials.found() if is_named else PLAIN
    naming = contextlib.nullcontext() if is_named else naming_missing_shares(state_folder(state), address, shares)
    client = connect(address, credentials=credentials, skipped_shares=skipped_shares(state, server))
    with contextlib.closing(client), naming:
        yield client


@dataclass(frozen=True)
class Workplace:
    """The place of a job's work."""

    client: RpcClient
    stack: Stack | None
    """started for this job only; None for a server that goes on afterwards"""

    @property
    def is_own(self) -> bool:
        """Whether it ends with the job."""
        return self.stack is not None

    def start_search(self) -> None:
        """Start the search workers. They start late, because a model with a complete log needs none."""
        if self.stack is not None:
            self.stack.start_search()


@contextlib.contextmanager
def tuning_session(where: PlaceOptions, shares: tuple[str, ...]) -> Iterator[Workplace]:
    """As `session`, for a job."""
    options = StackOptions(Path(), shares=shares, compile=True)
    connect = partial(RpcClient, reconnect_s=where.reconnect_s)
    with _connected(connect, where.state, where.server, options, any_stack=False) as (client, stack):
        yield Workplace(client, stack)


@contextlib.contextmanager
def _connected(
    connect: Callable[..., AnyClient],
    state: PathText | None,
    server: str | None,
    options: StackOptions,
    *,
    any_stack: bool,
) -> Iterator[tuple[AnyClient, Stack | None]]:
    address = named_server(state, server) or _found(state, any_stack=any_stack)
    if address is not None:
        with _on_server(connect, address, state, server, options.shares) as client:
            yield client, None
        return
    options = replace(options, state=Path(state or default_state_dir()))
    with (
        running_stack(options) as stack,
        contextlib.closing(connect(stack.address, skipped_shares=stack.skipped_shares)) as client,
    ):
        stack.on_failure(client.close)
        with _named_failures(stack):
            yield client, stack


def _found(state: PathText | None, *, any_stack: bool) -> str | None:
    stack = running_stack_of(state)
    return stack.address if stack is not None and (any_stack or stack.for_others) else None


@contextlib.contextmanager
def _named_failures(stack: Stack) -> Iterator[None]:
    """Raise the error of a broken stack instead of the lost connection that follows from it."""
    try:
        yield
    except ServerUnreachable:
        failure = stack.failure(_VERDICT_S)
        if failure is not None:
            raise failure from None
        raise


_NEEDS_SEARCH = (JobState.INGESTING, JobState.TUNING, JobState.VALIDATING)
"""states that a model with a complete log passes at once; in others, a tuner instance would take up cores"""


@contextlib.contextmanager
def finished_job(model: Path, spec: JobSpec, where: PlaceOptions, view: View) -> Iterator[tuple[Workplace, JobStatus]]:
    """Run the job for the file `model` to its end, on a server or a new stack, and yield that workplace.

    `spec.model` is filled in here. Raises the error that ended the job. Stopping the caller cancels the job, unless
    `view` leaves it to the server.
    """
    began = time.perf_counter()
    with tuning_session(where, spec.shares) as place, view:
        starting = {"starting": time.perf_counter() - began} if place.is_own else {}
        ended = run_job(place, model, spec, view)
        yield place, replace(ended, progress=replace(ended.progress, phases_s={**starting, **ended.progress.phases_s}))


def run_job(place: Workplace, model: Path, spec: JobSpec, view: View) -> JobStatus:
    """Run the job for the file `model` to its end. `spec.model` is filled in here.

    Raises the error that ended the job. Stopping the caller cancels the job, unless `view` leaves it to the server.
    """
    return _followed(place, submit(place.client, model, spec).name, view)


def rerun_job(place: Workplace, spec: JobSpec, view: View) -> JobStatus:
    """As `run_job`, for a model that the server has: `spec.model`. Raises NotFound if it has not."""
    return _followed(place, place.client.create_job(spec).name, view)


def _followed(place: Workplace, name: str, view: View) -> JobStatus:
    def show(job: JobStatus) -> None:
        if job.state in _NEEDS_SEARCH:
            place.start_search()
        view.show(job)

    with _cancelled_when_stopped(place, name, view):
        ended = follow(place.client, name, show, view.show_absence, view.afterwards_s)
    check_ended_well(ended)
    return ended


@contextlib.contextmanager
def _cancelled_when_stopped(place: Workplace, job: str, view: View) -> Iterator[None]:
    """Cancel the job when the caller is stopped. A lost server continues it, and a closed output does not cancel it."""
    try:
        yield
    except (FractuneError, BrokenPipeError):
        raise
    except BaseException as stop:  # Ctrl-C, SIGTERM, or an error of the caller's view
        if place.is_own or not view.leaves(job, stop):
            with contextlib.suppress(FractuneError):
                place.client.cancel_job(job)
                stop.add_note(f"{job} is cancelled")
        raise


def follow(
    client: RpcClient,
    job: str,
    show: Callable[[JobStatus], None],
    report_absence: Callable[[Absence], None],
    afterwards_s: float = 0.0,
) -> JobStatus:
    """Show the job at each change until it has ended, and return it. `report_absence` is called while the server is
    away; the caller's own work after the job takes about `afterwards_s`.
    """
    ended = None
    for message in client.watch_job(job, report_absence):
        now = job_status(message)
        ended = now.followed(ended.pace if ended else _first_pace(client, now, afterwards_s))
        show(ended)
    if ended is None:
        raise JobFailed(f"the server said nothing about {job}; look at its log")
    return ended


_LOOKED_AT = 200
"""newest jobs that are searched for one of the same model"""


def _first_pace(client: RpcClient, job: JobStatus, afterwards_s: float) -> Pace:
    """What the server knows of earlier jobs of the same model. It costs a moment, and helps only people who wait."""
    with contextlib.suppress(FractuneError):
        past = (job_status(each) for each in client.jobs(limit=_LOOKED_AT))
        alike = (each for each in past if each.state is JobState.DONE and each.model == job.model)
        times = [each for each in client.runtime_times(job.model, _LOOKED_AT) if each.runtime == ONNX_RUNTIME]
        shapes = {name: shape for name, shape in job.spec.inputs.items() if shape}
        peer_s = {
            each.share: each.loop_s
            for each in reversed(times)
            if all(list(each.inputs[name].dims) == shape for name, shape in shapes.items() if name in each.inputs)
        }
        return Pace(next((each.progress.phases_s for each in alike), {}), afterwards_s, peer_s)
    return Pace(afterwards_s=afterwards_s)
