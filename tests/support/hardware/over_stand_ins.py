"""Bundles and scripts that run over the stand-ins for CUDA's libraries."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
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
    timed, bundle = path.with_name(f"timed-{path.name}"), Bundle(path)
    best = {share: Served(share + WITH_GRAPHS, threads=1, loop_s=1e-5, p50_s=1e-5, p99_s=None) for share in shares}
    with timed.open("wb") as file:
        goals = get_args(ServiceGoal)
        bundle.copy_to(file, served={share: dict.fromkeys(goals, each.to_json()) for share, each in best.items()})
    bundle.close()
    return timed


def run_over_stand_ins(script: str, folder: Path, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    stand_in(folder)
    known = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    command = [sys.executable, "-c", script, *args]
    whole = {**known, "LD_LIBRARY_PATH": str(folder), **environ}
    return subprocess.run(command, env=whole, capture_output=True, text=True, check=False, timeout=120)


def kind(line: str) -> str:
    return line.partition(" ")[0]
