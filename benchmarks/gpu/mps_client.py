"""The child that is a client of an MPS daemon, to be looked at while its kernel spins, and after one that faults."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from fractune_core.shares import Share
from fractune_workers.confinement import confinement_for
from fractune_workers.cuda.driver import KERNEL, PTX, CudaDriver, open_driver

_FOR_EVER = 1 << 62
"""cycles"""
_NOWHERE = 16
"""an address that no process has"""


def open_child(args: list[str]) -> dict[str, Callable[..., Any]]:
    """Enter the share that the one argument names. Raises ShareUnavailable."""
    confinement = confinement_for(Share.parse(args[0]))
    confinement.enter()
    driver = open_driver()
    return {
        "granted": lambda: confinement.verify().to_json(),
        "spin": lambda: _note_smid(driver, driver.call("cuMemAlloc", 4), _FOR_EVER),
        "fault": lambda: _note_smid(driver, _NOWHERE, 0),
    }


def _note_smid(driver: CudaDriver, table: Any, cycles: int) -> None:
    """One block of the counting kernel, until it has ended. Raises DriverFailed."""
    kernel = driver.call("cuModuleGetFunction", driver.call("cuModuleLoadData", PTX), KERNEL.encode())
    arguments = ((int(table), cycles), (ctypes.c_void_p, ctypes.c_uint64))
    driver.call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, driver.cuda.CUstream(0), arguments, 0)
    driver.wait()
