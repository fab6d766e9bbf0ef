"""What a host needs that measures packs: the requirements, or a folder with the wheels, as small as they can be.

Of TVM a measuring host loads the runtime alone, which is a fiftieth of the wheel. So the wheels are written again,
without TVM's compiler and without files that only compilers and tests read, and compressed better.
"""

from __future__ import annotations

import csv
import importlib.metadata
import io
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from fractune_core.errors import BadRequest, FractuneError, StateUnusable

_EXTRAS = {"cpu": ("run", "sign"), "cuda": ("run", "sign", "cuda")}
"""that a measuring host needs, by kind of device"""
_COMPILERS = ("nvidia-cuda-nvrtc", "nvidia-cuda-crt")
"""of the extra `cuda`, for builders"""
_PLATFORMS = ("manylinux_2_34", "manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux_2_17", "manylinux2014")
_OLD_PLATFORMS = ("manylinux2010", "manylinux1")
_PYTHON = re.compile(r"3\.(?:1[1-9]|[2-9]\d)")
_TVM = "apache_tvm-"
_COMPILER_OF_TVM = re.compile(r"tvm/(?!__init__\.py$|lib/libtvm_runtime)")
_NOT_RUN = re.compile(r"(?:^|/)tests/|\.(?:a|c|cc|cpp|h|hpp|pxd|pxi|pyi|pyx)$")


def requirements(kind: str) -> list[str]:
    """The requirements that pip installs on a host that measures packs: for shares of a `cpu` or of a GPU (`cuda`)."""
    declared = importlib.metadata.requires("fractune")
    if declared is None:
        raise FractuneError("fractune is not installed as a package here, so its requirements are not known")
    found: dict[str, None] = {}
    for each in declared:
        requirement, _, marker = each.partition(";")
        wanted = not marker or any(f"extra == '{name}'" in marker.replace('"', "'") for name in _EXTRAS[kind])
        if wanted and not requirement.startswith(_COMPILERS):
            found[requirement.strip()] = None
    return list(found)


def carry_wheels(folder: Path, kind: str, python: str = "") -> dict[str, int]:
    """Write the wheels that a Linux x86-64 host with this Python (`3.12`; empty = as here) needs into the folder, which
    is new or empty. Returns their sizes in bytes by name. Raises BadRequest, FractuneError when pip fails,
    StateUnusable.
    """
    version = python or f"3.{sys.version_info.minor}"
    if not _PYTHON.fullmatch(version):
        raise BadRequest(f"'{python[:20]}' is not a version of Python such as 3.12; 3.11 is the oldest")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise BadRequest(f"{folder} is not empty; name a new folder for the wheels")
        with tempfile.TemporaryDirectory(prefix="fractune-wheels-") as fetched:
            _download(Path(fetched), requirements(kind), version)
            for wheel in sorted(Path(fetched).glob("*.whl")):
                write_smaller(wheel, folder / wheel.name)
    except OSError as error:
        raise StateUnusable(f"{folder}: {error.strerror or error}; free some space, or name another folder") from error
    return {path.name: path.stat().st_size for path in sorted(folder.glob("*.whl"))}


def _download(folder: Path, wanted: list[str], version: str) -> None:
    platforms = [option for name in (*_PLATFORMS, *_OLD_PLATFORMS) for option in ("--platform", f"{name}_x86_64")]
    options = ["--only-binary=:all:", "--python-version", version, "--implementation", "cp", *platforms]
    command = [sys.executable, "-m", "pip", "download", "-q", *options, "-d", str(folder), *wanted]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        lines = [line for line in ended.stderr.splitlines() if line.startswith("ERROR")] or ended.stderr.splitlines()
        raise FractuneError(f"pip could not fetch the wheels: {lines[-1] if lines else 'it printed nothing'}")


def write_smaller(wheel: Path, out: Path) -> None:
    """Write the wheel without what a measuring host never reads. Its list of files has those that are left."""
    dropped = _COMPILER_OF_TVM if wheel.name.startswith(_TVM) else _NOT_RUN
    with zipfile.ZipFile(wheel) as given, zipfile.ZipFile(out, "w", zipfile.ZIP_LZMA) as made:
        for entry in given.infolist():
            name, content = entry.filename, given.read(entry)
            if dropped.search(name):
                continue
            if name.endswith(".dist-info/RECORD"):
                content = _listed(content, dropped)
            made.writestr(name, content)


def _listed(record: bytes, dropped: re.Pattern[str]) -> bytes:
    rows = [row for row in csv.reader(io.StringIO(record.decode())) if row and not dropped.search(row[0])]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
