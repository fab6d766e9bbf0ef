"""Hints for errors of CUDA's driver, by their numbers in cuda.h."""

from __future__ import annotations

_RESTART = "the process is lost to CUDA: start it again"
_HINTS = {
    2: "no device memory is left: end other processes on this GPU, or raise the memory limit",
    46: "another process has the GPU to itself: end it, or set the compute mode to DEFAULT",
    100: "CUDA sees no GPU: compare CUDA_VISIBLE_DEVICES with `nvidia-smi -L`",
    101: "CUDA sees no such GPU: compare CUDA_VISIBLE_DEVICES with `nvidia-smi -L`",
    218: "the driver is too old: install 580 or newer",
    222: "the driver is too old: install 580 or newer",
    700: _RESTART,
    719: _RESTART,
    801: "this driver or device cannot do it: install driver 580 or newer",
    802: "the machine's GPUs are not ready: see that nvidia-fabricmanager runs",
    803: "the driver was upgraded under the running kernel: reboot",
    805: "no MPS server answers: see that the control daemon runs as this user, with this CUDA_MPS_PIPE_DIRECTORY",
    806: "the MPS server went away: " + _RESTART,
    807: "the MPS server is not ready: after a fault it waits until every affected client has ended; try again then",
    808: "the MPS server has reached its limit of clients: end some",
    809: "the MPS server has no connection left: lower CUDA_DEVICE_MAX_CONNECTIONS, or end some clients",
    810: "MPS ended this client: start it again",
    914: "the device lacks this resource: install driver 580 or newer",
    915: "the device cannot be divided like that: ask for fewer SMs; where an MPS daemon has static partitions, "
    "CUDA_MPS_SM_PARTITION has to name one",
    999: "look for a line with Xid in `dmesg`, and start the process again",
}
UNKNOWN = "`nvidia-smi` and `dmesg` may show more"


def what_to_do(code: int) -> str:
    """The next step for a user after the error `code`; UNKNOWN for a code without its own hint."""
    return _HINTS.get(code, UNKNOWN)
