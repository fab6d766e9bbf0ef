"""The features of a trace: what was decided, and which sketch it is."""

from __future__ import annotations

import math

import pytest
import tvm
from tvm import te, topi

from fractune_workers.children.searching.operator_search import OperatorSearch
from fractune_workers.children.searching.surrogate import features_of
from fractune_workers.children.tvm_api.traces import Workload

# TVM's own builder calls what TVM has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:build is deprecated:DeprecationWarning")


@pytest.fixture(scope="module")
def search() -> OperatorSearch:
    a, b = te.placeholder((24, 40), name="a"), te.placeholder((40, 32), name="b")
    mod = tvm.IRModule({"main": te.create_prim_func([a, b, topi.nn.relu(topi.matmul(a, b))])})
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
    return OperatorSearch(Workload.of(mod), target, seed=1, threads=1)


def test_the_tiles_of_a_loop_make_up_its_extent(search: OperatorSearch) -> None:
    search.propose(4, lambda trace: trace)
    for schedule in search._pending.values():
        features = features_of(schedule.trace)
        loops = [sum(v for name, v in features.items() if name.startswith(f"SamplePerfectTile {n}.")) for n in range(3)]
        assert [round(2**logs) for logs in loops] == [24, 32, 40]
        assert all(math.isfinite(value) for value in features.values())


def test_no_two_sketches_look_alike(search: OperatorSearch) -> None:
    shapes = [
        {name: value for name, value in features_of(space.trace).items() if "Sample" not in name}
        for space in search.spaces
    ]
    assert len(shapes) > 1
    assert all(one != other for at, one in enumerate(shapes) for other in shapes[:at])
