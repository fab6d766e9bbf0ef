"""`fractune bundle --image`: a folder from which an image with one bundle is built, each requirement by its hash."""

import contextlib
import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from fractune_core.errors import BadRequest, FractuneError, StateUnusable
from fractune_core.files.bundles import Bundle
from fractune_core.files.compared import MODEL
from fractune_core.share_kinds import CPU

_WHEEL = re.compile(r"fractune_runtime-[\w.]+-py3-none-[\w.]+\.whl")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_RUN_S = 600
_DOCKERFILE = """\
# Written by fractune. Python must be {python}: the hashes in requirements.txt are of its wheels.
FROM python:{python}-slim-bookworm
WORKDIR /srv
COPY requirements.txt {wheel} ./
RUN pip install --no-cache-dir --require-hashes -r requirements.txt && rm requirements.txt {wheel}
COPY {bundle} ./
# Any user may run it, on a read-only root.
USER 10001:0
ENV BUNDLE=/srv/{bundle} PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# Replace it by your server: it says which variant this machine's share gets.
CMD ["python", "-c", "import os, fractune_runtime as f; print(f.load(os.environ['BUNDLE']).choice)"]
"""


def write_image(bundle: Path, wheel: Path, folder: Path) -> None:
    """Write the bundle, the wheel of `fractune-runtime`, `requirements.txt` and a `Dockerfile` into a new folder. pip
    finds the newest versions for this Python. Raises BadBundle, BadRequest, FractuneError when pip fails,
    StateUnusable.
    """
    if not _WHEEL.fullmatch(wheel.name) or not wheel.is_file():
        raise BadRequest(f"{wheel} is not a wheel of fractune-runtime; make one by 'make runtime-wheel'")
    if not _NAME.fullmatch(bundle.name):
        raise BadRequest(f"an image cannot hold a file named {bundle.name!r}; rename it to letters, digits, . _ and -")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    with contextlib.closing(Bundle(bundle)) as opened:
        wanted = _wanted(opened.manifest, wheel)
    lines = _pinned(wanted, wheel)
    try:
        folder.mkdir(parents=True)
        shutil.copyfile(bundle, folder / bundle.name)
        shutil.copyfile(wheel, folder / wheel.name)
        (folder / "requirements.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        text = _DOCKERFILE.format(python=python, wheel=wheel.name, bundle=bundle.name)
        (folder / "Dockerfile").write_text(text, encoding="utf-8")
    except FileExistsError as error:
        raise BadRequest(f"{folder} is there already; remove it, or name another bundle by --out") from error
    except OSError as error:
        raise StateUnusable(f"{folder}: {error.strerror or error}; free some space") from error


def _wanted(manifest: dict[str, Any], wheel: Path) -> list[str]:
    """The wheel, with the extras that this bundle needs, and the runtimes that serve some of its shares."""
    extras = ["onnxruntime"] if "stages" in manifest else []
    if manifest["device"]["kind"] != CPU:
        extras.append("cuda")
    runtimes = manifest.get("runtimes", {}) if "stages" in manifest or MODEL in manifest["sha256"] else {}
    own = f"{wheel.absolute()}[{','.join(extras)}]" if extras else str(wheel.absolute())
    return [own, *(f"{name}=={runtime['version']}" for name, runtime in sorted(runtimes.items()))]


def _pinned(wanted: list[str], wheel: Path) -> list[str]:
    """A line for each package that pip would install, with the hash of the file."""
    options = ["--dry-run", "--ignore-installed", "--only-binary=:all:", "--quiet", "--report", "-"]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", *options, *wanted]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_RUN_S)
    except subprocess.TimeoutExpired as error:
        raise FractuneError(f"pip found no versions within {_RUN_S} s; try again") from error
    if ended.returncode:
        lines = [line for line in ended.stderr.splitlines() if line.startswith("ERROR")] or ended.stderr.splitlines()
        raise FractuneError(f"pip found no versions: {lines[-1] if lines else 'it printed nothing'}")
    pinned = [f"./{wheel.name} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}"]
    for each in json.loads(ended.stdout)["install"]:
        name, version = each["metadata"]["name"], each["metadata"]["version"]
        if name != "fractune-runtime":
            pinned.append(
                f"{name}=={version} --hash=sha256:{each['download_info']['archive_info']['hashes']['sha256']}"
            )
    return pinned
