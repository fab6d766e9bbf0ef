"""Tune deep-learning models for the share of a processor that they will run on, and run what was tuned.

    result = fractune.tune("model.onnx", shares=["cpu:1", "cpu:2"], trials=256)
    model = result.bundle.load(share="cpu:2")

docs/python.md describes every name in `__all__`. The packages below this one (`fractune.cli`, `fractune.local`, ...)
are how it is made, and change without notice; `fractune.errors` is the one module to import from.
"""

import importlib as _importlib
import os as _os
import types as _types

from fractune import errors as errors
from fractune_core import __version__ as __version__

# gRPC's core writes lines of its own to standard error when a server goes away; ours say it in one.
_os.environ.setdefault("GRPC_VERBOSITY", "NONE")

with open(f"{__file__}i", encoding="utf-8") as _stub:  # noqa: PTH123  - pathlib takes longer than all the rest
    _IMPORTS = [line.split() for line in _stub if line.startswith("from ")]
_HOME_OF = {name: module for _, module, _, name, *_ in _IMPORTS if name != "__version__"}
"""where each name comes from: it is imported when it is first used"""

__all__ = list(_HOME_OF)
__all__.sort()


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from fractune.arguments import checked

    found: object = getattr(_importlib.import_module(_HOME_OF[name]), name)
    if isinstance(found, _types.FunctionType):
        found = checked(found)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
