"""The child that proves a share: it enters the share, and reports the granted share and the device. It loads no TVM."""

from collections.abc import Callable
from typing import Any

from fractune_core.shares import Share
from fractune_workers.confinement import confinement_for


def open_child(args: list[str]) -> dict[str, Callable[..., Any]]:
    """Enter the share that the one argument names. Raises ShareUnavailable."""
    share = Share.parse(args[0])
    confinement = confinement_for(share)
    confinement.enter()
    return {
        "granted": lambda: confinement.verify().to_json(),
        "device_key": lambda: _device_key(share),
        "largest_green": _largest_green,
    }


def _largest_green() -> int:
    """SMs of the largest green context that this process could have."""
    from fractune_workers.cuda.driver import largest_green, open_driver

    return largest_green(open_driver())


def _device_key(share: Share) -> str:
    """The GPU's key in records; empty for a CPU, because only TVM's compiler knows its name."""
    if share.device_kind == "cpu":
        return ""
    from fractune_workers.cuda.driver import open_driver
    from fractune_workers.gpu.nvml import gpu_device, open_nvml, visible_gpu

    return gpu_device(visible_gpu(open_nvml().gpus()), open_driver().l2_bytes()).key
