"""Whether a fused model can be read, and what becomes of its operators: asked of the workers' compiler, in a child."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fractune.local.programs import require
from fractune_core.errors import BadModel

_TIMEOUT_S = 600.0


def describe_fused(path: Path, inputs: Mapping[str, list[int]], env: Mapping[str, str]) -> dict[str, Any]:
    """`operators`, how many kinds of them there are, and `apart`, the names of those called once for each slot.

    `env` are variables of the child. Raises BadModel for variants that are not built alike, and for what cannot be
    fused.
    """
    require("local", "tvm", "onnx")
    from fractune_workers.child.errors import CallFailed, ChildDied, ChildTimeout
    from fractune_workers.reader import reader_child

    child = reader_child("fractune_workers.children.compiling.child", model=path, env=env)
    try:
        answer: dict[str, Any] = child.call("describe_fused", _TIMEOUT_S, path=str(path), inputs=dict(inputs))
    except (CallFailed, ChildDied, ChildTimeout) as error:
        raise BadModel(f"{path.name} could not be read: {error}") from error
    finally:
        child.stop()
    return answer
