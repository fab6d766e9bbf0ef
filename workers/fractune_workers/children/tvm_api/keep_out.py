"""Keeps PyTorch, GPUs, and lines on standard output out of children.

TVM's FFI imports PyTorch wherever it is installed. The import takes seconds in each child. PyTorch also sets up CUDA,
which would make builders clients of the GPU. Only the child that reads `torch.export` files lets PyTorch in.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Iterator

from fractune_core.cuda import VISIBLE_DEVICES

_TORCH = "torch"


def keep_torch_out() -> None:
    """Have `import torch` fail from now on, as if it were not installed; one that is imported stays."""
    # With None, Python reports that the module does not exist.
    sys.modules.setdefault(_TORCH, None)  # type: ignore[arg-type]


def let_torch_in() -> None:
    """Let `import torch` work again."""
    if sys.modules.get(_TORCH, sys) is None:
        del sys.modules[_TORCH]


_NO_GPU = {
    # A process that asks CUDA for a device becomes a client of the GPU and of its MPS daemon: hide all devices.
    VISIBLE_DEVICES: "",
    # TVM packs source, with or without a driver: its own compilation would depend on the machine.
    "TVM_COMPILE_FORCE_FALLBACK": "1",
}


def stay_off_gpus() -> None:
    """Keep this process from using a GPU. Takes effect until the first call of CUDA."""
    os.environ.update(_NO_GPU)


@contextlib.contextmanager
def hushed() -> Iterator[None]:
    """Within the block, libraries print nothing on standard output, and their warnings are dropped."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
