"""NVIDIA's own MPS program, for whoever has it: FRACTUNE_REAL_MPS names a folder with its `usr/bin`. It needs no GPU.

NVIDIA's licence is for use with its GPUs, so nothing here fetches the program. On Debian with the section non-free:
`apt-get download nvidia-cuda-mps libcuda1`, then `dpkg -x FILE FOLDER` for each of the two.
"""

import os
from pathlib import Path

import psutil

from fractune_core.cuda import MPS_PIPE_DIRECTORY, PROGRAM

REAL_MPS = os.environ.get("FRACTUNE_REAL_MPS", "")


def real_program() -> str:
    """A program that runs NVIDIA's with its own libraries."""
    folder = Path(REAL_MPS).resolve() / "usr"
    return f"""#!/bin/sh
export PATH={folder}/bin:{folder}/sbin:$PATH
export LD_LIBRARY_PATH={folder}/lib/x86_64-linux-gnu/nvidia/current
exec {folder}/bin/{PROGRAM} "$@"
"""


def daemons_below(folder: Path) -> list[psutil.Process]:
    """Control daemons, real or simulated, with their pipes in this folder."""
    return [found for found in psutil.process_iter(["cmdline", "environ"]) if _is_below(folder, found.info)]


def _is_below(folder: Path, process: dict[str, object]) -> bool:
    words, environment = process["cmdline"] or [], process["environ"] or {}
    assert isinstance(words, list)
    assert isinstance(environment, dict)
    is_daemon = "-d" in words and any(word.endswith(PROGRAM) for word in words)
    return is_daemon and environment.get(MPS_PIPE_DIRECTORY, "").startswith(str(folder))
