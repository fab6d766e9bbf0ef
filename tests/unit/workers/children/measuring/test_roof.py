"""The roof of this machine's cores, measured for real: is it plausible, and does the compiler leave its work in?"""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tvm
from tvm.s_tir.meta_schedule.builder.local_builder import default_build

from fractune_core.analysis.roofline import Roof
from fractune_workers.children.measuring import roof as roof_module
from fractune_workers.children.measuring.roof import CpuRoof
from fractune_workers.children.measuring.setup import cpu_anchor
from fractune_workers.children.tvm_api.arrays import ANCHOR_SIZE
from fractune_workers.children.tvm_api.compiled import anchor_object
from fractune_workers.children.tvm_api.processor import cpu_processor
from fractune_workers.children.tvm_api.target import default_target
from tests.support.paths import REPOSITORY
from tests.support.stand_in_cuda import LAUNCH_S, build_libraries, has_compiler

# TVM's own builder calls what TVM has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:build is deprecated:DeprecationWarning")

TARGET, PROCESSOR = default_target(1), cpu_processor()
WIDEST_GFLOPS = 16 * 2 * 2 * 8.0
"""of a core: 16 numbers a vector, 2 operations each, 2 units, at 8 GHz"""


@pytest.fixture(scope="module")
def roof() -> Roof:
    return CpuRoof(TARGET, PROCESSOR).measure()


@pytest.mark.parametrize("mcpu", ["x86-64", "x86-64-v3", "znver3", "skylake-avx512"])
def test_the_chains_stay_in_registers(mcpu: str) -> None:
    """What is spilled to memory in each step costs a tenth of the peak."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": mcpu, "num-cores": 1})
    found = CpuRoof(target, PROCESSOR)
    kernel = roof_module._fma(1, found._chains, found._unit.lanes, found._steps)
    code = default_build(tvm.IRModule({"fma": kernel}), target, None).inspect_source("asm")
    on_the_stack = [line for line in code.splitlines() if re.search(r"%[xyz]mm", line) and "(%rsp)" in line]
    assert len(on_the_stack) < found._chains, on_the_stack  # some at the beginning, none for each chain


def test_the_peak_is_above_any_product_of_matrices_and_below_what_silicon_does(roof: Roof) -> None:
    product_gflops = 2 * ANCHOR_SIZE**3 / cpu_anchor(anchor_object(TARGET), PROCESSOR)() / 1e9
    assert product_gflops <= roof.gflops <= WIDEST_GFLOPS * len(os.sched_getaffinity(0))


def test_the_bandwidth_is_that_of_a_memory(roof: Roof) -> None:
    assert 0.2 < roof.gb_per_s < 5000
    assert roof.gb_per_s / 4 < roof.read_gb_per_s < 4 * roof.gb_per_s
    assert roof.cache_bytes > 0


def test_steps_that_are_asked_for_are_taken(roof: Roof, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that could fold the chains would do eight times the steps in the same time."""
    monkeypatch.setattr(roof_module, "_FMAS", 8 * roof_module._FMAS)
    assert CpuRoof(TARGET, PROCESSOR).measure().gflops < 4 * roof.gflops


def test_the_best_of_all_measurements_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    found, speeds = CpuRoof(TARGET, PROCESSOR), iter([50.0, 25.0, 100.0, 75.0])
    monkeypatch.setattr(found, "_gflops", lambda _within_s: next(speeds))
    bandwidths = iter([(10.0, 9.0), (30.0, 8.0), (20.0, 7.0)])
    monkeypatch.setattr(found, "_bandwidths", lambda: next(bandwidths))
    first = found.measure()
    assert (first.gflops, first.gb_per_s, first.read_gb_per_s) == (50.0, 10.0, 9.0)
    assert found.measure() == replace(first, gb_per_s=30.0)
    assert found.measure() == replace(first, gflops=100.0, gb_per_s=30.0)
    assert found.measure() == replace(first, gflops=100.0, gb_per_s=30.0)  # the memory is not measured again


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
