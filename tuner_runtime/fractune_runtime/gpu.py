"""A bundle on an NVIDIA GPU."""

from __future__ import annotations

import ctypes
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from typing import Any

from fractune_core.cuda import (
    MPS_PARTITION,
    MPS_PERCENTAGE,
    MPS_PIPE_DIRECTORY,
    NEEDED_DRIVER,
    VISIBLE_DEVICES,
    GpuEnvironment,
    driver_fault,
    kept_daemons,
    what_to_do,
)
from fractune_core.errors import BadBundle, FractuneError, ShareUnavailable, first_line
from fractune_core.files.bundles import Bundle
from fractune_core.names import WITH_GRAPHS
from fractune_core.share_kinds import CUDA
from fractune_core.shares import Share, units_text
from fractune_core.targets import arch_of, runs_on
from fractune_runtime.cpu import ShareHere, check_host_code, share_here
from fractune_runtime.tvm_runtime import runtime, tensors
from fractune_runtime.tvm_runtime.runtime import Weights
from fractune_runtime.tvm_runtime.tensors import Array, TensorSpec
from fractune_runtime.tvm_runtime.variants import Variant, load_variant, misfit

_LOST = "after an error of a kernel CUDA refuses this process all further work: start it again"
_MEMORY_TOLERANCE = 0.1
"""CUDA reports a little less memory than NVML; two sizes of one product are further apart"""
_FEWEST_SMS = 8
"""MPS's grant for the smallest percentages, on the one GPU with known figures (H200)"""
LIBRARY = "libcuda.so.1"


class Captures:
    """Keeps all else that this process does on its GPU away from the capture of a CUDA graph. TVM captures in global
    mode: a copy or an allocation by another thread would make it void.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._working = 0
        self._capturing = False
        self.waiting = 0
        """threads that wait for others now"""

    @contextmanager
    def beside_others(self) -> Iterator[None]:
        with self._changed:
            self._wait_for(lambda: not self._capturing)
            self._working += 1
        try:
            yield
        finally:
            with self._changed:
                self._working -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._changed:
            self._wait_for(lambda: not self._capturing)
            self._capturing = True  # from here on no work begins
            self._wait_for(lambda: not self._working)
        try:
            yield
        finally:
            with self._changed:
                self._capturing = False
                self._changed.notify_all()

    def _wait_for(self, is_so: Callable[[], bool]) -> None:
        self.waiting += 1
        try:
            self._changed.wait_for(is_so)
        finally:
            self.waiting -= 1


CAPTURES = Captures()
"""of this process"""
_NAME_BYTES = 256


class OnGpu:
    """See `Backend`. Its runs wait for `stream`, an address, on which the calling thread launches; 0 = the default one.

    Raises BadBundle, BadRequest, ShareUnavailable, FractuneError when a part is not installed.
    """

    keeps_inputs = False
    device = "cuda:0"
    """the first GPU that CUDA shows this process"""
    kind = (2, 0)
    """the same by DLPack's numbers"""

    def __init__(self, bundle: Bundle, share: Share | None, weights: Weights | None = None, *, stream: int = 0) -> None:
        self._bundle = bundle
        self._stream = stream
        check_host_code(bundle)
        self._whole_sms = int(bundle.manifest["device"]["units"])
        self._share = share
        join_daemon(share)
        self._gpu = _gpu_for(bundle)
        check_gpu(bundle, self._gpu)
        self.look()
        self._load_runtime()
        self.weights = Weights(bundle, self.placed) if weights is None else weights.of_member(bundle)
        self._inputs: dict[int, Any] = {}
        """memory on the GPU for inputs from elsewhere, by position"""
        self._uncaptured: set[int] = set()
        """variants with CUDA graphs that did not run yet, by `id`"""

    def look(self) -> ShareHere:
        here = gpu_share_here(self._gpu, self._whole_sms, share_here().cpus)
        if self._share is not None:
            check_held(self._share, here, self._whole_sms)
            here = replace(here, within=self._share if self._share.ends else None)
        return here

    def limits(self) -> tuple[Any, ...]:
        return ()  # a process enters its share of a GPU before it uses the GPU, and keeps it

    def load_variant(self, variant: str) -> Variant:
        loaded = load_variant(self._bundle, variant, self.weights, (self.kind, runtime.CPU))
        if variant.endswith(WITH_GRAPHS):
            self._uncaptured.add(id(loaded))
        return loaded

    def arguments(self, specs: Sequence[TensorSpec], inputs: Mapping[str, Any]) -> list[Any]:
        return tensors.as_arguments(specs, inputs, self.kind)

    def run(self, variant: Variant, arguments: Sequence[Any]) -> list[Any]:
        if id(variant) not in self._uncaptured:
            with CAPTURES.beside_others():
                return self._run(variant, arguments)
        with CAPTURES.alone():
            outputs = self._run(variant, arguments)
        self._uncaptured.discard(id(variant))
        return outputs

    def _run(self, variant: Variant, arguments: Sequence[Any]) -> list[Any]:
        try:
            there = [self._input(at, argument) for at, argument in enumerate(arguments)]
            outputs = variant.run(there)
            runtime.synchronise(self.device, self._stream)
        except RuntimeError as error:
            raise FractuneError(f"the model failed on the GPU ({first_line(error)}); {_LOST}") from error
        except (ValueError, TypeError) as error:
            raise misfit(self._bundle, error) from error
        return outputs

    def held(self, variant: Variant, arguments: Sequence[Any]) -> list[Any]:
        return self.run(variant, arguments)

    def bound(self, variant: Variant, arguments: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], None]:
        return partial(self._run_into, variant, arguments, outputs)

    def _run_into(self, variant: Variant, arguments: Sequence[Any], outputs: Sequence[Any]) -> None:
        made = self.run(variant, arguments)
        with CAPTURES.beside_others():
            for source, target in zip(made, outputs, strict=True):
                self._copy(source, target)
            runtime.synchronise(self.device)

    def placed(self, arguments: Sequence[Any]) -> list[Any]:
        with CAPTURES.beside_others():
            there = [self._copy(argument, self._room_for(argument)) for argument in arguments]
            runtime.synchronise(self.device)
        return there

    def array(self, output: Any) -> Array:
        array, here = tensors.empty_array(output)
        with CAPTURES.beside_others():
            self._copy(output, here)
            runtime.synchronise(self.device)
        return array

    def _load_runtime(self) -> None:
        runtime.load_cuda_runtime()

    def _input(self, at: int, argument: Any) -> Any:
        """The argument on the GPU, in the memory of this input there unless it lies there already."""
        if tensors.device_of(argument) == self.kind:
            return argument
        if at not in self._inputs:
            self._inputs[at] = self._room_for(argument)
        return self._copy(argument, self._inputs[at])

    def _room_for(self, tensor: Any) -> Any:
        return runtime.empty_tensor(tuple(tensor.shape), str(tensor.dtype), self.device)

    def _copy(self, source: Any, target: Any) -> Any:
        runtime.copy_tensor(source, target)
        return target


def _gpu_for(bundle: Bundle) -> GpuHere:
    try:
        return look_at_gpu()
    except NoDriver as error:
        isa = bundle.manifest["device"]["isa"]
        raise BadBundle(f"{bundle.name} is for a GPU ({isa}): {error}, or tune the model for this CPU") from error


def check_gpu(bundle: Bundle, gpu: GpuHere) -> None:
    """Raises BadBundle, which names both, unless the bundle was measured on a GPU of this kind."""
    device, arch = bundle.manifest["device"], arch_of(bundle.manifest["target"])
    if not runs_on(arch, gpu.isa):
        raise BadBundle(
            f"{bundle.name} is code for {arch}, which does not run on {_format_gpu(gpu)}; tune the model here"
        )
    if device["isa"] != gpu.isa or not _may_be(gpu, device["units"], device["memory_gib"]):
        raise BadBundle(
            f"{bundle.name} was measured on {device['isa']} with {units_text(device['units'], 'sm')} and "
            f"{device['memory_gib']} GiB, this GPU is {_format_gpu(gpu)}; tune the model here"
        )


def gpu_share_here(gpu: GpuHere, whole_sms: int, cpus: tuple[int, ...]) -> ShareHere:
    """The share of this process on a GPU of `whole_sms` SMs; `cpus` are those of its host code. Raises BadRequest for
    an environment that cannot be meant.
    """
    said = GpuEnvironment.read(os.environ)
    mechanism, grant = _mechanism(gpu, whole_sms, os.environ)
    reason = "; ".join(filter(None, [f"{gpu.sms} of {units_text(whole_sms, 'sm')} {grant}", said.launch_text]))
    lost = _lost(said) if mechanism == "full" and not gpu.is_mps_client else ""
    warning = f"this process has {reason}; {lost}" if lost else ""
    return ShareHere(gpu.sms, cpus, reason, mechanism, gpu.mig_profile, warning=warning)


def check_held(share: Share, here: ShareHere, whole_sms: int) -> None:
    """Raises ShareUnavailable unless the process is under `share`, as far as CUDA shows, or BadRequest for a share that
    cannot serve.
    """
    share.check_serves(CUDA)
    least, most = share.ends or (share, share)
    wanted = {"full" if most == Share("mps", "100") else most.mechanism, *([least.mechanism] if share.ends else [])}
    is_held = here.mechanism in wanted
    if most.mechanism == "mps":
        is_held = is_held and here.units <= max(_FEWEST_SMS, math.ceil(whole_sms * int(most.size) / 100))
    if share.ends:
        is_held = is_held and here.units >= least.kind.units(least.size, whole_sms)
    if share.mechanism == "mig" and not share.mig_uuid:
        is_held = is_held and here.mig_profile == share.size
    if not is_held:
        found = here.warning or f"this process has {here.reason}; {_how_to_start(share)}"
        raise ShareUnavailable(f"share '{share}' is not in force: {found}, or leave the share out")


def confine_gpu(share: Share) -> None:
    """Have CUDA put this process under `share` when it starts, as far as a process can do that by itself. `check_held`
    checks the result afterwards. Raises BadRequest for a share that cannot serve a model.
    """
    share.check_serves(CUDA)
    if share.kind.word == "mps":
        os.environ[MPS_PERCENTAGE] = _most(share)
    elif share.mig_uuid:
        os.environ[VISIBLE_DEVICES] = share.mig_uuid


def _how_to_start(share: Share) -> str:
    if share.kind.word == "mps":
        return f"start it with {MPS_PERCENTAGE}={_most(share)} beside an MPS daemon (`fractune mps start`)"
    return "start it under that share"


def _most(share: Share) -> str:
    """The percentage that MPS limits a process to: of a range the burst."""
    return share.ends[1].size if share.ends else share.size


def _may_be(gpu: GpuHere, sms: int, memory_gib: int) -> bool:
    """Return True if the GPU that CUDA shows may have this many SMs, or be a part of such a GPU."""
    if gpu.is_mig or gpu.is_mps_client:  # a part; its memory may be limited too
        return gpu.sms <= sms
    return gpu.sms == sms and abs(gpu.memory_bytes / 2**30 - memory_gib) <= _MEMORY_TOLERANCE * memory_gib


def _mechanism(gpu: GpuHere, whole_sms: int, environ: Mapping[str, str]) -> tuple[str, str]:
    """The mechanism of the process's share, and the share as text."""
    if gpu.is_mig:
        return "mig", f"(the instance {gpu.name})"
    if gpu.is_mps_client and environ.get(MPS_PARTITION):
        return "mps-sm", f"(the partition {environ[MPS_PARTITION]} of MPS)"
    if gpu.is_mps_client and gpu.sms < whole_sms:
        percentage = environ.get(MPS_PERCENTAGE)
        limit = f"{MPS_PERCENTAGE}={percentage}" if percentage else "the daemon's percentage"
        return "mps", f"(a client of MPS, {limit})"
    beside = ", a client of MPS without a limit" if gpu.is_mps_client else ""
    return "full", f"(all of {gpu.name}{beside})"


def _format_gpu(gpu: GpuHere) -> str:
    memory_gib = round(gpu.memory_bytes / 2**30)
    return f"{gpu.isa} with {units_text(gpu.sms, 'sm')} and {memory_gib} GiB ({gpu.name})"


def join_daemon(share: Share | None) -> None:
    """Have CUDA find the daemon that `fractune mps start` keeps, if this process needs MPS (for `share`, or for the
    percentage of its environment) and its environment names no daemon. Raises BadRequest for an environment that cannot
    be meant.
    """
    said = GpuEnvironment.read(os.environ)
    is_needed = share.kind.word == "mps" if share else bool(said.percentage)
    if not is_needed or said.pipe_directory:
        return
    first = os.environ.get(VISIBLE_DEVICES, "").partition(",")[0]
    found = [(uuid, pipes) for uuid, pipes in kept_daemons().items() if uuid.startswith(first)]
    if len(found) == 1:
        uuid, pipes = found[0]
        os.environ[MPS_PIPE_DIRECTORY], os.environ[VISIBLE_DEVICES] = str(pipes), uuid


def _lost(said: GpuEnvironment) -> str:
    """In a process without MPS: that what its environment says of MPS has no effect, with a remedy. Empty if it says
    nothing.
    """
    if said.percentage:
        return f"{MPS_PERCENTAGE}={said.percentage} has no effect without MPS: {_remedy()}"
    return f"{MPS_PIPE_DIRECTORY} has no effect: {_remedy()}" if said.pipe_directory else ""


def _remedy() -> str:
    if pipes := os.environ.get(MPS_PIPE_DIRECTORY):
        return f"no daemon answers at {pipes} (`fractune mps status`)"
    if kept := kept_daemons():
        return f"set {VISIBLE_DEVICES} to the UUID of a GPU with a daemon, {' or '.join(kept)}"
    return "start a daemon by `fractune mps start`"


class Attribute(IntEnum):
    """CU_DEVICE_ATTRIBUTE_..., by cuda.h of CUDA 13."""

    MULTIPROCESSOR_COUNT = 16
    COMPUTE_CAPABILITY_MAJOR = 75
    COMPUTE_CAPABILITY_MINOR = 76
    MPS_ENABLED = 133


@dataclass(frozen=True)
class GpuHere:
    """A GPU as CUDA shows it to this process: under a share of MPS, and as a MIG instance, only a part of it."""

    name: str
    """the product's; of a MIG instance with its profile: `NVIDIA H200 MIG 1g.18gb`"""
    isa: str
    """`sm_90`"""
    sms: int
    memory_bytes: int
    is_mps_client: bool
    is_mig: bool
    """an instance of a divided GPU"""

    @property
    def mig_profile(self) -> str:
        """`1g.18gb`; empty for a GPU that is not a MIG instance"""
        return self.name.rpartition(" ")[2] if self.is_mig else ""


class NoDriver(FractuneError):
    """A machine without a driver for NVIDIA GPUs, or with an old one."""


def look_at_gpu() -> GpuHere:
    """The first GPU that CUDA shows this process. The call starts CUDA, which fixes the GPU and the use of MPS for the
    life of the process. Raises NoDriver, ShareUnavailable when CUDA cannot start.
    """
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise NoDriver(f"this machine has no NVIDIA driver ({error}); install {NEEDED_DRIVER}") from error
    return ask_gpu(library)


def ask_gpu(cuda: Any) -> GpuHere:
    """As `look_at_gpu`, for a loaded library of the driver."""
    version, device, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    _call(cuda, "cuDriverGetVersion", ctypes.byref(version))
    if fault := driver_fault(version.value // 1000):
        raise NoDriver(fault)
    _call(cuda, "cuInit", 0)
    _call(cuda, "cuDeviceGet", ctypes.byref(device), 0)
    _call(cuda, "cuDeviceGetName", name, _NAME_BYTES, device)
    _call(cuda, "cuDeviceTotalMem_v2", ctypes.byref(memory), device)

    def ask(attribute: Attribute) -> int:
        value = ctypes.c_int()
        _call(cuda, "cuDeviceGetAttribute", ctypes.byref(value), int(attribute), device)
        return value.value

    product = name.value.decode(errors="replace")
    return GpuHere(
        name=product,
        isa=f"sm_{ask(Attribute.COMPUTE_CAPABILITY_MAJOR)}{ask(Attribute.COMPUTE_CAPABILITY_MINOR)}",
        sms=ask(Attribute.MULTIPROCESSOR_COUNT),
        memory_bytes=memory.value,
        is_mps_client=bool(ask(Attribute.MPS_ENABLED)),
        # CUDA has no attribute for it.
        is_mig=" MIG " in product or os.environ.get(VISIBLE_DEVICES, "").startswith("MIG-"),
    )


def _call(cuda: Any, name: str, *args: Any) -> None:
    code = int(getattr(cuda, name)(*args))
    if code != 0:
        raise ShareUnavailable(f"{name}: CUDA error {code}; {what_to_do(code)}")
