"""Timing of a peer at shares of this machine's CPU, in a confined process for each timing.

Core locks keep every other fractune process of this user off the cores meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fractune.local.programs import require
from fractune_core.shares import Share

_TIMEOUT_S = 1800.0


def check_share(share: Share) -> None:
    """Raises ShareUnavailable if this machine does not have the CPU share."""
    require("worker", "tvm")
    from fractune_workers.confinement.cpu import CpuConfinement

    CpuConfinement(share).probe()


def time_peer(
    share: Share, model: Path, shapes: Mapping[str, Sequence[int]], repeats: int, env: Mapping[str, str]
) -> dict[str, Any]:
    """Time the ONNX file `model` in ONNX Runtime at `share`: `version`, and `run_secs`, seconds of `repeats`
    inferences.

    `shapes` are for inputs that it leaves open; `env` points the process to our packages. Raises ShareUnavailable,
    BadModel if ONNX Runtime cannot load or run it, FractuneError if it is not installed.
    """
    with _confined(share, env) as call:
        timed: dict[str, Any] = call("time_peer", _TIMEOUT_S, path=str(model), shapes=dict(shapes), repeats=repeats)
    return timed


def time_beside(share: Share, model: Path, bundle: Path, repeats: int, env: Mapping[str, str]) -> dict[str, Any]:
    """Time the bundle's variant for `share` and its ONNX file in ONNX Runtime, interleaved.

    Returns the fields of `fractune.inference.comparing.beside.Beside`, and `variant`. Raises as `time_peer`, and
    BadBundle.
    """
    with _confined(share, env) as call:
        timed: dict[str, Any] = call("time_beside", _TIMEOUT_S, path=str(model), bundle=str(bundle), repeats=repeats)
    return timed


@contextlib.contextmanager
def _confined(share: Share, env: Mapping[str, str]) -> Iterator[Callable[..., Any]]:
    """A function that calls a process at `share`, with cores of its own until the block ends. Raises
    ShareUnavailable.
    """
    require("worker", "tvm")
    from fractune_workers.child import Child
    from fractune_workers.confinement.cpu import CpuConfinement
    from fractune_workers.locks.core_locks import CoreLocks, default_lock_dir

    confinement = CpuConfinement(share)
    confinement.probe()
    args = [str(share), ",".join(map(str, confinement.cores))]
    child = Child("fractune.features.tune.peer_child", args, {**env, **confinement.environment()})
    try:
        with CoreLocks(default_lock_dir()).measuring(confinement.cores):
            yield child.call
    finally:
        child.stop()
