"""When a refused model is cut, and when not."""

from __future__ import annotations

from pathlib import Path

import pytest

from fractune.features.parts.parts import may_cut, with_remedy
from fractune.features.tune import shape_jobs
from fractune_core.errors import BadModel
from fractune_core.jobs import JobSpec
from fractune_core.operators import node_text, refusal_text
from tests.support.parts import write_middle

REFUSED = BadModel(refusal_text(17, node_text("cdist", "", "com.microsoft.CDist"), "it is not known"))


def spec(shares: str) -> JobSpec:
    return JobSpec.requested("m.onnx", shares)


def test_a_refused_node_is_cut_out_for_cpu_shares_only() -> None:
    assert may_cut(spec("cpu:1"), REFUSED)
    assert not may_cut(spec("mps:50"), REFUSED)
    assert not may_cut(spec("cpu:1"), BadModel("the file is torn"))


def test_only_a_node_that_could_be_a_part_has_a_remedy() -> None:
    assert str(with_remedy(spec("cpu:1"), REFUSED, "or do that")) == f"{REFUSED}; or do that"
    assert with_remedy(spec("mps:50"), REFUSED, "or do that") is REFUSED


def test_a_node_that_is_refused_though_it_was_cut_out_ends_the_tuning(tmp_path: Path) -> None:
    again = BadModel(f"{REFUSED}, again")
    with pytest.raises(BadModel, match="again"):
        shape_jobs._cut(write_middle(tmp_path / "m.onnx"), spec("cpu:1"), [REFUSED, again], tmp_path)
