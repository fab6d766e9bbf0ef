"""The child that reads a model, in a sandbox: strangers make models."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fractune_core.host.machine import model_memory_bytes
from fractune_core.host.sandbox import Sandbox
from fractune_workers.child import Child
from fractune_workers.sandboxes import PACKAGES, absolute

_ENVIRONMENT = {
    # Each thread addresses memory, and a fork takes only the calling one along.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    # onnxslim loads ONNX Runtime where it is installed, which would write a name for this machine, and report.
    "ORT_DISABLE_TELEMETRY": "1",
}


def reader_child(
    module: str,
    *,
    model: Path | None = None,
    own_dir: Path | None = None,
    also: Sequence[Path] = (),
    hidden: Sequence[Path] = (),
    memory_bytes: int | None = None,
    env: Mapping[str, str] | None = None,
    recycle_calls: int = 0,
) -> Child:
    """A child that can read `model`, a file or a folder of them, what is `also` named, and nothing else of its user's.
    It writes in `own_dir` alone, which is emptied whenever it starts. Readers of its files there must not trust them.
    `hidden`: files that it must fail to read, which it tries.
    """
    writable = [str(own_dir)] if own_dir else []
    sandbox = Sandbox(
        model_memory_bytes(memory_bytes),
        readable=(*PACKAGES, *absolute([*([model] if model else []), *also])),
        writable=tuple(writable),
        hidden=absolute(hidden),
    )
    temporary = {"TMPDIR": writable[0]} if writable else {}
    return Child(module, env={**_ENVIRONMENT, **temporary, **(env or {})}, recycle_calls=recycle_calls, sandbox=sandbox)
