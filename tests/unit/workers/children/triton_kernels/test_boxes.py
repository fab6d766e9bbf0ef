"""Which factors a GPU's copy engine loads, and by which boxes. Triton itself is not needed."""

import importlib.util
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te

from fractune_core.errors import FractuneError
from fractune_workers.children.triton_kernels import compiler
from fractune_workers.children.triton_kernels.compiler import problem_of
from fractune_workers.children.triton_kernels.decisions import Decisions
from fractune_workers.children.triton_kernels.sources import Box, boxes_of, has_boxes
from fractune_workers.children.triton_kernels.sums import sums_of
from tests.support.children.triton_operators import BOXES, OPERATORS, Operator, function_of
from tests.support.paths import REPOSITORY

TILE = Decisions(16, 32, 64, 4, 3, tma=True)


def boxes(operator: Any, dtype: str = "float16") -> tuple[Box | None, Box | None]:
    return boxes_of(sums_of(function_of(operator, dtype)[0]), TILE)


@pytest.mark.parametrize("name", BOXES)
def test_both_factors_or_the_weights_of_an_image_are_boxes(name: str) -> None:
    dtype = "int8" if name == "whole numbers" else "float16"
    found = boxes(BOXES[name], dtype)
    assert [each is not None for each in found] == [name != "padded image", True]


def test_a_box_says_how_its_argument_lies() -> None:
    first, second = boxes(BOXES["batches of more"])
    assert first
    assert (first.argument, first.dtype, first.lengths) == (0, "float16", (1, 1, 16, 64))
    assert (first.extents, first.strides) == ((2, 2, 19, 40), (3 * 19 * 40, 19 * 40, 40, 1))
    assert first.load == "factor.load([(batch // 2), (batch % 2), row, depth]).reshape(16, 64)"
    assert second
    assert (second.argument, second.lengths, second.extents) == (1, (1, 1, 64, 32), (2, 2, 40, 24))


def test_a_factor_that_lies_the_other_way_round_is_turned() -> None:
    first, second = boxes(BOXES["turned factors"])
    assert first
    assert second
    assert (first.extents, first.lengths, first.load) == ((80, 40), (64, 16), "factor.load([depth, row]).T")
    assert (second.extents, second.lengths, second.load) == ((72, 80), (32, 64), "factor.load([column, depth]).T")


def test_a_single_row_has_a_stride_that_the_copy_engine_takes() -> None:
    first, _ = boxes(BOXES["a row of weights"])
    assert first
    assert (first.extents, first.strides) == ((1, 33), (40, 1))


@pytest.mark.parametrize("name", OPERATORS)
def test_strides_that_are_no_multiples_of_16_bytes_leave_pointers(name: str) -> None:
    dtype = "int8" if name == "whole numbers" else "bfloat16"
    sums = sums_of(function_of(OPERATORS[name], dtype)[0])
    fitting = {
        "bias and relu": (True, False),
        "gelu": (True, True),
        "residual": (True, False),  # of a single row
        "convolution by steps of 2": (False, True),
    }
    expected = fitting.get(name, (False, False))
    assert tuple(each is not None for each in boxes_of(sums, TILE)) == expected
    assert has_boxes(sums) == any(expected)


def parts_of_batches(batches: int) -> Any:
    """Two of three elements of each batch are multiplied, so that no batches are one."""
    shapes = ((*[3] * batches, 16, 16), (*[3] * batches, 16, 16))

    def compute(a: Any, b: Any) -> Any:
        k = te.reduce_axis((0, 16), name="k")
        return te.compute(
            (*[2] * batches, 16, 16),
            lambda *at: te.sum(a[(*at[:-1], k)] * b[(*at[:-2], k, at[-1])], axis=k),
        )

    return Operator(shapes, lambda bb, a, b: bb.emit_te(compute, a, b), np.matmul)


@pytest.mark.parametrize(("batches", "fits"), [(3, True), (4, False)])
def test_a_box_has_at_most_five_dimensions(batches: int, *, fits: bool) -> None:
    assert [each is not None for each in boxes(parts_of_batches(batches))] == [fits, fits]


def test_windows_that_overlap_are_no_box() -> None:
    def compute(x: Any, w: Any) -> Any:
        r, c = te.reduce_axis((0, 3), name="r"), te.reduce_axis((0, 8), name="c")
        return te.compute((18, 16), lambda i, j: te.sum(x[i + r, c] * w[r, c, j], axis=[r, c]))

    windows = Operator(((20, 8), (3, 8, 16)), lambda bb, x, w: bb.emit_te(compute, x, w), np.matmul)
    assert [each is not None for each in boxes(windows)] == [False, True]


def test_decisions_without_tma_have_no_boxes() -> None:
    sums = sums_of(function_of(BOXES["turned factors"], "float16")[0])
    assert boxes_of(sums, Decisions(16, 32, 64, 4, 3)) == (None, None)


@pytest.mark.parametrize(("arch", "wanted"), [("sm_80", False), ("sm_89", False), ("sm_90", True), ("sm_120", True)])
def test_only_gpus_of_capability_9_and_later_have_the_engine(arch: str, *, wanted: bool) -> None:
    target = tvm.target.Target({"kind": "cuda", "arch": arch, "max_shared_memory_per_block": 49152})
    sums = sums_of(function_of(BOXES["turned factors"], "float16")[0])
    assert problem_of(sums, target).tma == wanted
    odd = sums_of(function_of(OPERATORS["product"], "float16")[0])
    assert not problem_of(odd, target).tma


def _with_triton(folder: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "triton").mkdir()
    (folder / "triton" / "__init__.py").touch()
    about = folder / f"triton-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: triton\nVersion: {version}\n")
    monkeypatch.syspath_prepend(folder)


def test_a_machine_without_triton_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert not compiler.is_installed()
    with pytest.raises(
        FractuneError, match=r"has no Triton, and .* with Triton 3\.9\.0; pip install 'fractune\[triton\]'"
    ):
        compiler.load_triton()


def test_another_version_of_triton_is_skipped_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Hosts with PyTorch have one, with which each build would fail."""
    _with_triton(tmp_path, "3.6.0", monkeypatch)
    assert not compiler.is_installed()
    assert not compiler.is_installed()
    assert caplog.messages == ["Triton 3.6.0 is skipped: its kernels need Triton 3.9.0; pip install 'fractune[triton]'"]
    with pytest.raises(FractuneError, match=r"has Triton 3\.6\.0, and the candidate is built with Triton 3\.9\.0"):
        compiler.load_triton()


def test_the_version_is_that_of_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    assert f"triton=={compiler.VERSION}" in tomllib.loads(text)["project"]["optional-dependencies"]["triton"]
    _with_triton(tmp_path, compiler.VERSION, monkeypatch)
    assert compiler.is_installed()
