"""Virtual environments of the servers that people have, filled by pip: made once, and kept in build/ for later runs.

They need the package index, and some 100 MB each. A test is skipped where pip reaches no index.
"""

import fcntl
import hashlib
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY
from tests.support.processes.clean_environments import Environment

PACKAGES = {
    "kserve": ("kserve==0.21.0", "tritonclient[grpc,http]==2.73.0"),
    "mlserver": ("mlserver==1.7.1",),
    "ray": ("ray[serve]==2.60.0",),
    "litserve": ("litserve==0.2.19", "fastapi==0.165.0", "uvicorn==0.54.0", "prometheus-client==0.26.0"),
}
"""by the environment's name"""
ENVIRONMENTS = {"fastapi": "litserve", "litserve": "litserve", "ray": "ray", "kserve": "kserve"}
"""by a server of `fractune_runtime.serving`"""
_FOLDER = REPOSITORY / "build" / "servers"


def target_folder(name: str, wanted: Sequence[str]) -> Path:
    """A folder with these packages and no others, to be put on the path before those of an environment."""
    folder = _FOLDER / _named(name, wanted)
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with _locked(name):
        if not (folder / "ready").exists():
            _pip(Path(sys.executable), "--upgrade", "--no-deps", "--target", str(folder), *wanted)
            (folder / "ready").touch()
    return folder


def server_environment(name: str, wheel: Path) -> Environment:
    """The environment with these packages, and this wheel of `fractune-runtime` beside them."""
    wanted = PACKAGES[name]
    folder = _FOLDER / _named(name, wanted)
    _FOLDER.mkdir(parents=True, exist_ok=True)
    environment = Environment(folder)
    with _locked(name):
        if not (folder / "ready").exists():
            venv.create(folder, clear=True, with_pip=True)
            _pip(environment.python, *wanted)
            (folder / "ready").touch()
        digest, installed = hashlib.sha256(wheel.read_bytes()).hexdigest(), folder / "runtime.sha256"
        if not installed.exists() or installed.read_text() != digest:
            _pip(environment.python, "--force-reinstall", "--no-deps", str(wheel))
            _pip(environment.python, str(wheel))
            installed.write_text(digest)
    return environment


def python_of(server: str, wheel: Path) -> Path:
    """The Python of its environment."""
    return server_environment(ENVIRONMENTS[server], wheel).python


def _named(name: str, wanted: Sequence[str]) -> str:
    return f"{name}-{hashlib.sha256(' '.join(wanted).encode()).hexdigest()[:8]}"


@contextmanager
def _locked(name: str) -> Iterator[None]:
    """Tests of other processes wait."""
    with (_FOLDER / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _pip(python: Path, *args: str) -> None:
    command = [str(python), "-I", "-m", "pip", "install", "-q", "--disable-pip-version-check", *args]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Could not find a version" in ended.stderr or "No matching distribution" in ended.stderr:
        pytest.skip(f"pip does not get {' '.join(args)} here")
    assert ended.returncode == 0, ended.stderr
