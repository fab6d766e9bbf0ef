"""Finding a CUDA toolkit: wheels, a named folder, the distribution's; never parts of two."""

from __future__ import annotations

from pathlib import Path

import pytest

from fractune_core.cuda import Toolkit, find_cudart, toolkit_roots, toolkits

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


def test_an_nvcc_that_cannot_be_run_is_none(tmp_path: Path) -> None:
    make(tmp_path, "lib/libcudart.so.13", "bin/nvcc")
    (tmp_path / "bin/nvcc").chmod(0o644)
    assert toolkits([tmp_path])[0].nvcc is None


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


def test_nothing_named_is_nothing_looked_at(tmp_path: Path) -> None:
    assert toolkit_roots({"CUDA_HOME": "", "PATH": ""}, [str(tmp_path)]) == [Path("/usr/local/cuda"), Path("/usr")]


def test_a_root_that_is_named_twice_is_one_toolkit(tmp_path: Path) -> None:
    root = make(tmp_path, "bin/nvcc")
    assert len(toolkits([root, root])) == 1
