"""Children that compile use no GPU, although TVM would look for one."""

from __future__ import annotations

import os

from fractune_core.cuda.environment import VISIBLE_DEVICES

_NO_GPU = {
    # A process that asks CUDA for a device becomes a client of the GPU and of its MPS daemon: it sees none.
    VISIBLE_DEVICES: "",
    # TVM packs source, whether or not this machine has a driver: what it would compile itself depends on the machine.
    "TVM_COMPILE_FORCE_FALLBACK": "1",
}


def stay_off_gpus() -> None:
    """Keep this process from using a GPU. Takes effect until the first call of CUDA."""
    os.environ.update(_NO_GPU)
