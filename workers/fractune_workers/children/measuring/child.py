"""The measurer's child: confined first, then TVM; runs artifacts under one timing policy."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fractune_core.cuda import RUNTIME_SONAME, load_cudart
from fractune_core.errors import ShareUnavailable
from fractune_core.operators import DIRECT
from fractune_core.records import Disturbance, TimingPolicy
from fractune_core.served import timed_quietly
from fractune_core.shares import Share
from fractune_runtime.tvm_runtime.runtime import with_denormals
from fractune_workers.children.measuring.counters import CpuMeter
from fractune_workers.children.measuring.interleaved import Reference, is_timed_by, time_interleaved
from fractune_workers.confinement import confinement_for, stream_of
from fractune_workers.confinement.base import Confinement

if TYPE_CHECKING:
    from fractune_workers.children.measuring.setup import MeasuringSetup

_METHODS = ("device_info", "anchor", "roof", "begin", "load", "race", "check", "time_interleaved", "time_model")

_LOADING_S = 1.0
"""A first call on a GPU that takes less may have spent its time on loading the code, and is made again."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class _LoadedKernel:
    library: Any
    args: list[Any]


class MeasurerChild:
    """Measures artifacts on a setup, one workload at a time, under the share of this process."""

    def __init__(self, confinement: Confinement, setup: MeasuringSetup) -> None:
        self._confinement = confinement
        self._setup = setup
        self._processor = setup.processor
        self._kernels: dict[str, _LoadedKernel] = {}
        self._described: list[Any] = []
        """the arguments of the direct implementation, without their contents"""
        self._args: list[Any] = []
        self._pristine: list[Any] = []
        self._own_args: dict[str, list[Any]] = {}
        """by implementation"""
        self._reference: list[Any] = []
        self._allowed = 0.0
        """difference to the reference, over its largest value"""
        self._check_s: dict[str, float] = {}
        """seconds of the call by which each kernel was checked"""

    def methods(self) -> dict[str, Callable[..., Any]]:
        """The methods that the parent may call, by name. All launch in the confined place."""
        return {name: self._engaged(getattr(self, name)) for name in _METHODS}

    def device_info(self) -> dict[str, Any]:
        """The device of this process, its granted share (verified now), its default target, and versions."""
        self._setup.get_ready()
        return {
            "device": self._setup.device.to_json(),
            "granted": self._confinement.verify().to_json(),
            "target": self._setup.target,
            "versions": self._setup.versions,
        }

    def anchor(self) -> float:
        """Time of the anchor kernel over its time when this process timed it first."""
        return self._setup.anchor.ratio()

    def roof(self) -> dict[str, Any]:
        """The share's Roof as JSON, measured now (`MeasuringSetup.roof`)."""
        return self._setup.roof().to_json()

    def begin(self, args_info: list[Any], seed: int) -> None:
        """Forget all kernels; make random arguments for the next workload."""
        import tvm_ffi_orcjit

        from fractune_workers.children.tvm_api.arrays import random_args

        self._kernels.clear()
        self._check_s.clear()
        self._own_args.clear()
        tvm_ffi_orcjit.default_session().clear_free_slabs()
        self._args, self._reference = [], []  # their memory first: that of two workloads may be too much
        self._described = args_info
        self._args = random_args(args_info, seed, self._processor)
        self._pristine = [self._processor.read(arg) for arg in self._args]

    def load(self, name: str, code: bytes, implementation: str = DIRECT) -> None:
        """Load an object file, of that implementation of the operator, as kernel `name`."""
        self._kernels[name] = self._loaded(code, implementation)

    def race(
        self, code: bytes, policies: list[dict[str, Any]], bar_s: float, implementation: str = DIRECT
    ) -> dict[str, Any]:
        """Time the object file under one policy after the other, as long as its median is within `bar_s`.

        Returns the last `policy` that it got to, its `run_secs` and `cpu_secs`, and the `disturbance` meanwhile. The
        kernel is not kept.
        """
        kernel = self._loaded(code, implementation)
        rungs = [TimingPolicy.from_json(policy) for policy in policies]
        if self._processor.is_gpu:
            # A faulting kernel faults here, where CUDA reports why; in TVM's timer it would end the process silently.
            first_s = self._call_s(kernel)
            if is_timed_by(first_s, bar_s) and first_s < _LOADING_S:
                first_s = self._call_s(kernel)
            if is_timed_by(first_s, bar_s):
                single = replace(rungs[0], warmups=0, repeats=1)
                return {"policy": single.to_json(), "run_secs": [first_s], "cpu_secs": None, "disturbance": None}
        for policy in rungs:
            meter = CpuMeter(self._processor)
            timed = partial(self._processor.time, kernel.library, kernel.args, policy)
            run_secs, disturbance = self._watched(partial(meter.timed, timed))
            if statistics.median(run_secs) > bar_s:
                break
        return {
            "policy": policy.to_json(),
            "run_secs": run_secs,
            "cpu_secs": meter.secs_of_one(run_secs, policy),
            "disturbance": disturbance,
        }

    def _call_s(self, kernel: _LoadedKernel) -> float:
        """Call the kernel on a GPU and wait for it. Returns the seconds, at first those of loading its code too."""
        began = time.perf_counter()
        kernel.library["main"](*kernel.args)
        self._processor.sync()
        return time.perf_counter() - began

    def check(self, name: str) -> dict[str, Any]:
        """Run the kernel once; its difference to the reference (`quantized_outputs.Difference`), and how much is
        `allowed`. The reference is made by the first kernel checked, in float32 if it rounds to half precision.
        """
        from fractune_workers.children.measuring.quantized_outputs import allowed, compared, step_of

        if not self._reference:
            self._calibrate(name)
        outputs = self._run_on(name, self._pristine)
        if not self._reference:
            outputs = self._telling(name, outputs)
            self._reference = self._in_float32(name) or outputs
            self._allowed = allowed(self._described)
        found = compared(outputs, self._reference, step_of(self._described, self._pristine))
        return {**asdict(found), "allowed": self._allowed}

    def _telling(self, name: str, outputs: list[Any]) -> list[Any]:
        """The outputs, or those of other arguments where these are blank: a wrong kernel may have them too."""
        from fractune_workers.children.tvm_api.arrays import is_blank, with_both_signs

        if not is_blank(outputs[-1]):
            return outputs
        others = with_both_signs(self._described, self._pristine)
        found = self._run_on(name, others)
        if not is_blank(found[-1]):
            self._pristine, outputs = others, found
        return outputs

    def _calibrate(self, name: str) -> None:
        """Set the scale by which the operator quantizes its output, by an output of the kernel."""
        from fractune_workers.children.measuring.quantized_outputs import calibrated

        scales = calibrated(self._described, self._pristine, lambda contents: self._run_on(name, contents)[-1])
        self._pristine = [scales.get(at, contents) for at, contents in enumerate(self._pristine)]

    def time_interleaved(self, names: Sequence[str], policy: dict[str, Any], reference: str = "") -> dict[str, Any]:
        """Time the kernels interleaved, one repeat each a round, so that all are timed under the same conditions.

        Returns the effective `policy` (slow kernels, and kernels far behind, get fewer repeats), `run_secs` and
        `cpu_secs` by name, and the `disturbance` of the whole timing. `reference`: the kernel to which the outputs of
        others are compared.
        """
        meters = {name: CpuMeter(self._processor) for name in names}

        def timed(name: str, policy: TimingPolicy, calls: int) -> list[float]:
            kernel = self._kernels[name]
            return meters[name].timed(partial(self._processor.time, kernel.library, kernel.args, policy, calls))

        checked = Reference(reference, self._check_s.get(reference, 0.0))
        (kept, run_secs), disturbance = self._watched(
            partial(time_interleaved, names, TimingPolicy.from_json(policy), timed, checked)
        )
        return {
            "policy": {name: each.to_json() for name, each in kept.items()},
            "run_secs": run_secs,
            "cpu_secs": {name: meters[name].secs_of_one(secs, kept[name]) for name, secs in run_secs.items()},
            "disturbance": disturbance,
        }

    def time_model(self, path: str, repeats: int, own: str) -> dict[str, Any]:
        """Time every variant of the bundle at `path`, interleaved, `own` the one for this share (`time_variants`). On a
        CPU, times that other programs disturbed are taken again (`timed_quietly`).
        """
        from fractune_workers.children.measuring.model_timing import time_variants, time_variants_under

        share = Share.parse(own)
        timing = (
            partial(time_variants, Path(path), repeats, own, self._processor)
            if share.kind.measures_kernels
            else partial(time_variants_under, share, Path(path), self._processor)
        )

        def timed() -> tuple[dict[str, Any], float]:
            found = self._others_cores(timing)
            self._processor.free_unused()
            return found

        times, others_cores = timed_quietly(timed, lambda secs: self._others_cores(partial(time.sleep, secs))[1])
        return {**times, "others_cores": others_cores}

    def _others_cores(self, run: Callable[[], _T]) -> tuple[_T, float]:
        """The result of `run`, and the cores of the share that other programs had meanwhile; 0 on a GPU."""
        result, found = self._watched(run)
        return result, Disturbance.from_json(found).others_cores if found else 0.0

    def _watched(self, timed: Callable[[], _T]) -> tuple[_T, dict[str, Any] | None]:
        """The result of `timed`, and its disturbance as JSON; None on a GPU."""
        counters = self._setup.counters
        if counters is None:
            return timed(), None
        before = counters()
        result = timed()
        return result, counters().since(before).to_json()

    def _loaded(self, code: bytes, implementation: str) -> _LoadedKernel:
        from fractune_workers.children.tvm_api.artifacts import load_objects

        return _LoadedKernel(load_objects([code]), self._args_of(implementation))

    def _args_of(self, implementation: str) -> list[Any]:
        """The arguments for an implementation: the same tensors, except weights in another layout."""
        from fractune_workers.children.layouts.kernels.packing import own_arguments

        if implementation not in self._own_args:
            arrays = zip(
                own_arguments(implementation, self._pristine, self._described), self._pristine, self._args, strict=True
            )
            self._own_args[implementation] = [
                arg if array is pristine else self._processor.tensor(array) for array, pristine, arg in arrays
            ]
        return self._own_args[implementation]

    def _run_on(self, name: str, contents: Sequence[Any]) -> list[Any]:
        """All arguments as the kernel leaves them, starting from these contents."""
        for arg, array in zip(self._args, contents, strict=True):
            self._processor.write(arg, array)
        kernel = self._kernels[name]
        self._check_s[name] = self._processor.secs_of_one(kernel.library, kernel.args)
        return [self._processor.read(arg) for arg in self._args]

    def _in_float32(self, name: str) -> list[Any]:
        """All arguments as the kernel's float32 counterpart leaves them, in their own types; empty if it has none."""
        from fractune_workers.children.tvm_api.arrays import REFERENCE, UNIT_ROUNDOFFS

        library = self._kernels[name].library
        if not library.implements_function(REFERENCE):
            return []
        wide = [
            each.astype("float32") if dtype in UNIT_ROUNDOFFS else each
            for (_, dtype, *_), each in zip(self._described, self._pristine, strict=True)
        ]
        args = [self._processor.tensor(each) for each in wide]
        library[REFERENCE](*args)
        return [*self._pristine[:-1], self._processor.read(args[-1]).astype(self._pristine[-1].dtype)]

    def _engaged(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(**payload: Any) -> Any:
            with self._processor.engaged():
                return method(**payload)

        return with_denormals(call, kept=False)  # as in `fractune.load`


def _nothing() -> None:
    pass


def open_child(args: list[str], enter_sandbox: Callable[[], None] = _nothing) -> dict[str, Callable[..., Any]]:
    """The arguments are the share, and the cores of a CPU share separated by commas. For candidates of a pack a folder
    follows with the pack's kernels for the host. Then TVM's compiler is not loaded. Raises ShareUnavailable.
    """
    return confined(args, enter_sandbox).methods()


def confined(args: list[str], enter_sandbox: Callable[[], None] = _nothing) -> MeasurerChild:
    """Enter the share, then load TVM, which sizes its thread pool and looks for CUDA when it is loaded. The sandbox is
    entered before the first thread is started: on a GPU CUDA starts them, on a CPU NumPy and TVM.
    """
    share, cores = Share.parse(args[0]), [int(core) for core in args[1].split(",") if core]
    confinement = confinement_for(share, cores)
    if share.device_kind == "cuda":
        enter_sandbox()
        confinement.enter()
    else:  # it may move to a cgroup, and run busy processes there
        confinement.enter()
        enter_sandbox()
    packed = Path(args[2]) if len(args) > 2 else None
    return MeasurerChild(confinement, setup_of(share, confinement, packed))


def setup_of(share: Share, confinement: Confinement, packed: Path | None = None) -> MeasuringSetup:
    """The setup of a process that has entered the share; `packed` is the folder of a pack. Raises ShareUnavailable."""
    if share.device_kind == "cpu":
        if packed is not None:
            from fractune_workers.children.measuring.setup import packed_cpu_setup

            return packed_cpu_setup(packed)
        from fractune_workers.children.measuring.compiled_software import cpu_software
        from fractune_workers.children.measuring.setup import cpu_setup

        return cpu_setup(cpu_software())
    if not load_cudart():
        raise ShareUnavailable(
            f"share '{share}': there is no {RUNTIME_SONAME} on this machine, without which TVM runs on no GPU; install "
            "'fractune[cuda]', or name the folder of a CUDA 13 toolkit by CUDA_HOME"
        )
    if packed is not None:
        from fractune_workers.children.measuring.setup import packed_gpu_setup

        return packed_gpu_setup(packed, stream_of(confinement))
    from fractune_workers.children.measuring.compiled_software import gpu_software
    from fractune_workers.children.measuring.setup import gpu_setup
    from fractune_workers.children.tvm_api.keep_out import load_cuda

    load_cuda()
    return gpu_setup(stream_of(confinement), gpu_software)
