"""The code of a measured schedule: built again from the log, in the builder's sandbox."""

from __future__ import annotations

import json

import pytest
import tvm
from tvm import te

from fractune.cli import main
from fractune.features.log import code
from fractune.features.log.code import decisions_text
from fractune_core.codec.messages import to_proto
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import UNTUNED, Status
from fractune_core.workloads import DIRECT
from fractune_workers.children.tvm_api.traces import Workload, write_trace, write_workloads
from tests.support.client_samples import record
from tests.support.processes.cli_process import only_line
from tests.support.processes.scripted_server import ScriptedServer


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
