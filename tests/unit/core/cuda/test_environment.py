"""The share of a GPU in a container's environment: variables that are read, and values that are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractune_core.cuda import (
    HAMI_LIMIT,
    HAMI_POLICY,
    MPS_MEMORY_LIMIT,
    MPS_PERCENTAGE,
    MPS_PIPE_DIRECTORY,
    GpuEnvironment,
)
from fractune_core.errors import BadRequest

ECS = {MPS_PERCENTAGE: "25", MPS_MEMORY_LIMIT: "0=8192M"}
PLUGIN = {MPS_PIPE_DIRECTORY: "/mps/nvidia.com/gpu/pipe"}
NONE = GpuEnvironment()


@pytest.mark.parametrize(
    ("environ", "found", "says"),
    [
        (ECS, GpuEnvironment("25", "", "0=8192M"), "at most this part of the SMs, no guarantee; tune for mps:25"),
        (PLUGIN, GpuEnvironment("", "/mps/nvidia.com/gpu/pipe"), "its own percentage counts too"),
        ({MPS_PERCENTAGE: "05"}, GpuEnvironment("05"), "tune for mps:5"),
        ({MPS_PERCENTAGE: "12.5"}, GpuEnvironment("12.5"), "tune for the nearest mps:PERCENT"),
        ({HAMI_LIMIT: "50"}, GpuEnvironment(launch_percent=50), "a kernel that runs has all SMs; tune for full"),
        ({f"{HAMI_LIMIT}_0": "60", HAMI_LIMIT: "50"}, GpuEnvironment(launch_percent=60), "beyond 60 %"),
        ({HAMI_LIMIT: "50", HAMI_POLICY: "DISABLE"}, NONE, ""),
        ({HAMI_LIMIT: "100"}, NONE, ""),
        ({HAMI_LIMIT: "0"}, NONE, ""),
        ({MPS_PERCENTAGE: "100.0"}, NONE, ""),
        ({MPS_PERCENTAGE: "", "CUDA_MPS_LOG_DIRECTORY": "x", "CUDA_DEVICE_ORDER": "\n"}, NONE, ""),
    ],
)
def test_the_statements(environ: dict[str, str], found: GpuEnvironment, says: str) -> None:
    assert GpuEnvironment.read(environ) == found
    assert says in "; ".join(found.lines())
    assert bool(says) == bool(list(found.lines()))


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        (MPS_PERCENTAGE, "0", "is '0': set it to a number above 0 and at most 100, or unset it"),
        (MPS_PERCENTAGE, "00.0", "above 0"),
        (MPS_PERCENTAGE, "101", "at most 100"),
        (MPS_PERCENTAGE, "25%", "at most 100"),
        (MPS_PERCENTAGE, "nan", "at most 100"),
        (MPS_PERCENTAGE, "\u0662\u0665", "at most 100"),
        (MPS_PERCENTAGE, "25\n", r"is '25\\n': set it to"),
        (MPS_PIPE_DIRECTORY, "mps/pipe", "an absolute path"),
        (MPS_PIPE_DIRECTORY, "/mps\x1b[31m", r"is '/mps\\x1b\[31m': set it to an absolute path"),
        (MPS_PIPE_DIRECTORY, "/mps\x9b31m", "an absolute path"),
        (MPS_PIPE_DIRECTORY, "/mps\udcff", "an absolute path"),
        (MPS_PIPE_DIRECTORY, "/" + "a" * 5000, "an absolute path"),
        (MPS_MEMORY_LIMIT, "8G", "0=8G"),
        (HAMI_LIMIT, "-1", "from 0 to 100"),
        (f"{HAMI_LIMIT}_0", "half", "from 0 to 100"),
        (HAMI_POLICY, "often", "default, force or disable"),
    ],
)
def test_nonsense_is_one_line_that_says_what_to_do(name: str, value: str, says: str) -> None:
    with pytest.raises(BadRequest, match=says) as caught:
        GpuEnvironment.read({name: value})
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


@given(st.dictionaries(st.sampled_from([MPS_PERCENTAGE, MPS_PIPE_DIRECTORY, HAMI_LIMIT, HAMI_POLICY]), st.text()))
def test_no_value_ends_in_another_error(environ: dict[str, str]) -> None:
    try:
        found = GpuEnvironment.read(environ)
    except BadRequest:
        return
    assert 0 <= found.launch_percent < 100
    assert not found.percentage or 0 < float(found.percentage) < 100
