"""The launch floor, measured by TVM's own CUDA runtime over libraries that stand in for CUDA's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY
from tests.support.stand_in_cuda import LAUNCH_S, build_libraries, has_compiler

_MEASURE = """
import tvm
from fractune_workers.children.measuring.roof import LaunchFloor
from fractune_workers.children.tvm_api.processor import Processor

processor = Processor(tvm.cuda(0))
with processor.engaged():
    floor = LaunchFloor(processor)
    print(floor.measure().to_json() == floor.measure().to_json(), floor.measure().launch_s)
"""


@pytest.mark.skipif(not has_compiler(), reason="no gcc here, which compiles the stand-ins")
def test_an_empty_kernel_is_launched_and_timed_as_candidates_are(tmp_path: Path) -> None:
    build_libraries(tmp_path)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    command = [sys.executable, "-c", _MEASURE]
    done = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    same, launch_s = done.stdout.split()
    assert same == "True"
    assert float(launch_s) == pytest.approx(LAUNCH_S)
