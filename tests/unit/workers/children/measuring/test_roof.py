"""The roof of this machine's cores, measured for real: is it plausible, and does the compiler leave its work in?"""

from __future__ import annotations

import os

import pytest

from fractune_core.roofs import Roof
from fractune_workers.children.measuring import roof as roof_module
from fractune_workers.children.measuring.anchor import ANCHOR_FLOPS, matmul_anchor
from fractune_workers.children.measuring.roof import cpu_roof
from fractune_workers.children.tvm_api.processor import cpu_processor
from fractune_workers.children.tvm_api.target import default_target

# TVM's own builder calls what TVM has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:build is deprecated:DeprecationWarning")

TARGET, PROCESSOR = default_target(1), cpu_processor()
WIDEST_GFLOPS = 16 * 2 * 2 * 8.0
"""of a core: 16 numbers a vector, 2 operations each, 2 units, at 8 GHz"""


@pytest.fixture(scope="module")
def roof() -> Roof:
    return cpu_roof(TARGET, PROCESSOR)


def test_the_peak_is_above_any_product_of_matrices_and_below_what_silicon_does(roof: Roof) -> None:
    product_gflops = ANCHOR_FLOPS / matmul_anchor(TARGET, PROCESSOR)() / 1e9
    assert product_gflops <= roof.gflops <= WIDEST_GFLOPS * len(os.sched_getaffinity(0))


def test_the_bandwidth_is_that_of_a_memory(roof: Roof) -> None:
    assert 0.2 < roof.gb_per_s < 5000
    assert roof.cache_bytes > 0


def test_steps_that_are_asked_for_are_taken(roof: Roof, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that could fold the chains would do eight times the steps in the same time."""
    monkeypatch.setattr(roof_module, "_STEPS", 8 * roof_module._STEPS)
    assert cpu_roof(TARGET, PROCESSOR).gflops < 4 * roof.gflops
