"""Workloads and traces of a JSONDatabase have the same names: stock TVM applies a trace to its workload."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from fractune.features.log.jsondatabase import RECORDS, WORKLOADS, write_jsondatabase
from fractune_core.codec.messages import to_proto
from fractune_core.implementations import TRITON, text_of
from fractune_core.pb import fractune_pb2 as pb
from tests.support.client_samples import record
from tests.support.paths import REPOSITORY

OLD = REPOSITORY / "tests" / "assets" / "model_names" / "operators.jsonl.gz"


@pytest.mark.parametrize("model", ["first", "second"])
def test_an_exported_trace_applies_to_its_workload(tmp_path: Path, model: str) -> None:
    """Whichever of two models an old trace was tuned for, while the log has the workload of the first."""
    from tvm.s_tir import Schedule
    from tvm.s_tir import meta_schedule as ms

    lines = gzip.decompress(OLD.read_bytes()).decode().splitlines()
    by_model = {each["model"]: each for each in map(json.loads, lines) if each["operator"] == "layer_norm"}
    name = by_model["first"]["workload_hash"]
    tuned = record(workload_hash=name, trace=by_model[model]["traces"][0])
    parts = [
        pb.ExportRecordsResponse(workload=pb.Workload(workload_hash=name, json=by_model["first"]["workload"])),
        pb.ExportRecordsResponse(record=to_proto(tuned, pb.Record)),
    ]
    assert write_jsondatabase(parts, tmp_path / "db") == 1
    paths = (str(tmp_path / "db" / file) for file in (WORKLOADS, RECORDS))
    (found,) = ms.database.JSONDatabase(*paths, allow_missing=False).get_all_tuning_records()
    sch = Schedule(found.workload.mod, debug_mask="none", error_render_level="none")
    found.trace.apply_to_schedule(sch, remove_postproc=False)
    assert "T.vectorized" in sch.mod.script() or "pragma" in sch.mod.script()


def test_decisions_of_a_triton_kernel_are_no_schedule_of_tvm(tmp_path: Path) -> None:
    decided = record(trace=text_of(TRITON, '[{"kernel":"product/1"}]'))
    assert write_jsondatabase([pb.ExportRecordsResponse(record=to_proto(decided, pb.Record))], tmp_path / "db") == 0
