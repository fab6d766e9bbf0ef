"""A JSONDatabase names blocks as TVM does: stock TVM applies its traces to the functions that it has lowered itself."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from fractune.log_io.jsondatabase import RECORDS, WORKLOADS, write_jsondatabase
from fractune_core.convert import record_to_proto
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.tir.lookups import by_position
from fractune_core.tir.positions import names_of
from tests.support.client_samples import record
from tests.support.paths import REPOSITORY

OLD = REPOSITORY / "tests" / "assets" / "model_names" / "operators.jsonl.gz"


def test_an_exported_trace_has_the_names_of_its_workload(tmp_path: Path) -> None:
    from tvm.s_tir import Schedule
    from tvm.s_tir import meta_schedule as ms

    operators = [json.loads(line) for line in gzip.decompress(OLD.read_bytes()).decode().splitlines()]
    operator = next(each for each in operators if each["operator"] == "layer_norm")
    workload = ms.database.Workload.from_json(json.loads(operator["workload"]))
    old = json.loads(operator["traces"][0])
    new = by_position(old, names_of(workload.mod["main"]))
    assert new != old
    parts = [
        pb.ExportRecordsResponse(
            workload=pb.Workload(workload_hash=operator["workload_hash"], json=operator["workload"])
        ),
        pb.ExportRecordsResponse(
            record=record_to_proto(record(workload_hash=operator["workload_hash"], trace=json.dumps(new)))
        ),
    ]
    assert write_jsondatabase(parts, tmp_path / "db") == 1
    paths = (str(tmp_path / "db" / name) for name in (WORKLOADS, RECORDS))
    (found,) = ms.database.JSONDatabase(*paths, allow_missing=False).get_all_tuning_records()
    sch = Schedule(workload.mod, debug_mask="none", error_render_level="none")
    found.trace.apply_to_schedule(sch, remove_postproc=False)
    looked_up = [str(step.attrs[0]) for step in found.trace.insts if step.kind.name == "GetSBlock"]
    assert looked_up == [attributes[0] for kind, _, attributes, _ in old[0] if kind == "GetSBlock"]
