"""Logs as files: JSON lines, CSV and MetaSchedule's databases."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tvm
from hypothesis import given, strategies as st
from tvm import te, topi
from tvm.s_tir import Schedule, meta_schedule as ms

from fractune.cli import main
from fractune.features.log import code
from fractune.features.log.code import decisions_text
from fractune.features.log.jsondatabase import RECORDS, WORKLOADS, read_jsondatabase, write_jsondatabase
from fractune.features.log.log import csv_row, read_jsonl, write_csv
from fractune.features.log.match import MatchResult
from fractune.text.output_files import as_cell, check_writable, replacing
from fractune_core.codec.messages import from_proto, to_proto
from fractune_core.errors import BadRequest, StateUnusable
from fractune_core.operators import DIRECT, NO_DECISIONS, TRITON, check_workload, parted_workloads, text_of
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import UNTUNED, Disturbance, Status, TimingPolicy, TuningRecord
from fractune_core.targets import target_key
from fractune_core.tir.canonical import read_graph
from fractune_server.store.records.rows import check_record
from fractune_workers.children.tvm_api.traces import Workload, write_trace, write_workloads
from tests.support.client_results import tuned_job
from tests.support.client_samples import record
from tests.support.processes.cli_process import only_line
from tests.support.processes.scripted_server import ScriptedServer
from tests.support.samples import DEVICE, granted


@pytest.mark.parametrize(
    "line", ["{", "[]", "1", "{}", '{"record": {}}', '{"workload": 3}', '{"record": {"kind": "x"}}']
)
def test_a_line_that_is_none_of_ours_is_named(tmp_path: Path, line: str) -> None:
    good = json.dumps({"record": record().to_json()})
    path = tmp_path / "log.jsonl"
    path.write_text(f"{good}\n\n{line}\n")
    with pytest.raises(BadRequest, match=r"log\.jsonl:3: .*nothing was imported"):
        list(read_jsonl(path))


def test_files_that_are_no_text_or_not_there_are_told(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, says in (("binary", "it is not text"), ("none", "cannot read .*: No such file")):
        with pytest.raises(BadRequest, match=says):
            list(read_jsonl(tmp_path / name))


def test_a_line_that_no_server_takes_is_named_and_not_read_to_its_end(tmp_path: Path) -> None:
    good, long = json.dumps({"record": record().to_json()}), json.dumps({"record": record(trace="x" * 2**24).to_json()})
    (tmp_path / "log.jsonl").write_text(f"{good}\n{long}\n")
    with pytest.raises(BadRequest, match=r"log\.jsonl:2: this line is longer than the 4 MiB .*nothing was imported"):
        list(read_jsonl(tmp_path / "log.jsonl"))
    with pytest.raises(BadRequest, match=r"/dev/zero:1: this line is longer"):
        list(read_jsonl(Path("/dev/zero")))


def test_csv_is_flat_and_complete(tmp_path: Path) -> None:
    failed = record("r2", status=Status.RUN_TIMEOUT, run_secs=(), cause='late, very "late"')
    parts = [pb.ExportRecordsResponse(record=to_proto(each, pb.Record)) for each in (record("r1"), failed)]
    assert write_csv(parts, tmp_path / "log.csv") == 2
    with (tmp_path / "log.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert float(first["median_s"]) == 1.1e-3
    assert first["run_secs"] == "0.001;0.0011;0.0012"
    assert first["device"] == "cpu-rocketlake-2u-24gib-l2.1280kib"
    assert (second["status"], second["cause"], second["median_s"]) == ("run_timeout", 'late, very "late"', "")


def test_csv_says_what_disturbed_a_measurement_and_how_many_run_times_chose() -> None:
    disturbance = Disturbance(0.5, 0.1, 0.05, 0.0, 0.02, preemptions=3, throttles=0, throttled_s=0.0)
    row = csv_row(record(disturbance=disturbance, attempts=3))
    assert (row["lost"], row["attempts"]) == (0.2, 3)
    assert row["disturbance"].startswith("wall_s=0.5;off_core_s=0.1;steal_s=0.05;")
    assert (csv_row(record())["lost"], csv_row(record())["disturbance"]) == ("", "")
    policy = TimingPolicy("validation", warmups=1, repeats=3, min_repeat_ms=10.0, choosing=1)
    row = csv_row(record(policy=policy))
    assert (row["choosing"], row["run_secs"], row["median_s"]) == (1, "0.001;0.0011;0.0012", pytest.approx(1.15e-3))


def test_every_cell_is_one_value() -> None:
    """A field that is an object or a list needs a text of its own in `csv_row`, or is left out."""
    disturbance = Disturbance(0.5, 0.1, 0.05, 0.0, 0.02, preemptions=3, throttles=0, throttled_s=0.0)
    for row in (csv_row(record(disturbance=disturbance, throttled_ns={"sw_thermal": 5})), csv_row(record())):
        assert {name for name, cell in row.items() if not isinstance(cell, str | int | float)} == set()


def test_a_file_is_replaced_whole_or_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("old")

    def fail_in_the_middle() -> None:
        with replacing(path) as file:
            file.write("half")
            raise KeyError("the middle")

    with pytest.raises(KeyError):
        fail_in_the_middle()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(StateUnusable, match="cannot write"), replacing(path / "f"):
        pass


@given(cores=st.integers(1, 512), features=st.permutations(["+avx", "-amx", "+fma"]))
def test_a_targets_identity_does_not_depend_on_cores_or_order(cores: int, features: list[str]) -> None:
    text = json.dumps({"kind": "llvm", "num-cores": cores, "mattr": features, "tag": ""})
    assert target_key(text) == '{"kind":"llvm","mattr":["+avx","+fma","-amx"]}'


@pytest.mark.parametrize("name", ["", "file/table.csv", "file/deeper/table.csv"])
def test_a_file_that_cannot_be_written_is_told_beforehand(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StateUnusable, match=r"--csv .*; pass "):
        check_writable("--csv", tmp_path / name)


def test_a_folder_that_refuses_new_files_is_noticed_beforehand() -> None:
    with pytest.raises(
        StateUnusable, match=r"--out /proc/x: the folder /proc cannot be written \(.*\); pass another path"
    ):
        check_writable("--out", Path("/proc/x"))


def test_folders_on_the_way_are_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "deeper" / "f"
    check_writable("--csv", path)
    assert not path.parent.exists()
    with replacing(path) as file:
        file.write("new")
    assert path.read_text() == "new"


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r"])
def test_a_text_of_a_csv_is_no_formula(tmp_path: Path, begin: str) -> None:
    named = record("r1", operator=f"{begin}cmd|'/C calc'!A0")
    write_csv([pb.ExportRecordsResponse(record=to_proto(named, pb.Record))], tmp_path / "log.csv")
    with (tmp_path / "log.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["operator"] == f"'{named.operator}"
    assert float(row["median_s"]) == 1.1e-3


def test_numbers_of_a_csv_stay_numbers() -> None:
    assert [as_cell(value) for value in (-1.5, -3, None, "1;-2", "")] == [-1.5, -3, None, "1;-2", ""]


def test_disturbed_times_choose_nothing_and_are_the_most_that_the_model_takes() -> None:
    timed = tuned_job().results[0].at_load
    (note, *_) = MatchResult("cpu:1", (), None, timed, 0.75).table.notes
    assert note == (
        "cpu:1: other programs had 0.75 cores when the model was timed, so no variant is known to be best, and the "
        "model takes <= 4.40 ms in a loop; tune it again on a quieter machine"
    )
    assert MatchResult("cpu:1", (), None, timed, 0.1).table.notes[0].startswith("cpu:1, best for latency: ")


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


def test_stock_databases_of_two_models_are_imported_as_one_operator_and_exported_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    steps, decisions = json.loads(one.trace)
    steps[0] = ["GetSBlock", [], ["not_there", "main"], steps[0][3]]
    foreign = replace(one, trace=json.dumps([steps, decisions]), candidate_id="foreign")
    parts.append(pb.ExportRecordsResponse(record=to_proto(foreign, pb.Record)))
    assert write_jsondatabase(parts, tmp_path / "db2") == 1
    assert capsys.readouterr().err == "note: stock TVM cannot apply 1 of 2 schedules; they stay out\n"


@pytest.mark.parametrize(
    "trace", [text_of(TRITON, '[{"kernel":"product/1"}]'), text_of("packed4x16units", NO_DECISIONS)]
)
def test_what_is_no_schedule_of_tvm_stays_out(trace: str, tmp_path: Path) -> None:
    decided = record(trace=trace)
    assert write_jsondatabase([pb.ExportRecordsResponse(record=to_proto(decided, pb.Record))], tmp_path / "db") == 0


@pytest.mark.parametrize(
    ("candidate", "text"),
    [
        (UNTUNED, "untuned"),
        ('[[["SamplePerfectTile",[],[],[]],["SampleCategorical",[],[],[]]],[[0,[4,8]],[1,2]]]', "tile 4x8, choice 2"),
        ('winograd2:[[["SampleComputeLocation",[],[],[]]],[[0,-1]]]', "place -1"),
        ("packed4x16units:[]", "no decisions"),
        ("triton:[8, 16]", "[8, 16]"),
        ("[[],[[9,1]]]", "[[],[[9,1]]]"),
        ("\x1b[31m", "\\x1b[31m"),
        ("[" * 100_000, "[" * 400),
    ],
)
def test_decisions_are_one_line_whatever_was_imported(candidate: str, text: str) -> None:
    assert decisions_text(candidate) == text


def test_the_program_of_a_schedule_is_built_again(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    given = te.placeholder((64,), name="given")
    mod = tvm.IRModule(
        {"main": te.create_prim_func([given, te.compute((64,), lambda i: given[i] * 2.0, name="twice")])}
    )
    workload = Workload.of(mod)
    schedule = tvm.s_tir.Schedule(workload.mod)
    (loop,) = schedule.get_loops(schedule.get_sblock("block_at_1"))
    schedule.split(loop, schedule.sample_perfect_tile(loop, 2, decision=[16, 4]))
    server.workload = write_workloads({DIRECT: workload})
    tried = record("r1", trace=write_trace(schedule.trace), target='{"kind":"llvm","mcpu":"x86-64-v3","num-cores":1}')
    server.records = [to_proto(each, pb.Record) for each in (tried, record("r2", status=Status.CRASHED, run_secs=()))]
    at = ["--server", server.address]
    assert main(["log", "code", "r1", "--json", *at]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["decisions"] == "tile 16x4"
    assert "T.grid(16, 4)" in found["tir"].replace("T.int64(16), T.int64(4)", "16, 4")
    assert "vmulps" in found["assembly"] or "vaddps" in found["assembly"]
    assert main(["log", "code", "r2", *at]) != 0
    assert "is of a failure" in only_line(capsys.readouterr().err)


def test_without_tvm_the_command_says_what_to_install(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code, "can_rebuild", lambda: False)
    at = ["--server", server.address]
    assert main(["log", "code", *at]) == 9
    assert "no record passes" in only_line(capsys.readouterr().err)
    server.records = [to_proto(record("r1"), pb.Record)]
    assert main(["log", "code", *at]) == 1
    assert "install 'fractune[local]'" in only_line(capsys.readouterr().err)
    assert main(["log", "code", "r9", *at]) == 9
    assert "'r9' is not among the 1 that pass" in only_line(capsys.readouterr().err)
