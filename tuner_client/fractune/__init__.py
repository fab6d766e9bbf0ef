"""The client: the command line, the one-machine stack, and bundles at inference."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fractune.inference.model import Model as Model
    from fractune.inference.model import load as load
    from fractune.inference.session import InferenceSession as InferenceSession
    from fractune.inference.signatures import sign_bundle as sign_bundle

# gRPC's core writes lines of its own to standard error when a server goes away; ours say it in one.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

_LAZY = {
    "InferenceSession": "fractune.inference.session",
    "Model": "fractune.inference.model",
    "load": "fractune.inference.model",
    "sign_bundle": "fractune.inference.signatures",
}
"""where the names for inference come from; a client that only talks to a server loads none of them"""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
