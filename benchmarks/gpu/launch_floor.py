"""The time of an empty kernel, measured like candidates: the cost of a launch. Shorter times do not distinguish
kernels.

Run it in a separate process: python -m benchmarks.gpu.launch_floor --out FILE [--share full] [--target cuda:sm_90]; it
is also the child that builds the kernel.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.support.machine import write_json
from fractune_core.errors import FractuneError
from fractune_core.records import TRIAL_POLICY
from fractune_core.shares import Share
from fractune_workers.child import Child
from fractune_workers.gpu.nvml import open_nvml
from fractune_workers.gpu.visible import visible_gpu
from fractune_workers.measuring.session import ArtifactBatch, MeasurementSession

NEAR_FLOOR = 2.0
"""a time below so many floors says more about launches than about the kernel"""
_ARGS_INFO = [["TENSOR", "float32", [1]]] * 2
_BUILD_TIMEOUT_S = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="write the JSON here")
    parser.add_argument("--share", default="full")
    args = parser.parse_args()
    code = built(f"cuda:{visible_gpu(open_nvml().gpus()).arch}")
    write_json(args.out, {"share": args.share, "launch_floor_s": launch_floor_s(Share.parse(args.share), code)})


def launch_floor_s(share: Share, code: bytes) -> float:
    """Seconds of the empty kernel `code` at the share."""
    session = MeasurementSession(share, [])
    try:
        session.handshake()
        outcome = session.timed(ArtifactBatch(_ARGS_INFO, 0, {"empty": code}), TRIAL_POLICY)["empty"]
    finally:
        session.stop()
    if not outcome.run_secs:
        raise FractuneError(f"the empty kernel could not be timed at {share}: {outcome.cause}")
    return outcome.median_s


def built(target: str) -> bytes:
    """The kernel for `target` (`cuda:sm_90`)."""
    child = Child("benchmarks.gpu.launch_floor")
    try:
        code: bytes = child.call("build", _BUILD_TIMEOUT_S, target=target)["object"]
        return code
    finally:
        child.stop()


def build(target: str) -> dict[str, bytes]:
    """The archive, as `object`, of a kernel of one thread that copies one number."""
    import tvm
    from tvm import te
    from tvm.s_tir import Schedule

    from fractune_workers.children.building.cuda import build_archive
    from fractune_workers.children.tvm_api.cuda_target import compiler_for
    from fractune_workers.children.tvm_api.target import parse_target

    number = te.placeholder((1,), name="number")
    copy = te.compute((1,), lambda i: number[i], name="copy")
    sch = Schedule(tvm.IRModule({"main": te.create_prim_func([number, copy])}))
    (loop,) = sch.get_loops(sch.get_sblock("copy"))
    block, thread = sch.split(loop, [None, 1])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    parsed = parse_target(target, 1)
    return {"object": build_archive(sch.mod, parsed, compiler_for(parsed))}


def open_child(_args: list[str]) -> dict[str, Callable[..., Any]]:
    from fractune_workers.children.tvm_api.keep_out import stay_off_gpus

    stay_off_gpus()
    return {"build": build}


if __name__ == "__main__":
    main()
