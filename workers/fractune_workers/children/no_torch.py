"""PyTorch stays out of children, although TVM's FFI imports it wherever it is installed.

That takes seconds in each of them, and CUDA, which PyTorch sets up, would make builders clients of the GPU. The one
child that reads `torch.export` files lets it in.
"""

from __future__ import annotations

import sys

_NAME = "torch"


def keep_torch_out() -> None:
    """Have `import torch` fail from now on, as if it were not installed; one that is imported stays."""
    # None is how Python is told that there is no such module.
    sys.modules.setdefault(_NAME, None)  # type: ignore[arg-type]


def let_torch_in() -> None:
    """Have `import torch` do again what it does."""
    if sys.modules.get(_NAME, sys) is None:
        del sys.modules[_NAME]
