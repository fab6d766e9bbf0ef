"""Names in traces: by position, of the model at hand, and of another one."""

from __future__ import annotations

from typing import Any

import pytest

from fractune_core.tir.lookups import by_position
from fractune_core.tir.positions import Names

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


def trace(*names: str, at_the_end: tuple[str, ...] = ()) -> list[Any]:
    """Lookups of the design space, and of the postprocs."""

    def lookups(looked_up: tuple[str, ...]) -> list[Any]:
        return [["GetSBlock", [], [name, "main"], [f"b{at}"]] for at, name in enumerate(looked_up)]

    return [[*lookups(names), ["EnterPostproc", [], [], []], *lookups(at_the_end)], [[0, [4, 16]]]]


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


def test_names_by_position_are_not_taken_for_a_models() -> None:
    crossed = Names((("root", "root"), ("block_at_2", "block_at_1"), ("block_at_1", "block_at_2")), ())
    assert by_position(trace("block_at_1", "block_at_1_rf"), crossed) == trace("block_at_1", "block_at_1_rf")


@pytest.mark.parametrize("model", ["x", "lv13", "y_var", "T", "input_ids"])
def test_names_of_another_model_are_told_by_their_order(model: str) -> None:
    sums = (f"{model}_sum", f"{model}_mean", f"{model}_var_sum")
    theirs = trace(*sums, "T_layer_norm", at_the_end=("root", f"{model}_sum_rf", f"{model}_sum"))
    ours = trace(*(f"block_at_{at}" for at in range(1, 5)), at_the_end=("root", "block_at_1_rf", "block_at_1"))
    assert by_position(theirs, NAMES) == ours


def test_a_block_that_is_not_looked_up_leaves_a_gap() -> None:
    theirs = trace("lv_mean", "lv_var_sum", at_the_end=("lv_sum", "lv_var_sum_init"))
    assert by_position(theirs, NAMES) == trace("block_at_2", "block_at_3", at_the_end=("block_at_1", "block_at_3_init"))


def test_buffers_of_another_model_are_told_by_their_order() -> None:
    theirs = trace("lv_sum", at_the_end=("lv_reindex_shared.dyn", "lv7_reindex_shared.dyn_o"))
    ours = trace("block_at_1", at_the_end=("buffer_at_0_reindex_shared.dyn", "buffer_at_1_reindex_shared.dyn_o"))
    assert by_position(theirs, NAMES) == ours


def test_more_names_than_blocks_stay_as_they_are() -> None:
    """TVM then says which block is missing."""
    theirs = trace(*(f"other{at}" for at in range(9)))
    assert by_position(theirs, NAMES) == theirs
