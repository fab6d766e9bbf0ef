"""A loaded bundle: detect the share, choose its variant, run it, and follow the share while it serves."""

from __future__ import annotations

import inspect
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, get_args

from fractune_core.analysis.match import DEFAULT_POLICY, Policy
from fractune_core.errors import BadBundle, BadRequest, FractuneError
from fractune_core.files.bundles import Bundle
from fractune_core.files.compared import RUNTIMES
from fractune_core.host.cpus import ThrottledSince
from fractune_core.served import ServiceGoal
from fractune_core.shares import Share
from fractune_runtime.choosing import VariantChoice, check_threads, match_share, runtime_choice
from fractune_runtime.cpu import OnCpu, ShareHere
from fractune_runtime.runner import Turn, begin_in_forked_children, runner_for
from fractune_runtime.sessions import RuntimeMissing, keep_forever, runtime_variant
from fractune_runtime.tvm_runtime import tensors
from fractune_runtime.tvm_runtime.drawing import random_inputs
from fractune_runtime.tvm_runtime.runtime import Weights
from fractune_runtime.tvm_runtime.tensors import Array, KeptInputs, TensorSpec, are_worth_keeping
from fractune_runtime.tvm_runtime.variants import Bound, BoundMemory, Interface, Slots, Variant, of_last_token, padded

if TYPE_CHECKING:
    from fractune_core.analysis.inside import Inside
    from fractune_runtime.decoder import DecoderSession

LOOK_S = 0.5
"""from one look to the next at least; a change is to be noticed within a second"""

_Take = Callable[[ShareHere], None]
_PACKAGES = ("fractune.", "fractune_runtime.")


class Backend(Protocol):
    """A bundle's weights on its processor, and the execution of its variants there."""

    weights: Weights
    keeps_inputs: bool
    """whether small inputs are better copied into memory that stays; a GPU has memory for them in `run`"""

    def look(self) -> ShareHere:
        """The share that the process is under now. Raises ShareUnavailable if it is not the requested share."""
        ...

    def limits(self) -> tuple[Any, ...]:
        """Differs from an earlier result if the share may have changed. Empty where the share stays as it is."""
        ...

    def load_variant(self, variant: str) -> Variant:
        """A variant with its weights. Raises BadBundle if no variant has this name."""
        ...

    def arguments(self, specs: Sequence[TensorSpec], inputs: Mapping[str, Any]) -> list[Any]:
        """The inputs as tensors, in the order of `specs`. Raises BadRequest. Any thread may call it."""
        ...

    def run(self, variant: Variant, arguments: Sequence[Any]) -> list[Any]:
        """The complete outputs, in place. Call it on the thread of the model, one call at a time."""
        ...

    def held(self, variant: Variant, arguments: Sequence[Any]) -> list[Any]:
        """As `run`, but the next call may overwrite the outputs, which are arrays on a CPU."""
        ...

    def bound(self, variant: Variant, arguments: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], None]:
        """A function as `run`, which computes the outputs in the tensors `outputs`."""
        ...

    def placed(self, arguments: Sequence[Any]) -> list[Any]:
        """The arguments, placed so that `run` need not copy them."""
        ...

    def array(self, output: Any) -> Array:
        """An output of `run` or `held` as a separate array."""
        ...


def backend_for(
    bundle: Bundle, share: Share | None, weights: Weights | None = None, *, denormals: bool = False
) -> Backend:
    """The processor of the bundle, under `share` (None = the present share of the process). `weights` are those of
    another member of the bundle, which lie there already. `denormals`: a CPU computes with them, and does not take them
    as zero. Raises BadBundle when it cannot run on this machine, BadRequest or ShareUnavailable for the share,
    FractuneError when a required package is not installed.
    """
    kind = bundle.manifest["device"]["kind"]
    if kind == "cpu":
        return OnCpu(bundle, share, weights, denormals=denormals)
    if kind == "cuda":
        from fractune_runtime.gpu import OnGpu

        return OnGpu(bundle, share, weights)
    raise BadBundle(f"{bundle.name} is for a '{kind}' device, which this version does not support; upgrade fractune")


class ShareFollower:
    """Looks at calls and has no thread: a model without requests need not know. Each call gets the function that takes
    what fits a share: kept here, it would keep the model alive.
    """

    def __init__(self, backend: Backend, name: str) -> None:
        self._backend = backend
        self._name = name
        self._turn = threading.Lock()
        self._seen: ShareHere | None = None
        self._limits = backend.limits()
        self._due = monotonic() + LOOK_S
        begin_in_forked_children(self)

    def begin_in_child(self) -> None:
        self._turn = threading.Lock()

    def rematch(self, take: _Take) -> None:
        """Detect the share; `take` gets it unless it is the one before. Raises the errors of both."""
        with self._turn:
            here = self._backend.look()
            if here != self._seen:
                take(here)
                self._seen = here

    def follow(self, take: _Take) -> None:
        """Rematch if the limits have changed since the last look. Any thread may call it, and no request fails by it:
        a model that cannot follow goes on as before, with a RuntimeWarning.
        """
        now = monotonic()
        if now < self._due:
            return
        self._due = now + LOOK_S
        limits, self._limits = self._limits, self._backend.limits()
        if limits == self._limits:
            return
        try:
            self.rematch(take)
        except FractuneError as error:
            warn_caller(f"{self._name} runs as before, though the share of the process has changed: {error}")


class Model:
    """A bundle's variants over one copy of its weights. Any thread may call it; calls run one after the other.

    A model runs with as many threads as its share has cores, each on its part of the share's CPUs. Under a CPU limit it
    has the number that is predicted to be the best. None of the threads is the caller's: several callers at once would
    only disturb each other there. A model of one thread, because the share has one core or more threads gain too
    little, runs on the thread of its caller. On a GPU the model has one thread of its own. Two models run side by side.
    A CPU limit or an affinity that changes is followed by calls within a second, unless a share was requested.
    """

    choice: VariantChoice
    """the variant that `run` runs, and the reason"""
    threads: int
    """threads of the host that run the model: as many as the share has cores, or 1 if more gain too little. If the
    bundle has nothing for the share, as many as a smaller one has"""
    share: ShareHere
    """the share that it was chosen for"""
    slots: tuple[str | None, ...]
    """of a fused model: the name of each slot's variant, None for an empty slot; empty for any other model"""

    def __init__(
        self,
        bundle: Bundle,
        *,
        share: str | None = None,
        policy: Policy = DEFAULT_POLICY,
        goal: ServiceGoal = "latency",
        threads: int | None = None,
        runtimes: bool = True,
        denormals: bool = False,
        weights: Weights | None = None,
        turn: Turn | None = None,
    ) -> None:
        """As `load`. Models of one bundle's members have one copy of the `weights`, and take turns."""
        if goal not in get_args(ServiceGoal):
            raise BadRequest(f"goal '{goal}': write {' or '.join(get_args(ServiceGoal))}")
        check_threads(bundle, threads)
        self.bundle = bundle
        self._interface = Interface(bundle)
        self.inputs, self.outputs = self._interface.inputs, self._interface.outputs
        self._slots = Slots(bundle.name, bundle.manifest.get("slots", ()), self.inputs)
        self.slots = self._slots.names
        own_share = Share.parse(share) if share else None
        self._backend = backend_for(bundle, own_share, weights, denormals=denormals)
        self._policy = policy
        self._goal = goal
        self._threads = threads
        self._runtimes = runtimes
        self._turn = turn or Turn()
        self._variants: dict[str, Variant] = {}
        self._checked: set[str] = set()
        """variants that gave outputs of the manifest's shapes"""
        self._stop: Callable[[], Any] | None = None
        keeps = self._backend.keeps_inputs and are_worth_keeping(self.inputs)
        self._kept = KeptInputs(self.inputs) if keeps else None
        self._follower = ShareFollower(self._backend, bundle.name)
        self._follower.rematch(self._take)
        self._throttled = ThrottledSince()
        begin_in_forked_children(self)

    def begin_in_child(self) -> None:
        for runtime in RUNTIMES:
            keep_forever(self._variants.pop(runtime, None))
        if self._turn.begin_in_child():  # the fork cut a run of another thread off; its variant is in the middle of it
            self._variants.clear()

    def run(self, inputs: Mapping[str, Any], variant: str | None = None, *, slot: int | None = None) -> list[Array]:
        """The outputs of the chosen variant, or of another, as separate arrays. Raises BadRequest for wrong inputs and
        for an unknown variant.

        Inputs are NumPy arrays, or anything with `__dlpack__` in the memory of the CPU (PyTorch, JAX, CuPy's pinned
        arrays) or of the model's GPU. They are copied only if needed. A fused model takes the stacked inputs of all
        slots, or with `slot` the inputs of one (`run_slots`).
        """
        if slot is not None:
            return self.run_slots({slot: inputs}, variant)[slot]
        if self._kept is not None:
            self._follower.follow(self._take)
            with self._turn.lock:
                if (arguments := self._kept.tensors(inputs)) is not None:
                    # Copied before the next call, which overwrites them.
                    return [each.copy() for each in self._held(arguments, variant)]
        return [self._backend.array(tensor) for tensor in self.run_tensors(inputs, variant)]

    def run_padded(
        self,
        inputs: Mapping[str, Any],
        pad: Mapping[str, float],
        real: Callable[[Iterable[Array]], list[Array]],
        variant: str | None = None,
    ) -> list[Array]:
        """`real` of the outputs for smaller inputs. They are padded at the end of each axis, by the input's number in
        `pad` or by 0. `real` must copy: the outputs are the model's memory. Raises as `run`.
        """
        if self._kept is not None:
            self._follower.follow(self._take)
            with self._turn.lock:
                if (arguments := self._kept.padded(inputs, pad)) is not None:
                    return real(self._held(arguments, variant))
        return real(Model.run(self, padded(self._interface.inputs, inputs, pad), variant))

    def run_slots(
        self, requests: Mapping[int, Mapping[str, Any]], variant: str | None = None
    ) -> dict[int, list[Array]]:
        """The outputs of a fused model by slot, for inputs by slot in the memory of the CPU. All slots are computed,
        however many are requested: `occupancy`. Raises BadRequest for wrong inputs, and for an empty or unknown slot.
        """
        outputs = self.run(self._slots.stacked(requests), variant)
        self._slots.count(len(requests))
        return {slot: [output[slot].copy() for output in outputs] for slot in requests}

    @property
    def occupancy(self) -> float:
        """The fraction of the slots computed by `run_slots` that served a request; 0 before the first."""
        return self._slots.occupancy

    def run_tensors(self, inputs: Mapping[str, Any], variant: str | None = None) -> list[Any]:
        """As `run`, but the outputs stay in place, as read-only tensors with `__dlpack__`. Their memory may be used
        again once they are dropped: `numpy.from_dlpack(tensor)` holds it. On a GPU they stay there, complete:
        `torch.from_dlpack(tensor)`.
        """
        arguments = self._arguments(inputs)
        self._follower.follow(self._take)
        with self._turn.lock:
            return self._outputs(self._backend.run, arguments, variant)

    def _held(self, arguments: Sequence[Any], variant: str | None) -> list[Array]:
        return self._outputs(self._backend.held, arguments, variant)

    def _arguments(self, inputs: Mapping[str, Any]) -> list[Any]:
        self._interface.check_constants(inputs)
        return self._backend.arguments(self._interface.inputs, inputs)

    def _outputs(
        self, compute: Callable[[Variant, Sequence[Any]], list[Any]], arguments: Sequence[Any], variant: str | None
    ) -> list[Any]:
        name = variant or self.choice.variant
        loaded = self._variant(name)
        outputs: list[Any] = self._runner.call(compute, loaded, arguments)
        if name not in self._checked:  # a later run gives the same shapes
            self._interface.check_outputs(outputs)
            self._checked.add(name)
        return outputs

    def check(self) -> None:
        """Compute once with the chosen variant and once with another, on the same random inputs, and compare. A
        RuntimeWarning says why that shows nothing. Raises OutputsDiffer.
        """
        from fractune_runtime.right_outputs import check_variant

        if why := check_variant(self.bundle, self.choice.variant, self._run_variant, self.random_inputs()):
            warn_caller(f"{self.bundle.name} was not checked: {why}")

    def _run_variant(self, inputs: Mapping[str, Any], variant: str) -> list[Array]:
        return self.run(inputs, None if variant == self.choice.variant else variant)

    def time_inside(self, inputs: Mapping[str, Any]) -> Inside:
        """The times of the calls inside the chosen variant, as `run` runs it. Raises BadRequest on a GPU, where calls
        return before they end, and for another runtime.
        """
        if self.share.unit != "core" or self.choice.variant in RUNTIMES:
            where = f"the variant '{self.choice.variant}'" if self.share.unit == "core" else "a GPU"
            raise BadRequest(f"the calls inside a model are timed in its own code on a CPU, not in {where}")
        from fractune_runtime.tvm_runtime.inside import time_inside

        arguments = self._arguments(inputs)
        with self._turn.lock:
            variant = self._variant(None)
            inside: Inside = self._runner.call(time_inside, variant, partial(self._backend.held, variant, arguments))
            own = self.choice.variant
            return inside.brief(self.bundle.kernels(own), self.bundle.candidates(own))

    def bind(
        self,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        variant: str | None = None,
    ) -> Bound:
        """Memory for all inputs and outputs, for calls that copy and check nothing: see `Bound`. Raises BadRequest for
        arrays that cannot be used in place, for outputs whose shape depends on the data, and for an unknown variant.
        """
        if variant is not None:
            with self._turn.lock:
                self._variant(variant)
        self._interface.check_constants(inputs)
        memory = BoundMemory(self._interface.inputs, inputs, self._interface.outputs, outputs)
        return Bound(memory, self._prepared(partial(self._variant, variant), memory.arguments, memory.results))

    def _prepared(
        self, find: Callable[[], Variant], arguments: Sequence[Any], results: Sequence[Any], *, is_step: bool = False
    ) -> Callable[..., None]:
        """Calls of the variant that `find` finds, prepared again when it is another one."""
        prepared: Variant | None = None
        compute: Callable[..., None]

        def run(*first: int) -> None:
            nonlocal prepared, compute
            self._follower.follow(self._take)
            with self._turn.lock:
                loaded = find()
                if loaded is not prepared:
                    prepared, compute = loaded, self._backend.bound(loaded, arguments, results)
                (self._runner.step if is_step else self._runner.call)(compute, *first)

        return run

    @property
    def specs(self) -> tuple[list[TensorSpec], list[TensorSpec]]:
        """The inputs and outputs with the shapes that its code has, of the largest bucket where there are several."""
        return self._interface.inputs, self._interface.outputs

    def decoder(self, inputs: Mapping[str, Any] | None = None) -> DecoderSession:
        """A session that keeps the model's cache between calls: see `DecoderSession`. `inputs`: those that stay the
        same in all calls, such as an encoder's outputs. Raises BadRequest for a model without a cache.
        """
        from fractune_runtime.decoder import DecoderSession

        return DecoderSession([self], inputs)

    def outputs_of_last(self, outputs: Sequence[TensorSpec]) -> list[TensorSpec]:
        """The outputs that are no caches, as an entry for one token gives them; as they are without such an entry."""
        with self._turn.lock:
            last = self._cached().last
        return list(outputs) if last is None else of_last_token(last, outputs)

    def bind_cached(
        self, inputs: Mapping[str, Any], outputs: Sequence[Array], *, last: bool = False, is_step: bool = False
    ) -> Callable[[int, int], None]:
        """A call that computes the `outputs` that are no caches, and writes the new rows of caches into their buffers.
        `inputs` are arrays and buffers by name; the call takes the number of the row with which the buffers begin. With
        `last`, the outputs are those of `outputs_of_last`, and the call also takes the number of the token. `is_step`:
        a CPU limit may call for fewer threads than the model has. For `DecoderSession`, which checks them.
        """
        given = [(spec.name, inputs[spec.name]) for spec in self._interface.inputs]
        arguments = [
            value if isinstance(value, tensors.CacheRows) else tensors.as_tensor(name, value) for name, value in given
        ]
        find = partial(self._cached, last=last)
        results = [tensors.as_tensor("output", each) for each in outputs]
        return self._prepared(find, arguments, results, is_step=is_step)

    def _cached(self, *, last: bool = False) -> Variant:
        cached = self._variant(None).cached
        found: Variant | None = cached.last if last and cached is not None else cached
        if found is None:
            name, runtime = self.bundle.name, self.choice.variant
            raise BadRequest(
                f"{name} is run by {runtime}, which keeps no cache; load it with runtimes=False"
                if runtime in RUNTIMES
                else f"an operator of {name} reads its cache in another shape; run() it with its caches"
            )
        return found

    def placed(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs as tensors on the model's device, for many runs without a copy."""
        arguments = self._backend.placed(self._arguments(inputs))
        return {spec.name: tensor for spec, tensor in zip(self._interface.inputs, arguments, strict=True)}

    def follow(self) -> None:
        """Take what fits a CPU limit or an affinity that has changed; each call does so. It looks twice a second."""
        self._follower.follow(self._take)

    def rematch(self) -> VariantChoice:
        """Detect the share again, and take the variant, the threads and the CPUs that fit it now. Returns the choice.
        A model without a requested share does this by itself, within a second, when its CPU limit or the affinity has
        changed. Weights stay where they are. Other threads may run the model meanwhile. Raises ShareUnavailable when
        the share given to `load` does not fit any more.
        """
        self._follower.rematch(self._take)
        return self.choice

    @property
    def throttled(self) -> float | None:
        """Seconds since `load` in which a CPU limit has stopped the process, of all CPUs together: by its cgroup, or by
        one above that stopped it longer. None where the kernel does not show it.
        """
        return self._throttled.seconds()

    def random_inputs(self, seed: int = 0) -> dict[str, Array]:
        """Inputs between 0.1 and 1; a mask is all ones. Integers lie within what the check found, else 0 or 1."""
        return random_inputs(self._interface.inputs, seed)

    def _take(self, here: ShareHere) -> None:
        own, share = match_share(self.bundle, here, self._policy, self._goal, self._threads)
        found = own
        missing = ""
        if self._runtimes and self._threads is None:
            found, missing = runtime_choice(self.bundle, here, own, self._goal)
        with self._turn.lock:
            for runtime in RUNTIMES:  # their threads are those of the share before
                self._variants.pop(runtime, None)
            self._cpus = here.cpus
            try:
                self._loaded(found.variant, found.threads)
            except RuntimeMissing as error:
                found, missing = own, f"{self.bundle.name}: its own code runs, because {error}"
                self._loaded(own.variant, own.threads)
            runner = runner_for(here, 1 if found.variant in RUNTIMES else found.threads)
            if self._stop is not None:
                runner.begin()  # if it fails, the present one goes on
                self._stop()
            self._runner = runner
            self._stop = weakref.finalize(self, self._runner.stop)
            self.share, self.choice, self.threads = share, found, found.threads
        warn_if_untuned(self.bundle.name, found)
        if missing:
            warn_caller(missing)
        if here.warning:
            warn_caller(here.warning)

    def _variant(self, requested: str | None) -> Variant:
        """The chosen variant, or the requested one. Raises BadRequest if there is none of that name."""
        name = requested or self.choice.variant
        if (loaded := self._variants.get(name)) is not None:
            return loaded
        names = [each["name"] for each in self.bundle.variants]
        if requested and name not in (self.choice.variant, *names):
            raise BadRequest(f"{self.bundle.name} has no variant '{requested}'; it has {', '.join(names)}")
        return self._loaded(name)

    def _loaded(self, name: str, threads: int | None = None) -> Variant:
        """The variant, loaded on first use, which takes a few milliseconds."""
        threads = self.threads if threads is None else threads
        if name not in self._variants:
            is_runtime = name in RUNTIMES
            self._variants[name] = (
                runtime_variant(self.bundle, name, threads, self._cpus[:threads])
                if is_runtime
                else self._backend.load_variant(name)
            )
        return self._variants[name]


def warn_if_untuned(bundle_name: str, choice: VariantChoice) -> None:
    """A RuntimeWarning, if no measurement speaks for the untuned variant."""
    if choice.is_last_resort:
        warn_caller(
            f"{bundle_name} runs its untuned variant, which may be far slower than a tuned one: {choice.reason}"
        )


def warn_caller(message: str, category: type[Warning] = RuntimeWarning) -> None:
    """A warning at the innermost line outside fractune."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_PACKAGES):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
