"""The measurer's child: confined first, then TVM; runs artifacts under one timing policy."""

from __future__ import annotations

import base64
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tuner_core.errors import ShareUnavailable
from tuner_core.records import TimingPolicy
from tuner_core.shares import Share
from workers.confinement import Confinement, confinement_for

_SLOW_S = 0.2
"""A kernel slower than this gets the fewest repeats that the timing policy allows"""
_FEWEST_REPEATS = 3


class MeasurerChild:
    """Measures artifacts, one workload at a time, under the share that this process was confined to."""

    def __init__(self, confinement: Confinement) -> None:
        from workers.children import target as targets
        from workers.children.timing import Anchor

        self._confinement = confinement
        self._device = targets.host_device().to_json()
        self._target = targets.default_target(1)
        self._anchor = Anchor(self._target)
        self._kernels: dict[str, Any] = {}
        self._args: list[Any] = []
        self._pristine: list[Any] = []
        self._reference: list[Any] = []

    def hello(self) -> dict[str, Any]:
        """What this process runs on: device, granted share (verified now), default target, versions."""
        import tvm
        import tvm_ffi

        from workers.children import target as targets

        _start_every_thread()
        return {
            "device": self._device,
            "granted": self._confinement.verify().to_json(),
            "target": targets.target_key(self._target),
            "versions": {"tvm": tvm.__version__, "tvm-ffi": tvm_ffi.__version__},
        }

    def anchor(self) -> float:
        """Time of the anchor kernel over its time when this process timed it first."""
        return self._anchor.ratio()

    def begin(self, args_info: list[Any], seed: int) -> None:
        """Forget all kernels; make random arguments for the next workload."""
        import tvm_ffi_orcjit

        from workers.children.timing import random_args

        self._kernels.clear()
        tvm_ffi_orcjit.default_session().clear_free_slabs()
        self._reference = []
        self._args = random_args(args_info, seed)
        self._pristine = [arg.numpy().copy() for arg in self._args]

    def load(self, name: str, code: str) -> None:
        """Load an object file (base64) as kernel `name`."""
        from workers.children.artifacts import load_objects

        self._kernels[name] = load_objects([base64.b64decode(code)])

    def race(self, code: str, policies: list[dict[str, Any]], bar_s: float) -> dict[str, Any]:
        """Time the object file (base64) under one policy after the other, as long as its median is within `bar_s`.

        Returns the last `policy` that it got to, and its `run_secs`. The kernel is not kept.
        """
        from workers.children.artifacts import load_objects
        from workers.children.timing import time_kernel

        kernel = load_objects([base64.b64decode(code)])
        policy, run_secs = policies[0], time_kernel(kernel, self._args, TimingPolicy.from_json(policies[0]))
        for policy_ahead in policies[1:]:
            if statistics.median(run_secs) > bar_s:
                break
            policy = policy_ahead
            run_secs = time_kernel(kernel, self._args, TimingPolicy.from_json(policy))
        return {"policy": policy, "run_secs": run_secs}

    def check(self, name: str) -> float:
        """Run the kernel once; the largest difference to the first kernel checked, relative to its largest
        value.
        """
        from workers.children.timing import difference

        outputs = self._run_fresh(name)
        if not self._reference:
            self._reference = outputs
        return max(map(difference, outputs, self._reference))

    def contest(self, names: Sequence[str], policy: dict[str, Any]) -> dict[str, Any]:
        """Time the kernels in turn, one repeat each a round, so that all meet the same weather.

        Returns `policy` as it was kept (slow kernels get fewer repeats) and `run_secs` by name.
        """
        from workers.children.timing import time_kernel

        single = TimingPolicy("single", warmups=0, repeats=1, min_repeat_ms=policy["min_repeat_ms"])
        first = {name: time_kernel(self._kernels[name], self._args, single)[0] for name in names}
        repeats = {name: _FEWEST_REPEATS if secs > _SLOW_S else policy["repeats"] for name, secs in first.items()}
        run_secs: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(policy["repeats"]):
            for name in names:
                if turn < repeats[name]:
                    run_secs[name] += time_kernel(self._kernels[name], self._args, single)
        kept = {name: {**policy, "repeats": repeats[name]} for name in names}
        return {"policy": kept, "run_secs": run_secs}

    def time_model(self, path: str, repeats: int) -> dict[str, Any]:
        """Time every variant of the bundle at `path` in turn: `run_secs` and `max_error` by variant."""
        from workers.children.models import time_variants

        return time_variants(Path(path), repeats)

    def _run_fresh(self, name: str) -> list[Any]:
        """All arguments as the kernel leaves them, starting from the same contents each time."""
        for arg, contents in zip(self._args, self._pristine, strict=True):
            arg.copyfrom(contents)
        self._kernels[name]["main"](*self._args)
        return [arg.numpy().copy() for arg in self._args]


def _start_every_thread() -> None:
    """Run one parallel loop, so that TVM's pool is there when its threads are looked at."""
    import tvm
    from tvm import te
    from tvm.s_tir import Schedule

    from workers.children.artifacts import build_object, load_objects
    from workers.children.target import default_target
    from workers.children.timing import random_args

    size = 64
    empty = te.placeholder((size,), name="empty")
    fill = te.compute((size,), lambda i: empty[i] + 1.0, name="fill")
    sch = Schedule(tvm.IRModule({"main": te.create_prim_func([empty, fill])}))
    sch.parallel(sch.get_loops(sch.get_sblock("fill"))[0])
    kernel = load_objects([build_object(sch.mod, default_target(1))])
    kernel["main"](*random_args([["TENSOR", "float32", [size]]] * 2, seed=0))


def open_child(args: list[str]) -> dict[str, Callable[..., Any]]:
    """Enter the share, then load TVM, which sizes its thread pool when it is loaded.

    The arguments are the share and its cores, separated by commas. Raises ShareUnavailable.
    """
    share, cores = Share.parse(args[0]), args[1]
    if share.device_kind != "cpu":
        raise ShareUnavailable(
            f"share '{share}': this version proves shares of a GPU and cannot measure on one yet; ask for a CPU share, "
            "such as cpu:1"
        )
    confinement = confinement_for(share, [int(core) for core in cores.split(",")])
    confinement.enter()
    child = MeasurerChild(confinement)
    names = ("hello", "anchor", "begin", "load", "race", "check", "contest", "time_model")
    return {name: getattr(child, name) for name in names}
