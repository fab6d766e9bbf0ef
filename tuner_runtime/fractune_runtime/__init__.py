"""Loads and runs bundles.

    session = fractune_runtime.InferenceSession("model.fractune")      # in the place of ONNX Runtime's
    model = fractune_runtime.load("model.fractune")
    pool = fractune_runtime.ReplicaPool("model.fractune")

docs/running.md describes them. The modules below are how it is made, and change without notice.
"""

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING

from fractune_core import __version__ as __version__, errors as errors

if _TYPE_CHECKING:
    from fractune_runtime.inference_session import (
        InferenceSession as InferenceSession,
        SessionOptions as SessionOptions,
    )
    from fractune_runtime.io_binding import OrtValue as OrtValue
    from fractune_runtime.loading import load as load, verify_bundle as verify_bundle
    from fractune_runtime.replica_pool import ReplicaPool as ReplicaPool

_HOME_OF = {
    "InferenceSession": "fractune_runtime.inference_session",
    "OrtValue": "fractune_runtime.io_binding",
    "ReplicaPool": "fractune_runtime.replica_pool",
    "SessionOptions": "fractune_runtime.inference_session",
    "load": "fractune_runtime.loading",
    "verify_bundle": "fractune_runtime.loading",
}
"""each is imported when it is first used: the client of a server imports this package too"""

__all__ = [*_HOME_OF, "__version__", "errors"]  # noqa: PLE0604  the names are texts


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(_importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
