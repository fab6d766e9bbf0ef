"""On a real GPU: Triton's kernels compute what NumPy computes, by pointers and, where the GPU has it, by TMA."""

import importlib.util
import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from fractune_core.errors import FractuneError
from fractune_runtime.gpu import GpuHere, look_at_gpu
from fractune_workers.child import Child
from tests.processes.test_tensor_maps import operator_of
from tests.processes.test_triton import DECISIONS, MOST_ERROR, WHOLE, build
from tests.support.children.triton_operators import BOXES, OPERATORS, function_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton; `make setup-triton` installs it"),
]

WITH_TMA = 90


@pytest.fixture(scope="module")
def gpu() -> GpuHere:
    try:
        return look_at_gpu()
    except FractuneError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("tma", [False, True])
@pytest.mark.parametrize("dtype", MOST_ERROR)
def test_the_values_are_numpy_s(gpu: GpuHere, dtype: str, tmp_path: Path, *, tma: bool) -> None:
    if tma and int(gpu.isa.removeprefix("sm_")) < WITH_TMA:
        pytest.skip("this GPU has no TMA")
    operators = BOXES if tma else OPERATORS
    names = [name for name in operators if (name == WHOLE) == (dtype == "int8")]
    cases = list(itertools.product(names, DECISIONS))
    builder = Child("fractune_workers.children.building.child")
    for at, (name, decided) in enumerate(cases):
        rows, columns, depth, warps, stages, split, programs = DECISIONS[decided]
        decisions = {"rows": rows, "columns": columns, "depth": depth, "warps": warps, "stages": stages}
        decisions |= {"split": split, "programs": programs}
        operator = operator_of(function_of(operators[name], dtype)[0], f"cuda:{gpu.isa}")
        built = build(builder, operator, decisions, tma=tma)
        assert (built["status"], built["cause"]) == ("ok", ""), name
        (tmp_path / f"{at}.a").write_bytes(built["object"])
    builder.stop()
    (tmp_path / "cases.json").write_text(json.dumps([(name, dtype, tma) for name, _ in cases]))
    command = [sys.executable, "-m", "tests.support.children.triton_on_a_gpu", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    errors = dict(zip(cases, json.loads(done.stdout.splitlines()[-1]), strict=True))
    most = 1.01 * MOST_ERROR[dtype]  # sums in another order than the interpreter's may round the other way
    assert {case: error for case, error in errors.items() if not error <= most} == {}
