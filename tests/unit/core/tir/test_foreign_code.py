"""Workloads and traces of others: no step of a schedule brings code, and no workload calls out of itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fractune_core.errors import BadModel
from fractune_core.tir.foreign_code import refuse_foreign_graph, refuse_foreign_steps


def step(kind: str, *attributes: Any) -> list[Any]:
    return [[[kind, ["b0"], list(attributes), []]], []]


@pytest.mark.parametrize(
    "trace",
    [
        step("Annotate", "pragma_auto_unroll_max_step"),
        step("Annotate", "pragma_scope"),
        step("Annotate", "meta_schedule.parallel"),
        step("Annotate", "software_pipeline_stage"),
        step("Bind", "threadIdx.x"),
        step("Bind", "vthread.x"),
        step("TransformLayout", 0, "write", json.dumps({"root_index": 0, "nodes": [{"type": "tirx.IndexMap"}]})),
    ],
    ids=str,
)
def test_steps_of_schedules_are_allowed(trace: list[Any]) -> None:
    refuse_foreign_steps(trace)


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        (step("Annotate", "pragma_import_llvm"), "carries foreign code under 'pragma_import_llvm'"),
        (step("Annotate", "pragma_import_c"), "carries foreign code"),
        (step("Annotate", ["pragma_import_c"]), "carries foreign code"),
        (step("Bind", "threadIdx.x); asm(0"), "binds a loop to 'threadIdx.x); asm(0'"),
        (step("TransformLayout", 0, json.dumps({"nodes": [{"type": "ffi.Module"}]})), "of the kind ffi.Module"),
        (step("TransformLayout", 0, ' {"nodes": [{"type": "ir.Op", "data": "tirx.call_extern"}]}'), "tirx.call_extern"),
        (step("TransformLayout", 0, "{nodes"), "is not a trace"),
        ([], "is not a trace"),
        ([["x"]], "is not a trace"),
        ({}, "is not a trace"),
    ],
    ids=str,
)
def test_steps_with_foreign_code_are_refused(trace: Any, words: str) -> None:
    with pytest.raises(BadModel) as caught:
        refuse_foreign_steps(trace)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        ({"nodes": [{"type": "ffi.Module", "data": ""}]}, "of the kind ffi.Module"),
        ({"nodes": [{"type": "target.Target", "data": {}}]}, "of the kind target.Target"),
        ({"nodes": [{"type": "ir.Op", "data": "tirx.call_llvm_pure_intrin"}]}, "tirx.call_llvm_pure_intrin"),
        ({"nodes": [{"type": "ffi.String", "data": "pragma_import_llvm"}]}, "carries foreign code"),
        ({"nodes": [{"type": "ir.IRModule"}, 3]}, "is not an IRModule as JSON"),
        ({"nodes": {}}, "is not an IRModule as JSON"),
        ([], "is not an IRModule as JSON"),
    ],
    ids=str,
)
def test_a_workload_with_foreign_code_is_refused(graph: Any, words: str) -> None:
    with pytest.raises(BadModel) as caught:
        refuse_foreign_graph(graph)
    assert words in str(caught.value)
