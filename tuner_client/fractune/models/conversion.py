"""Conversion of a Python file with an IRModule to JSON, in a separate process."""

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
    """Whether the model file is Python code, by its name or its beginning; False if it cannot be read."""
    if path.suffix == _SUFFIX:
        return True
    with contextlib.suppress(OSError), path.open("rb") as file:
        return is_script(file.read(_HEAD_BYTES))
    return False


def json_of_script(path: Path, folder: Path) -> Path:
    """Run the code of the file with the caller's rights, and write its only IRModule to `folder`.

    A line on standard error announces it, and the code prints there too. Returns the JSON file, with the name of the
    script. Raises BadModel if the code fails or makes no module or several, and FractuneError if TVM is not installed.
    """
    require("local", "tvm")
    sys.stderr.write(f"{path.name}: running this file's Python code on this machine, to get its IRModule\n")
    sys.stderr.flush()
    out, error_file = folder / f"{path.stem}.json", folder / "error"
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "fractune.models.script_child",
            str(os.getpid()),
            str(path.absolute()),
            str(out),
            str(error_file),
        ],
        env={**os.environ, **own_env()},
        stdin=subprocess.DEVNULL,
        stdout=2,  # standard error: standard output is for results
        check=False,
    )
    if error_file.exists():
        raise BadModel(f"{path.name}: {error_file.read_text(encoding='utf-8')}")
    if ended.returncode != 0 or not out.exists():
        raise BadModel(f"{path.name}: its code ended the process with code {ended.returncode}, before it was read")
    return out
