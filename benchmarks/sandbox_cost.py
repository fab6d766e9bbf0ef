"""The cost of the sandbox: the same machine code, timed interleaved in a process inside of it and in one outside.

Usage: python -m benchmarks.sandbox_cost [--quick] [--out FILE]
"""

import os
import statistics
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest.mock import patch

import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule

from benchmarks.support.machine import arguments, write_result
from fractune_core.analysis.slowdown_ci import estimate
from fractune_core.records import TimingPolicy
from fractune_core.shares import Share
from fractune_workers.children.tvm_api.compiled import build_object
from fractune_workers.children.tvm_api.target import default_target
from fractune_workers.locks.core_locks import CoreLocks, default_lock_dir
from fractune_workers.measuring import session as session_module
from fractune_workers.measuring.session import ArtifactBatch, MeasurementSession

SHARES = ("cpu:1", "cpu:2")
SIZES = {"add 16": 16, "add 64 Ki": 1 << 16, "add 4 Mi": 1 << 22}
PRODUCT = 256
CALLS = 1000
"""of the kernel in one operator: the filter looks at each. A parallel loop makes a few when it wakes its threads."""
POLICY = TimingPolicy("sandbox", warmups=1, repeats=3, min_repeat_ms=10)
PAIRS, ROUNDS = 7, 5
"""Two processes of one kind differ too, by where their memory lies: so there are several pairs, each with rounds."""


def main() -> None:
    args = arguments(__doc__).parse_args()
    pairs, rounds = (1, 3) if args.quick else (PAIRS, ROUNDS)
    rows = [row for share in SHARES for row in _at(Share.parse(share), pairs, rounds)]
    print(f"{'share':<8}{'operator':<14}{'outside':>12}{'inside':>12}{'ratio':>9}{'95 %':>18}")
    for row in rows:
        times = "".join(f"{row[place] * 1e6:>9.2f} us" for place in ("outside_s", "inside_s"))
        interval = f"{row['low']:.4f} to {row['high']:.4f}"
        print(f"{row['share']:<8}{row['operator']:<14}{times}{row['ratio']:>9.4f}{interval:>18}")
    write_result("sandbox_cost", args, {"pairs": pairs, "rounds": rounds, "rows": rows})
    print(f"sandbox_cost: median ratio {statistics.median(row['ratio'] for row in rows):.4f}")


def _at(share: Share, pairs: int, rounds: int) -> list[dict[str, Any]]:
    cores = sorted(os.sched_getaffinity(0))[: share.cores]
    batches = _batches(share.cores)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in batches}
    for _ in range(pairs):
        with ExitStack() as held:
            inside = _session(share, cores, held)
            with patch.object(session_module, "measurer_sandbox", lambda *_: None):
                outside = _session(share, cores, held)
            for name, batch in batches.items():
                found[name].append(_secs(batch, (inside, outside), cores, rounds))
    return [_row(share, name, secs) for name, secs in found.items()]


def _session(share: Share, cores: list[int], held: ExitStack) -> MeasurementSession:
    session = MeasurementSession(share, cores)
    held.callback(session.stop)
    session.handshake()
    return session


def _batches(cores: int) -> dict[str, ArtifactBatch]:
    target = default_target(cores)
    found = {}
    for name, size in SIZES.items():
        x = te.placeholder((size,), name="x")
        y = te.compute((size,), partial(_one_more, x), name="y")
        found[name] = _batch([x, y], target, [[size]] * 2)
    x = te.placeholder((CALLS,), name="x")
    y = te.compute((CALLS,), partial(_asked, x), name="y")
    found[f"{CALLS} calls"] = _batch([x, y], target, [[CALLS]] * 2)
    left, right = (te.placeholder((PRODUCT, PRODUCT), name=name) for name in ("left", "right"))
    k = te.reduce_axis((0, PRODUCT), name="k")
    product = te.compute((PRODUCT, PRODUCT), lambda i, j: te.sum(left[i, k] * right[k, j], axis=k), name="y")
    found[f"product {PRODUCT}"] = _batch([left, right, product], target, [[PRODUCT, PRODUCT]] * 3)
    return found


def _one_more(x: Any, i: Any) -> Any:
    return x[i] + 1.0


def _asked(x: Any, i: Any) -> Any:
    return x[i] + tirx.call_extern("int32", "getppid").astype("float32")


def _batch(tensors: list[Any], target: Any, shapes: list[list[int]]) -> ArtifactBatch:
    """With a parallel loop: each call wakes the threads of the share."""
    sch = Schedule(tvm.IRModule({"main": te.create_prim_func(tensors)}))
    sch.parallel(sch.get_loops(sch.get_sblock("y"))[0])
    return ArtifactBatch([["TENSOR", "float32", shape] for shape in shapes], 0, {"x": build_object(sch.mod, target)})


def _secs(
    batch: ArtifactBatch, sessions: tuple[MeasurementSession, ...], cores: list[int], rounds: int
) -> tuple[float, float]:
    """The least median of each process, interleaved: other programs only add."""
    secs: dict[MeasurementSession, list[float]] = {session: [] for session in sessions}
    for number in range(rounds):
        with CoreLocks(default_lock_dir()).measuring(cores):
            for session in sessions[:: -1 if number % 2 else 1]:
                secs[session].append(session.timed(batch, POLICY)["x"].median_s)
    one, other = (min(secs[session]) for session in sessions)
    return one, other


def _row(share: Share, name: str, secs: list[tuple[float, float]]) -> dict[str, Any]:
    ratio = estimate([inside / outside for inside, outside in secs])
    inside_s, outside_s = (statistics.median(each) for each in zip(*secs, strict=True))
    return {
        "share": str(share),
        "operator": name,
        "inside_s": inside_s,
        "outside_s": outside_s,
        "ratio": ratio.median,
        "low": ratio.low,
        "high": ratio.high,
    }


if __name__ == "__main__":
    main()
