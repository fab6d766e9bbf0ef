"""The devices of this machine, the shares of each, and the proof of each share.

Whether a share can be had is asked of its own confinement. Where CUDA or MPS rounds, the units are known only once
a process has entered the share; until then they are what is expected, or not said at all.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fractune_core.cpu_limits import MILLICORES, GrantedLimit, LimitSize
from fractune_core.cuda import VISIBLE_DEVICES
from fractune_core.errors import BadRequest, FractuneError, ShareUnavailable
from fractune_core.host.machine import cpu_name, host_memory_bytes
from fractune_core.share_kinds import CPU, CUDA
from fractune_core.shares import GrantedShare, Share
from fractune_workers.child import Child
from fractune_workers.child.process import Start
from fractune_workers.confinement import confinement_for, launcher_of
from fractune_workers.confinement.base import Confinement
from fractune_workers.confinement.limit_cgroups import LimitCgroups
from fractune_workers.gpu.nvml import Gpu, open_nvml
from fractune_workers.inventory.cpus import CpusHere, LimitsHere, cpus_here, limits_here

NOT_PROVED = "not proved"
PROOF_FAILED = "proof failed"
_PROVE_TIMEOUT_S = 60.0
_PERCENTAGES = (10, 25, 50, 75, 100)
_CHUNKS = (1, 2, 4, 8)


@dataclass(frozen=True)
class ShareInfo:
    """A share of a device."""

    share: str
    units: int | None
    """proved, or expected; None where only a proof can tell"""
    units_total: int
    unit: str
    memory_bytes: int | None
    reserved: bool | None
    """None where only a proof can tell"""
    proof: str
    """what was read from inside to prove it, or NOT_PROVED, or PROOF_FAILED"""
    device_key: str = ""
    """as records name the device; empty when not known"""
    instances: tuple[str, ...] = ()
    """UUIDs of the MIG instances that it may be"""
    limit: GrantedLimit | None = None
    """of a CPU limit, once proved"""
    refusal: str = ""
    """why it cannot be had here, or how its proof failed; empty when it can"""

    @property
    def fraction(self) -> float | None:
        return None if self.units is None else self.units / self.units_total

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "instances": list(self.instances), "fraction": self.fraction}


@dataclass(frozen=True)
class DeviceShares:
    """The shares of one device."""

    kind: str
    """`cpu` or `cuda`"""
    label: str
    """the product's name, with what tells it apart"""
    uuid: str
    shares: tuple[ShareInfo, ...]
    cpus: CpusHere | None = None
    """of the host CPU, unless only named shares are wanted"""
    limits: LimitsHere | None = None
    """as `cpus`"""

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "label": self.label,
            "uuid": self.uuid,
            "offers": [share.to_json() for share in self.shares],
            "cpus": None if self.cpus is None else self.cpus.to_json(),
            "limits": None if self.limits is None else self.limits.to_json(),
        }


def machine_shares(named: Sequence[Share] = (), *, prove: bool) -> Iterator[DeviceShares]:
    """The host CPU, then each GPU. With `prove`, each share is entered and verified in a child process. With `named`
    only these shares, and only the devices that have such shares.

    Raises NvmlFailed after the host CPU when GPUs cannot be asked for.
    """
    LimitCgroups().remove_dead()
    kinds = {share.device_kind for share in named} or {CPU, CUDA}
    if CPU in kinds:
        yield _cpu_shares(named, prove=prove)
    for gpu in open_nvml().gpus() if CUDA in kinds else []:
        with _working_on(gpu):
            found = _gpu_shares(gpu, named, prove=prove)
        yield found


def _cpu_shares(named: Sequence[Share], *, prove: bool) -> DeviceShares:
    cores, total = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    blank = ShareInfo("", None, total, "", host_memory_bytes(), reserved=False, proof="")
    shares = [(Share("cpu", str(count)), replace(blank, units=count)) for count in _doubling(1, cores)]
    if named:
        shares = [(share, _expected(share, blank)) for share in named if share.device_kind == CPU]
    return DeviceShares(
        "cpu",
        f"{cpu_name() or 'host CPU'} ({cores} of {total} cores may be used here)",
        "",
        tuple(_share_info(share, expected, prove=prove) for share, expected in shares),
        cpus=None if named else cpus_here(prove=prove),
        limits=None if named else limits_here(),
    )


def _expected(share: Share, blank: ShareInfo) -> ShareInfo:
    """What a named share of the CPU grants, if it can be had: cores, or the millicores of a limit."""
    if share.kind.unit == "core":
        return replace(blank, units=share.kind.cores(share.size))
    return replace(blank, units=LimitSize.parse(share.size).limit_m, units_total=MILLICORES * blank.units_total)


def _gpu_shares(gpu: Gpu, named: Sequence[Share], *, prove: bool) -> DeviceShares:
    memory_gib = round(gpu.memory_bytes / 2**30)
    mode = ", MIG mode" if gpu.mig else ""
    label = f"{gpu.name} ({gpu.arch}, {gpu.sms} SMs, {memory_gib} GiB, driver {gpu.driver}{mode})"
    blank = ShareInfo("", None, gpu.sms, "", gpu.memory_bytes, reserved=None, proof="")
    shares = [(Share("full"), replace(blank, units=gpu.sms, reserved=gpu.exclusive))]
    shares += [
        (Share("green", str(sms)), replace(blank, units=sms, reserved=False)) for sms in _green_sizes(gpu, prove=prove)
    ]
    shares += [(Share("mps", str(percent)), replace(blank, reserved=False)) for percent in _PERCENTAGES]
    shares += [(Share("mps-sm", str(chunks)), replace(blank, reserved=True)) for chunks in _CHUNKS]
    shares += list(_mig_shares(gpu, blank))
    if named:
        shares = [(share, blank) for share in named if share.device_kind == CUDA]
    return DeviceShares(
        "cuda", label, gpu.uuid, tuple(_share_info(share, expected, prove=prove) for share, expected in shares)
    )


def _green_sizes(gpu: Gpu, *, prove: bool) -> list[int]:
    """Sizes that CUDA leaves as they are. The largest is what it splits off; unless proved, what is documented."""
    step, least = green_steps(gpu)
    # NVML may not tell how many SMs there are.
    most = largest_green_share(gpu) if prove else max(least, gpu.sms // step * step)
    return _doubling(least, most)


def green_steps(gpu: Gpu) -> tuple[int, int]:
    """By how many SMs green contexts grow, and the fewest that one has, as documented."""
    return (8, 8) if gpu.capability >= (9, 0) else (2, 4)


def largest_green_share(gpu: Gpu) -> int:
    """SMs of the largest `green:N` of the GPU that this process sees first, as CUDA splits it. Without CUDA the
    documented number is used; the share's own proof then gives the reason.
    """
    step, least = green_steps(gpu)
    share = Share("green", str(least))
    try:
        return int(_ask_within(confinement_for(share), share, "largest_green")[0]) or least
    except FractuneError:
        return max(least, gpu.sms // step * step)


def _mig_shares(gpu: Gpu, blank: ShareInfo) -> Iterator[tuple[Share, ShareInfo]]:
    """One for each kind of instance; a part of a GPU instance has no short name and goes by its UUID."""
    for kind in dict.fromkeys((found.profile, found.sms, found.memory_bytes) for found in gpu.instances):
        profile, sms, memory_bytes = kind
        alike = [found.uuid for found in gpu.instances if (found.profile, found.sms, found.memory_bytes) == kind]
        for size in [profile] if _is_share(f"mig:{profile}") else alike:
            uuids = tuple(alike) if size == profile else (size,)
            expected = replace(blank, units=sms, memory_bytes=memory_bytes, reserved=True, instances=uuids)
            yield Share("mig", size), expected
    if not gpu.instances:
        yield Share("mig"), replace(blank, reserved=True)  # refused, with the way to make some


def _is_share(text: str) -> bool:
    try:
        Share.parse(text)
    except BadRequest:
        return False
    return True


def _share_info(share: Share, expected: ShareInfo, *, prove: bool) -> ShareInfo:
    """The share as its confinement sees it, proved if wanted and possible."""
    named = replace(expected, share=str(share), unit=share.kind.unit, proof=NOT_PROVED)
    try:
        confinement_for(share).probe()
    except ShareUnavailable as error:
        return replace(named, units=None, reserved=None, refusal=str(error))
    return _proved(share, named) if prove else named


def _proved(share: Share, expected: ShareInfo) -> ShareInfo:
    """The share as a child was granted it that entered it as a worker would."""
    confinement = confinement_for(share)
    try:
        granted, device_key = _ask_within(confinement, share, "granted", "device_key")
    except FractuneError as error:  # refused, or the child died or hung
        return replace(expected, units=None, reserved=None, proof=PROOF_FAILED, refusal=str(error))
    finally:
        confinement.leave()
    proved = GrantedShare.from_json(granted)
    return replace(
        expected,
        units=proved.units,
        units_total=proved.units_total,
        memory_bytes=proved.memory_bytes,
        reserved=proved.reserved,
        proof=share.kind.proof,
        device_key=device_key,
        limit=proved.limit,
    )


def _ask_within(confinement: Confinement, share: Share, *methods: str) -> list[Any]:
    """The answers of a child that has entered the share."""
    environment, start = confinement.environment(), Start(launcher=launcher_of(confinement))
    child = Child("fractune_workers.children.measuring.proving", [str(share)], env=environment, start=start)
    try:
        return [child.call(method, _PROVE_TIMEOUT_S) for method in methods]
    finally:
        child.stop()


@contextlib.contextmanager
def _working_on(gpu: Gpu) -> Iterator[None]:
    """Within the block this process and its children work on `gpu`."""
    before = os.environ.get(VISIBLE_DEVICES)
    os.environ[VISIBLE_DEVICES] = gpu.uuid
    try:
        yield
    finally:
        if before is None:
            del os.environ[VISIBLE_DEVICES]
        else:
            os.environ[VISIBLE_DEVICES] = before


def _doubling(least: int, most: int) -> list[int]:
    """`least`, twice that and so on, and `most` at the end."""
    sizes = []
    while least < most:
        sizes.append(least)
        least *= 2
    return [*sizes, most]
