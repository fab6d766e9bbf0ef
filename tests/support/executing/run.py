"""Runs candidates on the executor. A program, because CUDA's libraries are found by the environment of a process."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fractune_workers.children.tvm_api.keep_out import keep_torch_out
from tests.support.executing import ORDERS
from tests.support.hardware.over_stand_ins import environ_over

_ARGUMENTS, _ARCHIVE = "arguments.npz", ".a"


def outputs_of(libraries: Path, folder: Path, archives: Mapping[str, bytes], arguments: list[Any]) -> dict[str, Any]:
    """By candidate: its output, the last one of `arguments`; or the text of its error, or of another output in another
    order of threads.
    """
    folder.mkdir()
    np.savez(folder / _ARGUMENTS, *arguments)
    for name, archive in archives.items():
        (folder / f"{name}{_ARCHIVE}").write_bytes(archive)
    command = [sys.executable, "-m", "tests.support.executing.run", str(folder)]
    done = subprocess.run(command, env=environ_over(libraries), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    errors: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return {name: errors.get(name) or np.load(folder / f"{name}.npy") for name in archives}


def _output(archive: bytes, arguments: list[Any], order: str) -> Any:
    import tvm

    from fractune_workers.children.tvm_api.artifacts import load_objects

    os.environ["ORDER"] = order
    tensors = [tvm.runtime.tensor(each, device=tvm.cuda(0)) for each in arguments]
    load_objects([archive])["main"](*tensors)
    return tensors[-1].numpy()


def _error(path: Path, arguments: list[Any]) -> str:
    """Empty for a candidate with the same output in all orders, which is written beside it."""
    try:
        outputs = [_output(path.read_bytes(), arguments, order) for order in ORDERS]
    except Exception as error:  # noqa: BLE001  whatever TVM raises for a launch that fails
        return str(error)
    if any(each.tobytes() != outputs[0].tobytes() for each in outputs):
        return "another output in another order of threads"
    np.save(path.with_suffix(".npy"), outputs[0])
    return ""


def _main(folder: Path) -> None:
    keep_torch_out()
    with np.load(folder / _ARGUMENTS) as saved:
        arguments = list(saved.values())
    errors = {path.stem: _error(path, arguments) for path in sorted(folder.glob(f"*{_ARCHIVE}"))}
    sys.stdout.write(json.dumps({name: error for name, error in errors.items() if error}))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
