"""A process that times models at a share of this machine's CPU, or under a CPU limit, confined as a measurer is.

Core locks keep every other fractune process of this user off the cores meanwhile. The first half of this file is for
the caller, the second half runs in the process.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fractune.local.programs import require
from fractune_core.errors import BadRequest, FractuneError
from fractune_core.files.bundles import Bundle
from fractune_core.files.compared import ONNX_RUNTIME, OPENVINO, OURS, Compared
from fractune_core.files.manifests import MASK
from fractune_core.host.machine import beside_others, busy_s
from fractune_core.model_inputs import shapes_in
from fractune_core.served import TRIES, timed_quietly
from fractune_core.share_kinds import CPU
from fractune_core.shares import Share

if TYPE_CHECKING:
    from fractune.comparing.beside import Contenders
    from fractune_runtime.bucketed_model import BucketedModel
    from fractune_runtime.model import Model
    from fractune_workers.locks.core_locks import CoreLocks

_TIMEOUT_S = TRIES * 1800.0
_WAIT_NOTED_S = 5.0
"""a little more than `CoreLocks.awaited_holders` needs"""
_MOST_S = 60.0
"""after which no further round of `time_services` begins"""
_WARM_RUNS = 10
_Call = Callable[[], Any]


def check_share(share: Share) -> None:
    """Raises ShareUnavailable if this machine does not have the CPU share."""
    require("worker", "tvm")
    from fractune_workers.confinement.cpu import CpuConfinement

    CpuConfinement(share).probe()


@contextlib.contextmanager
def timing_process(
    share: str,
    env: Mapping[str, str],
    served_s: float = 0.0,
    report_line: Callable[[str], None] = lambda _: None,
    *,
    module: str = __name__,
) -> Iterator[Callable[..., Any]]:
    """A function that calls the methods of a process at `share`: those of `TimingChild`, or of another `module`. Its
    `open_child` gets the share, and the cores separated by commas.

    The process has cores of its own until the block ends; `env` points it to our packages. `served_s` is the time that
    its requests take to arrive. `report_line` gets a line if another fractune process keeps the cores for some seconds.
    Raises ShareUnavailable.
    The call raises the errors of the method.
    """
    require("worker", "tvm")
    from fractune_workers.child import Child
    from fractune_workers.confinement.cpu import CpuConfinement
    from fractune_workers.confinement.cpu_limit import CpuLimitConfinement
    from fractune_workers.confinement.limit_cgroups import LimitCgroups
    from fractune_workers.locks.core_locks import CoreLocks, default_lock_dir

    LimitCgroups().remove_dead()
    named = Share.parse(share)
    confinement = CpuConfinement(named) if named.mechanism == CPU else CpuLimitConfinement(named)
    confinement.probe()
    args = [share, ",".join(map(str, confinement.cores))]
    child = Child(module, args, {**env, **confinement.environment()})
    locks = CoreLocks(default_lock_dir())
    try:
        with noting_a_wait(locks, report_line), locks.measuring(confinement.cores):
            yield lambda method, **arguments: child.call(method, served_s + _TIMEOUT_S, **arguments)
    finally:
        child.stop()
        confinement.leave()


@contextlib.contextmanager
def noting_a_wait(locks: CoreLocks, report_line: Callable[[str], None]) -> Iterator[None]:
    """Name the processes that keep this one from its cores, once it has waited for some seconds."""

    def note() -> None:
        for holder in locks.awaited_holders():
            report_line(f"waiting for the measurement cores, held by PID {holder.pid} of another stack")

    timer = threading.Timer(_WAIT_NOTED_S, note)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def open_child(args: list[str]) -> dict[str, Callable[..., Any]]:
    """The arguments are the share and its cores, separated by commas. Raises ShareUnavailable."""
    share, cores = args
    child = TimingChild(share, [int(core) for core in cores.split(",")])
    timing = (
        *(child.time_peer, child.time_peer_at, child.time_beside),
        *(child.compare, child.compare_between, child.time_services),
    )
    return {**{each.__name__: partial(child.proved, each) for each in timing}, "serve": child.serve}


class TimingChild:
    """The process, which is confined first. Times that other programs disturbed are taken again (`timed_quietly`), and
    have the `others_cores`. Under a limit, it enters the share only when the model is loaded: the limit
    would slow that down.
    """

    def __init__(self, share: str, cores: Sequence[int]) -> None:
        from fractune_workers.confinement.cpu import CpuConfinement
        from fractune_workers.confinement.cpu_limit import CpuLimitConfinement

        self._share, named = share, Share.parse(share)
        is_whole = named.mechanism == CPU
        self._confinement = CpuConfinement(named, cores) if is_whole else CpuLimitConfinement(named, cores)
        if is_whole:
            self._confinement.enter()
        else:
            os.sched_setaffinity(0, self._confinement.cores)  # the threads of the model take their cores from it

    def proved(self, method: Callable[..., dict[str, Any]], **arguments: Any) -> dict[str, Any]:
        """The result of the method, after which all threads are there. Raises ShareUnavailable."""
        cores = self._confinement.cores
        found, others_cores = timed_quietly(
            lambda: beside_others(partial(method, **arguments), cores),
            lambda secs: beside_others(partial(time.sleep, secs), cores)[1],
        )
        self._confinement.verify()
        return {**found, "others_cores": others_cores}

    def time_peer(self, path: str, shapes: dict[str, list[int]], repeats: int) -> dict[str, Any]:
        from fractune.comparing import beside

        version, run_secs = beside.time_peer(Path(path), len(self._confinement.cores), shapes, repeats)
        return {"version": version, "run_secs": run_secs}

    def time_peer_at(self, path: str, several: list[dict[str, list[int]]], repeats: int) -> dict[str, Any]:
        from fractune.comparing import beside

        return {"run_secs": beside.time_peer_at(Path(path), len(self._confinement.cores), several, repeats)}

    def time_beside(self, path: str, bundle: str, repeats: int) -> dict[str, Any]:
        from fractune.comparing import beside
        from fractune_runtime.loading import load

        model = load(bundle, share=self._share)
        variant = model.choice.variant
        inputs = beside.accepted_inputs(Path(path), model, model.random_inputs())
        timed = beside.time_beside(Path(path), model, inputs, [variant], repeats)
        return {"variant": variant, **asdict(timed)}

    def compare(
        self, bundle: str, member: int | None, onnx: str, runtimes: list[str], repeats: int, *, exact: bool
    ) -> dict[str, Any]:
        """`compared` and `runtimes` of the bundle or its member, as a manifest has them."""
        from fractune.comparing.beside import accepted_inputs, time_beside_runtimes
        from fractune_runtime.loading import model_of

        opened = Bundle(Path(bundle))
        model = model_of(opened if member is None else opened.members[member], share=self._share, runtimes=False)
        inputs = model.random_inputs()
        with contextlib.suppress(FractuneError):  # each runtime is refused for reasons of its own
            inputs = accepted_inputs(Path(onnx), model, inputs)
        compared, found = time_beside_runtimes(model, [inputs], _contenders(onnx, repeats, exact=exact), runtimes)
        return {"compared": compared.to_json(), "runtimes": {name: each.to_json() for name, each in found.items()}}

    def compare_between(
        self, bundle: str, member: int, onnx: str, compared: Any, repeats: int, *, exact: bool
    ) -> dict[str, Any]:
        """`between` of the member, which was `compared` at its own shape."""
        from fractune.comparing.padded_outputs import time_between_shapes
        from fractune_runtime.bucketed_model import BucketedModel

        model = BucketedModel(Bundle(Path(bundle)), share=self._share, runtimes=False)
        file, at_shape = _contenders(onnx, repeats, exact=exact), Compared.from_json(compared)
        between, found = time_between_shapes(model, member, file, at_shape)
        return {
            "between": [each.to_json() for each in between],
            "runtimes": {name: each.to_json() for name, each in found.items()},
        }

    def time_services(
        self, runtime: str, path: str, threads: list[int], rounds: int, shapes: dict[str, list[int]]
    ) -> dict[str, Any]:
        """The times by the numbers of threads that run the model in the runtime; `version` is empty for a bundle."""
        from fractune.comparing.interleaved import time_services

        version, calls = calls_of(runtime, path, threads, shapes)
        times = time_services(dict(calls), rounds, _MOST_S)
        return {"version": version, "times": [{"threads": n, **asdict(each)} for n, each in times.items()]}

    def serve(
        self, runtime: str, path: str, threads: list[int], arrivals_s: list[float], shapes: dict[str, list[int]]
    ) -> dict[str, Any]:
        """The latencies of requests to replicas with these numbers of threads, and the cores that other programs kept
        busy. OpenVINO's replicas are streams of one model: separate models would pin their threads to the same cores.
        Raises ShareUnavailable.
        """
        from fractune.comparing.interleaved import serve, wait_for_quiet

        streams = len(threads) if runtime == OPENVINO else 1
        calls = [call for _, call in calls_of(runtime, path, threads[::streams], shapes, streams)[1]]
        for call in calls:
            for _ in range(_WARM_RUNS):
                call()
        self._confinement.enter()
        self._confinement.verify()
        wait_for_quiet()
        before_s = busy_s()
        found = serve(calls, arrivals_s)
        others_s = busy_s() - before_s - found["cpu_s"] * len(arrivals_s)
        return {"latencies_s": found["latencies_s"], "other_cores": max(0.0, others_s / found["elapsed_s"])}


def _contenders(onnx: str, repeats: int, *, exact: bool) -> Contenders:
    from fractune.comparing.beside import Contenders
    from fractune_runtime.sessions import is_quantized

    path = Path(onnx)
    return Contenders(path.read_bytes(), is_quantized(path), exact, repeats)


def calls_of(
    runtime: str, path: str, threads: Sequence[int], shapes: Mapping[str, Sequence[int]], streams: int = 1
) -> tuple[str, list[tuple[int, _Call]]]:
    """The version of the runtime, empty for a bundle, and calls of one inference. Beside each stands the number of
    threads that it runs on: a tiny bundle takes one in any case. OpenVINO has a call for each of its `streams`. Raises
    BadRequest for an unknown input.
    """
    if runtime == OURS:
        from fractune_runtime.loading import load

        models = [load(path, share=f"cpu:{count}") for count in threads]
        return "", [(model.threads, _call_of(model)) for model in models]
    if runtime == OPENVINO:
        return _openvino_calls(path, threads, shapes, streams)
    from fractune_runtime.sessions import OnnxRuntimeSession, settings_of

    settings = settings_of(ONNX_RUNTIME, exact=False)
    sessions = [OnnxRuntimeSession(Path(path), count, settings) for count in threads]
    first = sessions[0]
    for name in shapes_in(shapes):
        if name not in first.input_names:
            raise BadRequest(f"--input '{name}': no such input; the inputs are {', '.join(first.input_names)}")
    feed = first.random_feed(shapes)
    return first.version, [(count, partial(each.run, feed)) for count, each in zip(threads, sessions, strict=True)]


def _call_of(model: Model | BucketedModel) -> _Call:
    """One inference; of a decoder a step with all rows of its cache in use."""
    from fractune_runtime.decoder import IDS, POSITIONS

    inputs = model.random_inputs()
    ids = next((inputs[name] for name in IDS if name in inputs), None)
    own = {*IDS, *MASK, *POSITIONS}
    try:
        session = model.decoder({name: each for name, each in inputs.items() if name not in own and "past" not in name})
    except BadRequest:
        return partial(model.run, inputs)

    def step() -> Any:
        session.length = session.capacity
        return session.step(0 if ids is None else ids[:, 0])

    return step


def _openvino_calls(
    path: str, threads: Sequence[int], shapes: Mapping[str, Sequence[int]], streams: int
) -> tuple[str, list[tuple[int, _Call]]]:
    from fractune_runtime.sessions import OpenVinoSession, stream_settings

    fixed = shapes_in(shapes)
    sessions = [
        OpenVinoSession(Path(path), count * streams, stream_settings(count, streams), shapes=fixed) for count in threads
    ]
    feed = sessions[0].random_feed(shapes)
    pairs = zip(threads, sessions, strict=True)
    return sessions[0].version, [(count, call) for count, each in pairs for call in each.streams(feed, streams)]
