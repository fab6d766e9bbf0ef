"""The GPU share of this process, and the check that the GPU fits a bundle. CUDA shows a process its share and not the
whole, so the whole comes from the bundle's measurements.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

from fractune.inference.cpu.share import ShareHere
from fractune.inference.gpu.driver import GpuHere
from fractune.inference.gpu.mps import lost_percentage
from fractune_core.cuda.environment import MPS_PARTITION, MPS_PERCENTAGE, VISIBLE_DEVICES
from fractune_core.errors import BadBundle, ShareUnavailable
from fractune_core.files.bundles import Bundle
from fractune_core.share_kinds import CUDA
from fractune_core.shares import Share, units_text
from fractune_core.targets import arch_of, runs_on

_MEMORY_TOLERANCE = 0.1
"""CUDA reports a little less memory than NVML; two sizes of one product are further apart"""
_FEWEST_SMS = 8
"""MPS's grant for the smallest percentages, on the one GPU with known figures (H200)"""


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
    """The share of this process on a GPU of `whole_sms` SMs; `cpus` are those of its host code."""
    mechanism, grant = _mechanism(gpu, whole_sms, os.environ)
    reason = f"{gpu.sms} of {units_text(whole_sms, 'sm')} {grant}"
    lost = lost_percentage() if mechanism == "full" and not gpu.is_mps_client else ""
    warning = f"this process has {reason}; {lost}" if lost else ""
    return ShareHere(gpu.sms, cpus, reason, mechanism, gpu.mig_profile, warning=warning)


def check_held(share: Share, here: ShareHere, whole_sms: int) -> None:
    """Raises ShareUnavailable unless the process is under `share`, as far as CUDA shows, or BadRequest for a share that
    cannot serve.
    """
    share.check_serves(CUDA)
    wanted = "full" if share == Share("mps", "100") else share.mechanism
    is_held = here.mechanism == wanted
    if share.mechanism == "mps":
        is_held = is_held and here.units <= max(_FEWEST_SMS, math.ceil(whole_sms * int(share.size) / 100))
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
    if share.mechanism == "mps":
        os.environ[MPS_PERCENTAGE] = share.size
    elif share.mig_uuid:
        os.environ[VISIBLE_DEVICES] = share.mig_uuid


def _how_to_start(share: Share) -> str:
    if share.mechanism == "mps":
        return f"start it with {MPS_PERCENTAGE}={share.size} beside an MPS daemon (`fractune mps start`)"
    return "start it under that share"


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
