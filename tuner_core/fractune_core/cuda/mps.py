"""NVIDIA's MPS: its control program, the packages that have it, and the folders of our own daemons."""

from __future__ import annotations

import os
from pathlib import Path

from fractune_core.host.private_folders import is_private, private_path

PROGRAM = "nvidia-cuda-mps-control"
PACKAGES = "nvidia-compute-utils-580 or nvidia-compute-utils-580-server on Ubuntu, nvidia-cuda-mps on Debian"
"""packages with the program; Ubuntu's are named after the driver's release"""
_PREFIX = f"fractune-mps-{os.getuid()}-"
_KEPT = "kept"


def daemon_folder(gpu_uuid: str) -> Path:
    """The folder of the GPU's daemon for this user's processes on this host."""
    return private_path(f"{_PREFIX}{gpu_uuid}")


def pipes_in(folder: Path) -> Path:
    """Where clients reach the daemon of this folder."""
    return folder / "pipe"


def kept_mark(folder: Path) -> Path:
    """A file that exists while the folder's daemon also runs without workers (`fractune mps start`)."""
    return folder / _KEPT


def kept_daemons() -> dict[str, Path]:
    """The pipe folders of the daemons that this user keeps, by the UUIDs of their GPUs."""
    folders = [mark.parent for mark in sorted(private_path("").glob(f"{_PREFIX}*/{_KEPT}"))]
    return {folder.name.removeprefix(_PREFIX): pipes_in(folder) for folder in folders if is_private(folder)}
