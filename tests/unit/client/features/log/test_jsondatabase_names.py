"""Workloads and traces of a JSONDatabase have the same names: stock TVM applies a trace to its workload."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import te, topi
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from fractune.features.log.jsondatabase import RECORDS, WORKLOADS, read_jsondatabase, write_jsondatabase
from fractune_core.codec.messages import from_proto, to_proto
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import TuningRecord
from fractune_core.tir.canonical import read_graph
from fractune_core.workloads import DIRECT, NO_DECISIONS, TRITON, check_workload, parted_workloads, text_of
from fractune_server.store.records.rows import check_record
from tests.support.client_samples import record
from tests.support.samples import DEVICE, granted

TARGET = {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}
PLACE = pb.OfferedShare(device=to_proto(DEVICE, pb.Device), granted=to_proto(granted(1), pb.GrantedShare))


def stock(folder: Path, name: str) -> None:
    """A JSONDatabase as stock TVM writes it."""
    folder.mkdir()
    paths = [str(folder / file) for file in (WORKLOADS, RECORDS)]
    database = ms.database.JSONDatabase(*paths)
    x = te.placeholder((16, 64), "float32", name)
    mod = tvm.IRModule({"main": te.create_prim_func([x, topi.nn.relu(topi.sum(x, axis=1))])})
    sch = Schedule(mod)
    block = sch.get_sblock(f"{name}_red")
    factored = sch.rfactor(sch.split(sch.get_loops(block)[-1], factors=[None, 8])[1], factor_axis=1)
    sch.vectorize(sch.get_loops(sch.get_sblock(f"{name}_red_rf"))[-1])
    assert sch.get(factored).name_hint == f"{name}_red_rf"
    workload = database.commit_workload(mod)
    arguments = ms.arg_info.ArgInfo.from_entry_func(mod)
    made = ms.database.TuningRecord(sch.trace, workload, [1e-3], tvm.target.Target(TARGET), arguments)
    database.commit_tuning_record(made)


def imported(folder: Path) -> tuple[pb.Workload, TuningRecord]:
    workload, found = read_jsondatabase(folder, PLACE)
    return workload.workload, from_proto(TuningRecord, found.record)


def applied(graph: Any, trace: Any) -> str:
    sch = Schedule(graph, debug_mask="none", error_render_level="none")
    trace(sch)
    return str(sch.mod.script())


def test_stock_databases_of_two_models_are_imported_as_one_operator_and_exported_again(tmp_path: Path) -> None:
    """Whatever the models called its blocks."""
    from tvm.s_tir.schedule import Trace

    for name in ("lv13", "x"):
        stock(tmp_path / name, name)
    (workload, one), (same, other) = (imported(tmp_path / name) for name in ("lv13", "x"))
    assert workload == same
    assert (one.trace, one.candidate_id) == (other.trace, other.candidate_id)
    check_workload(workload.workload_hash, workload.json)
    check_record(one)
    module = read_graph(parted_workloads(workload.json)[DIRECT])
    scheduled = applied(module, lambda sch: Trace.apply_json_to_schedule(json.loads(one.trace), sch))
    assert "T.vectorized" in scheduled
    parts = [pb.ExportRecordsResponse(workload=workload), pb.ExportRecordsResponse(record=to_proto(one, pb.Record))]
    assert write_jsondatabase(parts, tmp_path / "db") == 1
    paths = (str(tmp_path / "db" / file) for file in (WORKLOADS, RECORDS))
    (found,) = ms.database.JSONDatabase(*paths, allow_missing=False).get_all_tuning_records()
    again = applied(found.workload.mod, lambda sch: found.trace.apply_to_schedule(sch, remove_postproc=False))
    assert again == scheduled


@pytest.mark.parametrize(
    "trace", [text_of(TRITON, '[{"kernel":"product/1"}]'), text_of("packed4x16units", NO_DECISIONS)]
)
def test_what_is_no_schedule_of_tvm_stays_out(trace: str, tmp_path: Path) -> None:
    decided = record(trace=trace)
    assert write_jsondatabase([pb.ExportRecordsResponse(record=to_proto(decided, pb.Record))], tmp_path / "db") == 0
