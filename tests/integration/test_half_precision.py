"""Validation of long sums in half precision, under a share: of the CPU here, and of a GPU where there is one."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import te

from fractune_core.operators import DIRECT
from fractune_core.records import UNTUNED, Status
from fractune_core.shares import Share
from fractune_core.targets import target_key
from fractune_workers.builder_process import BuilderProcess
from fractune_workers.child import Child
from fractune_workers.children.tvm_api.target import default_target
from fractune_workers.children.tvm_api.traces import Workload, write_workloads
from fractune_workers.measuring.session import ArtifactBatch, MeasurementSession, Outcome
from fractune_workers.measuring.validation import validate
from tests.integration.test_measuring import target_of

DEPTH = 4608
LOST = 16
"""terms of every sum that the wrong kernels leave out"""
ROWS = {"cpu": 64, "cuda": 512}
HALF, LOST_PART, TUNED = "sums in half precision", "a part is lost", "tuned"
CANDIDATES = 3

_log = logging.getLogger(__name__)


def product(rows: int, dtype: str, *, sums: str, depth: int = DEPTH) -> str:
    """The workload of a product of two matrices, with `depth` of its DEPTH terms summed in the type `sums`."""
    left = te.placeholder((rows, DEPTH), dtype, "left")
    right = te.placeholder((DEPTH, rows), dtype, "right")
    k = te.reduce_axis((0, depth), "k")
    made = te.compute(
        (rows, rows), lambda i, j: te.sum(left[i, k].astype(sums) * right[k, j].astype(sums), k), name="product"
    )
    output = made if sums == dtype else te.compute((rows, rows), lambda i, j: made[i, j].astype(dtype), name="output")
    mod = tvm.IRModule({"main": te.create_prim_func([left, right, output])})
    return write_workloads({DIRECT: Workload.of(mod)})


@dataclass
class Kernels:
    """Machine code by name, from the builder."""

    target: str
    builder: BuilderProcess
    codes: dict[str, bytes]

    def add(self, name: str, workload: str, trace: str = UNTUNED) -> list[Any]:
        """Returns the arguments of the workload."""
        args_info = self.builder.learn(workload, self.target, lambda: workload)
        made = self.builder.build(workload, self.target, trace, 60)
        assert (made.status, made.cause) == (Status.OK, ""), name
        self.codes[name] = made.code
        return args_info


def candidates(workload: str, target: str) -> list[str]:
    search, known = Child("fractune_workers.children.searching.child", ["2"]), {"workload_hash": "12"}
    opened = {"workload": workload, "target": target, "seed": 0, "history": [], "transferred": []}
    try:
        search.call("open", 120, **known, target_key=target_key(target), **opened)
        return [
            each["trace"]
            for each in search.call("propose", 120, **known, target_key=target_key(target), count=CANDIDATES)
        ]
    finally:
        search.stop()


@pytest.mark.parametrize("dtype", ["float16"])
@pytest.mark.parametrize("name", ["cpu:1", pytest.param("full", marks=pytest.mark.gpu)])
def test_right_kernels_pass_and_those_that_lose_terms_do_not(name: str, dtype: str, tmp_path: Path) -> None:
    """Builder, session and kernels are the real ones: no rounding is modelled."""
    share = Share.parse(name)
    target = target_of(share, {"target": target_text()})
    rows, kernels = ROWS[share.device_kind], Kernels(target, BuilderProcess(), {})
    asked = product(rows, dtype, sums="float32")
    try:
        args_info = kernels.add(UNTUNED, asked)
        for at, trace in enumerate(candidates(asked, target)):
            kernels.add(f"{TUNED} {at}", asked, trace)
        kernels.add(HALF, product(rows, dtype, sums=dtype))
        kernels.add(LOST_PART, product(rows, dtype, sums="float32", depth=DEPTH - LOST))
    finally:
        kernels.builder.stop()
    outcomes = validated(share, ArtifactBatch(args_info, 5, kernels.codes), tmp_path)
    seen = {each: (found.status, found.max_error, found.cause) for each, found in outcomes.items()}
    _log.info("differences to the reference here: %s", seen)
    for each, found in outcomes.items():
        assert found.status is (Status.WRONG_OUTPUT if each in (HALF, LOST_PART) else Status.OK), seen
    assert "of its largest value" in outcomes[LOST_PART].cause


def target_text() -> str:
    return str(default_target(1))


def validated(share: Share, batch: ArtifactBatch, folder: Path) -> dict[str, Outcome]:
    cores = sorted(os.sched_getaffinity(0))[:1] if share.device_kind == "cpu" else []
    session = MeasurementSession(share, cores, lock_dir=folder)
    try:
        session.handshake()
        return validate(session, batch, UNTUNED)
    finally:
        session.stop()
