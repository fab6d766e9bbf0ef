"""A Python file that makes an IRModule -> that module as JSON, made by a process of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from fractune.local.programs import require
from fractune.local.stack import own_env
from fractune_core.errors import BadModel
from fractune_core.files.scripts import is_script

_SUFFIX = ".py"
_HEAD_BYTES = 1 << 16


def is_model_script(path: Path) -> bool:
    """Whether the model file is Python code, by its name or by how it begins. A file that cannot be read is none."""
    if path.suffix == _SUFFIX:
        return True
    with contextlib.suppress(OSError), path.open("rb") as file:
        return is_script(file.read(_HEAD_BYTES))
    return False


def json_of_script(path: Path, folder: Path) -> Path:
    """Run the code of the file with the caller's rights, and write the one IRModule that it makes to `folder`.

    A line on standard error says so, and what the code prints goes there too. Returns the JSON file, which has the
    script's name. Raises BadModel when the code fails, or makes no module or several; FractuneError where TVM is
    not installed.
    """
    require("local", "tvm")
    sys.stderr.write(f"{path.name}: running this file's Python code on this machine, to get its IRModule\n")
    sys.stderr.flush()
    out, said = folder / f"{path.stem}.json", folder / "error"
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "fractune.models.script_child",
            str(os.getpid()),
            str(path.absolute()),
            str(out),
            str(said),
        ],
        env={**os.environ, **own_env()},
        stdin=subprocess.DEVNULL,
        stdout=2,  # standard error: standard output is for results
        check=False,
    )
    if said.exists():
        raise BadModel(f"{path.name}: {said.read_text(encoding='utf-8')}")
    if ended.returncode != 0 or not out.exists():
        raise BadModel(f"{path.name}: its code ended the process with code {ended.returncode}, before it was read")
    return out
