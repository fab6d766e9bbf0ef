"""Bundles and scripts that run over the stand-ins for CUDA's libraries."""

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import get_args

from fractune_core.files.bundles import Bundle
from fractune_core.names import WITH_GRAPHS
from fractune_core.served import Served, ServiceGoal
from tests.support.hardware.launching_driver import stand_in

LOAD = """
import sys
sys.modules["torch"] = None  # TVM's FFI imports it, and it calls more of CUDA
import fractune
model = fractune.load(sys.argv[1], share=sys.argv[2] or None)
print(model.choice.variant, "tvm" in sys.modules)
for again in range(3):
    print("call", file=sys.stderr, flush=True)
    model.run(model.random_inputs(again))
    model.rematch()
"""
"""loads a bundle, for a share unless it is empty, and runs it three times"""


def graphs_are_fastest(path: Path, shares: Iterable[str]) -> Path:
    """The bundle with times of the whole model, as a job leaves them: variants with graphs serve the shares."""
    return served_by(path, {share: share + WITH_GRAPHS for share in shares})


def served_by(path: Path, variants: Mapping[str, str]) -> Path:
    """The bundle with times of the whole model: these variants serve the shares."""
    timed, bundle = path.with_name(f"timed-{path.name}"), Bundle(path)
    best = {share: Served(name, threads=1, loop_s=1e-5, p50_s=1e-5, p99_s=None) for share, name in variants.items()}
    with timed.open("wb") as file:
        goals = get_args(ServiceGoal)
        bundle.copy_to(file, served={share: dict.fromkeys(goals, each.to_json()) for share, each in best.items()})
    bundle.close()
    return timed


def run_over_stand_ins(script: str, folder: Path, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    stand_in(folder)
    return run_over(folder, script, *args, **environ)


def run_over(libraries: Path, script: str, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the script over the libraries in a folder."""
    command = [sys.executable, "-c", script, *args]
    whole = environ_over(libraries, **environ)
    return subprocess.run(command, env=whole, capture_output=True, text=True, check=False, timeout=120)


def environ_over(libraries: Path, **more: str) -> dict[str, str]:
    known = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    return {**known, "LD_LIBRARY_PATH": str(libraries), **more}


def kind(line: str) -> str:
    return line.partition(" ")[0]
