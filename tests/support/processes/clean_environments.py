"""Virtual environments that hold fractune as it is installed, and beside it what an extra asks for and nothing else.

The other packages are linked from the environment of the tests, so that no package index is needed.
"""

import csv
import os
import subprocess
import sys
import venv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

NAME = "fractune"


@dataclass(frozen=True)
class Environment:
    """A virtual environment without pip."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def site(self) -> Path:
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    def fractune(self) -> Distribution:
        (found,) = distributions(name=NAME, path=[str(self.site)])
        return found

    def run_python(self, *args: str) -> subprocess.CompletedProcess[str]:
        return self._run([str(self.python), "-I", *args])

    def run_command(self, *args: str) -> subprocess.CompletedProcess[str]:
        """The command `fractune`, as its user starts it."""
        script = self.folder / "bin" / NAME
        return self._run([str(script), *args] if script.exists() else [str(self.python), "-m", "fractune.cli", *args])

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, check=False)


def empty_environment(folder: Path) -> Environment:
    venv.create(folder)
    return Environment(folder)


def install(environment: Environment, wheel: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--python", str(environment.python)]
    subprocess.run([*pip, "install", "-q", "--no-compile", "--no-index", "--no-deps", str(wheel)], check=True)


def asked_for(root: Distribution, extra: str = "") -> list[Requirement]:
    """What a distribution asks for here, or what its `extra` adds to that."""
    requirements = (Requirement(line) for line in root.requires or [])
    return [each for each in requirements if _applies(each, extra) and not (extra and _applies(each, ""))]


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def closure(root: Distribution, extra: str) -> list[Distribution]:
    """Every distribution that `root` with `extra` needs, from the environment of the tests; without `root`."""
    asked = {(NAME, ""), (NAME, extra)}
    pending = [*asked]
    while pending:
        name, its_extra = pending.pop()
        for requirement in asked_for(root if name == NAME else distribution(name), its_extra):
            needed = canonicalize_name(requirement.name)
            new = {(needed, each) for each in ("", *requirement.extras)} - asked
            asked |= new
            pending += new
    return [distribution(name) for name in sorted({name for name, _ in asked} - {NAME})]


def link(environment: Environment, packages: Iterable[Distribution]) -> None:
    """Make the files of `packages` appear in the environment: those in site-packages, not the commands."""
    for package in packages:
        files = {Path(file) for file in _recorded(package) if not file.startswith(("..", "/"))}
        regular = {file.parent for file in files if file.name == "__init__.py"}
        for path in {next((each for each in [*file.parents][-2::-1] if each in regular), file) for file in files}:
            link = environment.site / path
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(str(package.locate_file(path)))


def _recorded(package: Distribution) -> Iterator[str]:
    return (row[0] for row in csv.reader((package.read_text("RECORD") or "").splitlines()))
