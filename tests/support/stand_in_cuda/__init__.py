"""CUDA's libraries without a GPU, for TVM's own CUDA runtime: a kernel takes LAUNCH_S, and nothing runs (`cuda.c`)."""

import shutil
import subprocess
from pathlib import Path

LAUNCH_S = 3.25e-6
_NAMED = "libcudart.so.13"


def has_compiler() -> bool:
    return shutil.which("gcc") is not None


def build_libraries(folder: Path) -> None:
    """Both libraries in one: TVM asks the runtime's for its version, and needs the driver's to exist."""
    (folder / "versions").write_text(f"{_NAMED} {{ global: *; }};\n", encoding="utf-8")
    source = str(Path(__file__).with_name("cuda.c"))
    versions = f"-Wl,--version-script={folder / 'versions'}"
    _compile(folder / _NAMED, source, f"-Wl,-soname,{_NAMED}", versions)
    _compile(folder / "libcuda.so.1", "-x", "c", "/dev/null")


def _compile(library: Path, *arguments: str) -> None:
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), *arguments], check=True)
