"""A piece of build work is small where a build takes long."""

from __future__ import annotations

from fractune_core.fleet.messages import CPU_BATCH, CUDA_BATCH, build_batch


def test_builds_for_a_gpu_are_spread_over_more_builders() -> None:
    assert build_batch('{"arch":"sm_90","kind":"cuda"}') == CUDA_BATCH < CPU_BATCH
    assert build_batch('{"kind":"llvm","mcpu":"znver4"}') == CPU_BATCH
