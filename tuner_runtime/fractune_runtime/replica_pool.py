"""Replicas of a model in one process: they answer requests side by side, over one copy of the weights.

with fractune.ReplicaPool("m.fractune") as pool:
    futures = [pool.submit({"data": array}) for array in arrays]
    outputs = [future.result() for future in futures]
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Self

from fractune_core.analysis.limit_prediction import predictable
from fractune_core.analysis.match import DEFAULT_POLICY, Policy
from fractune_core.cpu_limits import POOL_COST_S, SPIN_S, Service, loop_per_s, threads_text
from fractune_core.errors import BadRequest, FractuneError
from fractune_core.files.bundles import Bundle
from fractune_core.host.cpus import ThrottledSince
from fractune_core.share_kinds import CPU
from fractune_core.shares import Share, units_text
from fractune_runtime import choosing
from fractune_runtime.cpu import ShareHere
from fractune_runtime.loading import open_bundle
from fractune_runtime.model import Backend, ShareFollower, backend_for, warn_if_untuned
from fractune_runtime.runner import begin_in_forked_children, parts, settle, started
from fractune_runtime.tvm_runtime.drawing import random_inputs
from fractune_runtime.tvm_runtime.tensors import Array
from fractune_runtime.tvm_runtime.variants import Interface, Variant

_EQUAL = 0.02
"""Predicted rates that differ by less count as equal"""
_MOST_REPLICAS = 256
"""Each has code of its own, in many maps of memory. The kernel gives a process 65,530, and TVM crashes without"""


class ReplicaPool:
    """Replicas of a bundle's model for a CPU share. Any thread may call it; idle replicas take requests from one queue.

    Without `replicas` and `threads`, predictions from the bundle's times choose the number of replicas and their
    threads for the most requests a second. Each replica has its own threads, on its own part of the CPUs where there
    are enough. The replicas share the weights, and each has its own memory for intermediate results. The pool follows a
    CPU limit or an affinity that changes, within a second. With a `share` it stays as it is.

    A forked child gets threads of its own at its first request. Requests of before the fork are answered in the parent
    only. A pool cannot be pickled: load it in each process. Close it, or use it in `with`.
    """

    replicas: int
    threads: int
    """of each replica"""
    choice: choosing.VariantChoice
    """the variant of all replicas, and the reason"""
    share: ShareHere
    """the share that they were chosen for"""
    _team: _Team | None

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        replicas: int | None = None,
        threads: int | None = None,
        share: str | None = None,
        public_key: str | bytes | None = None,
        policy: Policy = DEFAULT_POLICY,
        denormals: bool = False,
    ) -> None:
        """As `fractune.load`. Raises BadBundle, BadRequest, ShareUnavailable, or FractuneError when TVM is not
        installed.
        """
        if replicas is not None and not 1 <= replicas <= _MOST_REPLICAS:
            raise BadRequest(
                f"replicas is {replicas}; give 1 to {_MOST_REPLICAS}, or None for the number with the most requests/s"
            )
        self.bundle = bundle = open_bundle(path, public_key)
        bundle.check_undivided("ReplicaPool")
        if bundle.manifest["device"]["kind"] != CPU:
            raise BadRequest(f"{bundle.name} is for a GPU, and replicas run on the CPU; load it by fractune.load")
        choosing.check_threads(bundle, threads)
        self._interface = Interface(bundle)
        self.inputs, self.outputs = self._interface.inputs, self._interface.outputs
        own_share = Share.parse(share) if share else None
        if own_share and own_share.ends:
            raise BadRequest(f"share '{share}': replicas are dealt to whole cores; write {own_share.ends[1]}")
        self._backend = backend_for(bundle, own_share, denormals=denormals)
        self._requested = replicas, threads
        self._policy = policy
        self._closed = False
        self._turn = threading.Lock()
        self._team = None
        self._follower = ShareFollower(self._backend, self.bundle.name)
        self._follower.rematch(self._take)
        self._throttled = ThrottledSince()
        begin_in_forked_children(self)

    def begin_in_child(self) -> None:
        self._turn = threading.Lock()
        self._team = None

    def run(self, inputs: Mapping[str, Any]) -> list[Array]:
        """The outputs, from the next idle replica. Raises BadRequest for wrong inputs, FractuneError after `close`."""
        return self.submit(inputs).result()

    def submit(self, inputs: Mapping[str, Any]) -> Future[list[Array]]:
        """The outputs as a future. The arrays may be used in place: change them only when the future is done. Raises
        BadRequest for wrong inputs, at once, and FractuneError after `close`. The queue has no limit.
        """
        self._interface.check_constants(inputs)
        arguments = self._backend.arguments(self.inputs, inputs)
        self._follower.follow(self._take)
        with self._turn:
            if self._closed:
                raise FractuneError(f"the replicas of {self.bundle.name} are closed; make a new ReplicaPool")
            if self._team is None:
                self._team = self._new_team(self.replicas, self.choice, self.share)
            return self._team.submit(arguments)

    def random_inputs(self, seed: int = 0) -> dict[str, Array]:
        """Inputs between 0.1 and 1; a mask is all ones. Integers lie within what the check found, else 0 or 1."""
        return random_inputs(self.inputs, seed)

    @property
    def throttled(self) -> float | None:
        """As `Model.throttled`: seconds in which a CPU limit has stopped the process."""
        return self._throttled.seconds()

    def close(self) -> None:
        """Answer the requests in the queue, and end the threads. A second call does nothing. A call by a callback of a
        future does not wait for the threads.
        """
        with self._turn:
            self._closed, team, self._team = True, self._team, None
        if team is not None:
            team.shutdown(wait=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a ReplicaPool cannot be pickled; give the bundle's path to the other process")

    def _take(self, here: ShareHere) -> None:
        count, choice = choose_replicas(self.bundle, here, self._policy, *self._requested)
        team = self._new_team(count, choice, here)
        with self._turn:
            before, self._team = self._team, None if self._closed else team
            self.share, self.choice = here, choice
            self.replicas, self.threads = count, choice.threads
        if before is not None:
            before.shutdown(wait=False)
        warn_if_untuned(self.bundle.name, choice)

    def _new_team(self, count: int, choice: choosing.VariantChoice, here: ShareHere) -> _Team:
        hands = parts(here.cpus, count) if count <= len(here.cpus) else [here.cpus] * count
        places = [_Place(self._backend.load_variant(choice.variant), choice.threads, cpus) for cpus in hands]
        return _Team(_Replicas(self._backend, self._interface, places), count)


class _Team:
    """Threads, each with a replica, that take requests from one queue. Raises FractuneError if one cannot start."""

    def __init__(self, replicas: _Replicas, count: int) -> None:
        self._replicas = replicas
        self._executor = ThreadPoolExecutor(count, "fractune-replica")
        try:
            with started(count):
                entered = [self._executor.submit(replicas.enter) for _ in range(count)]
            for each in entered:
                each.result()
        except BaseException:
            replicas.abandon()
            self._executor.shutdown(wait=False)
            raise

    def submit(self, arguments: Sequence[Any]) -> Future[list[Array]]:
        return self._executor.submit(self._replicas.answer, arguments)

    def shutdown(self, *, wait: bool) -> None:
        """Take no more requests. The queue is answered. A replica's own thread, in a callback, does not wait."""
        self._executor.shutdown(wait and not self._replicas.is_here)


@dataclass(frozen=True)
class _Place:
    variant: Variant
    threads: int
    cpus: tuple[int, ...]


class _Replicas:
    """What the threads run. They hold it, so it holds no executor: an executor without other references ends."""

    def __init__(self, backend: Backend, interface: Interface, places: list[_Place]) -> None:
        self._backend = backend
        self._interface = interface
        self._places = places
        self._all = threading.Barrier(len(places))
        self._here = threading.local()

    def enter(self) -> None:
        """A thread takes a place, and waits until all have one: so each thread enters once."""
        place = self._places.pop()
        try:
            settle(place.threads, place.cpus)
        except BaseException:
            self.abandon()
            raise
        self._here.variant = place.variant
        with contextlib.suppress(threading.BrokenBarrierError):  # another one could not enter
            self._all.wait()

    @property
    def is_here(self) -> bool:
        """Whether the calling thread is one of the replicas."""
        return hasattr(self._here, "variant")

    def abandon(self) -> None:
        """Let threads go on that wait for others."""
        self._all.abort()

    def answer(self, arguments: Sequence[Any]) -> list[Array]:
        outputs = self._backend.held(self._here.variant, arguments)
        self._interface.check_outputs(outputs)
        return [self._backend.array(output) for output in outputs]


@dataclass(frozen=True)
class _Division:
    replicas: int
    threads: int
    per_s: float
    """requests, all replicas in a loop"""

    def __str__(self) -> str:
        return f"{replicas_text(self.replicas)} of {threads_text(self.threads)}"


def choose_replicas(
    bundle: Bundle, here: ShareHere, policy: Policy, replicas: int | None, threads: int | None = None
) -> tuple[int, choosing.VariantChoice]:
    """The number of replicas, and their variant with its threads.

    By the bundle's times, the division has the most requests a second in a loop. Of equal ones it has the fewest
    threads, and then the fewest replicas. With `replicas` or `threads` it has so many. Without a time each whole core
    gets a thread. Raises ShareUnavailable where the share has fewer CPUs than `threads`.
    """
    if threads is not None:
        choosing.check_cpus(here, threads)
    choices = choosing.choices_by_threads(bundle, here, policy)
    times_s = choosing.times_by_threads(bundle, here.mechanism, choices)
    taken_s = {count: secs for count, secs in times_s.items() if threads in {None, count}}
    found = list(_divisions(here, taken_s, replicas))
    if not found:
        return _without_times(bundle, here, policy, replicas, threads)
    good_per_s = (1 - _EQUAL) * max(each.per_s for each in found)
    good = [each for each in found if each.per_s >= good_per_s]
    best = min(good, key=lambda each: (each.replicas * each.threads, each.replicas))
    others = sorted((each for each in found if each is not best), key=lambda each: -each.per_s)
    then = "the bundle has times for no other division here"
    if others:
        then = f"next best with {others[0]}: {choosing.three_digits(others[0].per_s)}"
    reason = (
        f"{_where(here)}, predicted best with {best}: {choosing.three_digits(best.per_s)} requests/s in a loop; {then}"
    )
    return best.replicas, replace(choices[best.threads], reason=reason)


def replicas_text(count: int) -> str:
    return f"{count} replica{'' if count == 1 else 's'}"


def _divisions(here: ShareHere, times_s: dict[int, float], replicas: int | None) -> Iterator[_Division]:
    """All that fit, or those with `replicas`; replicas of one thread always fit, as they may share CPUs."""
    cores = here.units if here.quota is None else len(here.cpus)
    limit = None if here.quota is None else choosing.limit_of(here.quota)
    for threads, secs in times_s.items():
        # Each request is handed over to a thread of its replica, also where that is the only one.
        service = Service(threads, (secs + POOL_COST_S,), threads * secs, spin_s=SPIN_S)
        for number in [replicas] if replicas else range(1, cores // threads + 1):
            if threads > 1 and threads * number > cores:
                continue
            if limit is None:
                yield _Division(number, threads, min(number, cores // threads) / service.mean_s)
            elif predictable(service, limit, number):
                yield _Division(number, threads, min(loop_per_s(service, limit, number), cores / service.mean_s))


def _without_times(
    bundle: Bundle, here: ShareHere, policy: Policy, replicas: int | None, threads: int | None
) -> tuple[int, choosing.VariantChoice]:
    number = replicas or max(1, here.units // (threads or 1))
    threads = threads or max(1, here.units // number)
    choice = choosing.choose_variant(bundle, threads, policy, here.mechanism)
    taken = f"{replicas_text(number)} of {threads_text(threads)} {_where(here)}, because the bundle has no times there"
    return number, replace(choice, reason=f"{choice.reason}; {taken}")


def _where(here: ShareHere) -> str:
    if here.quota is None:
        return f"on {units_text(here.units, here.unit)}"
    return f"under a limit of {choosing.limit_text(here.quota)}"
