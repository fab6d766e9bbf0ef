"""The share of a GPU in a container's environment, and where a CUDA toolkit is found."""

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from fractune_core.cuda import (
    HAMI_LIMIT,
    HAMI_POLICY,
    MPS_MEMORY_LIMIT,
    MPS_PERCENTAGE,
    MPS_PIPE_DIRECTORY,
    GpuEnvironment,
    Toolkit,
    find_cudart,
    toolkit_roots,
    toolkits,
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


HEADERS = ("cuda_fp16.h", "mma.h", "crt/mma.h")


def make(root: Path, *files: str) -> Path:
    for name in files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o755)
    return root


def headers(folder: str = "include") -> list[str]:
    return [f"{folder}/{name}" for name in HEADERS]


def test_the_wheels_hold_nvrtc_its_headers_and_the_runtime(tmp_path: Path) -> None:
    root = make(tmp_path / "nvidia/cu13", "lib/libnvrtc.so.13", "lib/libnvrtc-builtins.so.13.5", *headers())
    make(root, "lib/libcudart.so.13")
    assert toolkits([root]) == [
        Toolkit(root / "lib/libnvrtc.so.13", None, root / "lib/libcudart.so.13", root / "include")
    ]


@pytest.mark.parametrize(
    ("files", "library", "include"),
    [
        (["lib64/libnvrtc.so.13", *headers()], "lib64/libnvrtc.so.13", "include"),
        (
            ["targets/x86_64-linux/lib/libnvrtc.so.13", *headers("targets/x86_64-linux/include")],
            "targets/x86_64-linux/lib/libnvrtc.so.13",
            "targets/x86_64-linux/include",
        ),
        (["lib/x86_64-linux-gnu/libnvrtc.so.12", *headers()], "lib/x86_64-linux-gnu/libnvrtc.so.12", "include"),
    ],
    ids=["runfile", "conda", "Debian"],
)
def test_every_layout_is_known(tmp_path: Path, files: list[str], library: str, include: str) -> None:
    (found,) = toolkits([make(tmp_path, *files)])
    assert (found.nvrtc, found.include) == (tmp_path / library, tmp_path / include)


def test_the_library_is_named_by_its_soname(tmp_path: Path) -> None:
    make(tmp_path, "lib/libnvrtc.so.13.0.88", "lib/libnvrtc.so.13", "lib/libnvrtc.so")
    assert toolkits([tmp_path])[0].nvrtc == tmp_path / "lib/libnvrtc.so.13"


@pytest.mark.parametrize("lacking", HEADERS)
def test_headers_count_only_when_all_are_there(tmp_path: Path, lacking: str) -> None:
    make(tmp_path, "lib/libnvrtc.so.13", *(name for name in headers() if name != f"include/{lacking}"))
    assert toolkits([tmp_path])[0].include is None


def test_roots_without_a_usable_part_or_named_twice(tmp_path: Path) -> None:
    make(tmp_path, "lib/libcudart.so.13", "bin/nvcc")
    (tmp_path / "bin/nvcc").chmod(0o644)
    assert toolkits([tmp_path])[0].nvcc is None
    root = make(tmp_path, "bin/nvcc")
    assert len(toolkits([root, root])) == 1
    assert toolkit_roots({"CUDA_HOME": "", "PATH": ""}, [str(tmp_path)]) == [Path("/usr/local/cuda"), Path("/usr")]


def test_a_folder_without_any_part_is_no_toolkit(tmp_path: Path) -> None:
    assert toolkits([tmp_path / "none", make(tmp_path, *headers())]) == []


def test_only_the_runtime_that_tvm_is_linked_with_will_do(tmp_path: Path) -> None:
    old = make(tmp_path / "old", "lib/libcudart.so.12", "bin/nvcc")
    new = make(tmp_path / "new", "lib/libcudart.so.13")
    assert find_cudart(toolkits([old, new])) == new / "lib/libcudart.so.13"
    assert find_cudart(toolkits([old])) is None


def test_what_somebody_named_comes_first_then_wheels_then_the_system(tmp_path: Path) -> None:
    named = make(tmp_path / "named", "bin/nvcc")
    wheel = make(tmp_path / "site/nvidia/cu13", "lib/libnvrtc.so.13")
    older = make(tmp_path / "site/nvidia/cu12", "lib/libnvrtc.so.12")
    on_path = make(tmp_path / "opt/cuda", "bin/nvcc")
    environ = {"CUDA_PATH": str(named), "PATH": str(on_path / "bin")}
    roots = toolkit_roots(environ, [str(tmp_path / "none"), str(tmp_path / "site")])
    assert roots[:4] == [named, wheel, older, on_path]
    assert roots[4:] == [Path("/usr/local/cuda"), Path("/usr")]
