"""Texts of operators, and their names."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from fractune_core.errors import BadRequest
from fractune_core.workloads import (
    DIRECT,
    WINOGRAD2,
    check_workload,
    is_workload_hash,
    joined_workloads,
    parted_workloads,
    workload_hash,
)

GRAPH = {"root_index": 0, "nodes": [{"type": "None"}]}


@pytest.mark.parametrize("graphs", [{DIRECT: GRAPH}, {WINOGRAD2: {"nodes": []}, DIRECT: GRAPH}])
def test_workloads_are_parted_as_they_were_joined(graphs: dict[str, Any]) -> None:
    text = joined_workloads(graphs)
    assert parted_workloads(text) == graphs
    assert next(iter(parted_workloads(text))) == DIRECT


def test_the_order_of_implementations_does_not_count() -> None:
    assert joined_workloads({DIRECT: GRAPH, WINOGRAD2: {}}) == joined_workloads({WINOGRAD2: {}, DIRECT: GRAPH})


def test_an_operator_is_named_by_all_of_its_text() -> None:
    text = joined_workloads({DIRECT: GRAPH})
    name = workload_hash(text)
    assert name == hashlib.sha256(text.encode()).hexdigest()
    check_workload(name, text)
    for other in (text + " ", joined_workloads({DIRECT: GRAPH, WINOGRAD2: GRAPH}), ""):
        with pytest.raises(BadRequest, match=f"workload {name}: its text has another SHA-256"):
            check_workload(name, other)


@pytest.mark.parametrize("name", ["", "f" * 16, "F" * 64, "f" * 63, "f" * 65, "g" * 64, "f" * 64 + "\n"])
def test_only_a_whole_sha256_is_a_name(name: str) -> None:
    assert not is_workload_hash(name)
    with pytest.raises(BadRequest, match="that is not a workload hash"):
        check_workload(name, "")
