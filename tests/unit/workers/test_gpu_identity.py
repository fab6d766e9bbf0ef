"""A GPU's device key and TVM target: the same at every share, and such that TVM's own checks can work with it."""

from __future__ import annotations

import json

import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from tests.simulated_cuda import simulated_driver
from tests.simulated_gpu import MODELS, SimulatedGpu, gpu_in_mig_mode
from tests.simulated_nvml import SimulatedNvml
from workers.children.intrinsics import keep_out_gpu_intrinsics
from workers.gpu.driver import KernelLimits
from workers.gpu.identity import gpu_device, gpu_target
from workers.gpu.nvml import NvidiaMl

LIMITS = KernelLimits(shared_memory_bytes=49_152, threads=1024, registers=65_536, warp_threads=32)


def test_the_device_is_known_by_what_decides_its_speed() -> None:
    simulated = SimulatedGpu(MODELS["H200"])
    (gpu,) = NvidiaMl(SimulatedNvml(simulated)).gpus()
    device = gpu_device(gpu, simulated_driver(simulated).l2_bytes())
    assert device.key == "cuda-sm_90-132u-140gib-l2.61440kib"
    assert device.label == "NVIDIA H200"


def test_in_mig_mode_it_is_another_device_whose_cache_nobody_tells() -> None:
    (gpu,) = NvidiaMl(SimulatedNvml(gpu_in_mig_mode("H200", ("1g", 0)))).gpus()
    assert gpu_device(gpu, 7 << 20).key == "cuda-sm_90-132u-140gib-l2.0kib"


@pytest.fixture(scope="module")
def target() -> tvm.target.Target:
    return tvm.target.Target(gpu_target("sm_90", LIMITS))


def test_tvm_takes_the_target_as_it_is(target: tvm.target.Target) -> None:
    config = json.loads(str(target))
    assert gpu_target("sm_90", LIMITS).items() <= config.items()


@pytest.mark.parametrize(
    ("threads", "shared_floats", "fits"), [(256, 1024, True), (2048, 1024, False), (256, 16_384, False)]
)
def test_tvm_checks_candidates_by_its_limits(
    target: tvm.target.Target, threads: int, shared_floats: int, *, fits: bool
) -> None:
    size = 4 * shared_floats
    x = te.placeholder((size,), name="x")
    y = te.compute((size,), lambda i: x[i] + 1.0, name="y")
    mod = tvm.IRModule({"main": te.create_prim_func([x, y])})
    sch = Schedule(mod)
    block = sch.get_sblock("y")
    outer, inner = sch.split(sch.get_loops(block)[0], [None, shared_floats])
    sch.bind(outer, "blockIdx.x")
    copy = sch.cache_read(block, 0, "shared")
    sch.compute_at(copy, outer)
    for loop in (inner, sch.get_loops(copy)[-1]):
        sch.bind(sch.split(loop, [None, threads])[1], "threadIdx.x")
    keep_out_gpu_intrinsics()
    check = ms.postproc.VerifyGPUCode()
    space = ms.space_generator.PostOrderApply(sch_rules=[], postprocs=[check], mutator_probs={})
    context = ms.TuneContext(mod=mod, target=target, space_generator=space, task_name="check")
    assert context.space_generator.postprocs[0].apply(sch) == fits
