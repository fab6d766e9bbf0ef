"""Names in traces: by position in the place of TVM's."""

from __future__ import annotations

from typing import Any

import pytest

from fractune_core.tir.lookups import Names, by_position

NAMES = Names(
    (
        ("root", "root"),
        ("y_sum", "block_at_1"),
        ("y_mean", "block_at_2"),
        ("y_var_sum", "block_at_3"),
        ("T_layer_norm", "block_at_4"),
        ("matmul_blocked", "matmul_blocked"),
    ),
    (("y", "buffer_at_0"), ("y_weight", "buffer_at_1"), ("y_sum", "buffer_at_2")),
)


def trace(*names: str) -> list[Any]:
    """Lookups, and a decision."""
    return [[["GetSBlock", [], [name, "main"], [f"b{at}"]] for at, name in enumerate(names)], [[0, [4, 16]]]]


@pytest.mark.parametrize(
    ("by_tvms_name", "position"),
    [
        ("y_sum", "block_at_1"),
        ("y_sum_rf", "block_at_1_rf"),
        ("y_sum_rf_init", "block_at_1_rf_init"),
        ("y_var_sum_update", "block_at_3_update"),
        ("T_layer_norm_o", "block_at_4_o"),
        ("y_shared", "buffer_at_0_shared"),
        ("y_weight_reindex_shared.dyn_wmma.matrix_b_o", "buffer_at_1_reindex_shared.dyn_wmma.matrix_b_o"),
        ("y_sum_local", "buffer_at_2_local"),
        ("matmul_blocked", "matmul_blocked"),
        ("root", "root"),
    ],
)
def test_a_name_of_tvms_becomes_the_name_by_position(by_tvms_name: str, position: str) -> None:
    assert by_position(trace(by_tvms_name), NAMES) == trace(position)


def test_other_steps_and_decisions_stay() -> None:
    steps = [["Annotate", ["b0", "y_sum"], ["y_sum"], []], ["GetSBlock", [], ["y_sum", "main"], ["b0"]]]
    renamed, decisions = by_position([steps, [[1, 2]]], NAMES)
    assert renamed == [steps[0], ["GetSBlock", [], ["block_at_1", "main"], ["b0"]]]
    assert decisions == [[1, 2]]


def test_unknown_names_stay_as_they_are() -> None:
    """TVM then says which block is missing."""
    assert by_position(trace("other", "y"), NAMES) == trace("other", "y")


def test_names_by_position_stay() -> None:
    own = Names(tuple((new, new) for _, new in NAMES.blocks), tuple((new, new) for _, new in NAMES.buffers))
    names = ("root", "block_at_1", "block_at_3_rf", "buffer_at_0_shared")
    assert by_position(trace(*names), own) == trace(*names)
