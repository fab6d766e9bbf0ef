"""A target whose code is compiled quickly: LLVM does not optimize what runs once."""

from __future__ import annotations

import tvm


def unoptimized(target: tvm.target.Target) -> tvm.target.Target:
    """The same processor, at LLVM's level 0. The passes of TVM, and so its code for LLVM, stay as they are."""
    return tvm.target.Target({**dict(target.attrs), "kind": target.kind.name, "opt-level": 0})
