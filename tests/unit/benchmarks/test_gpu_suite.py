"""The suite for a GPU as a machine without one can test it: time, resuming, exit codes, and the end of its daemons."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gpu import __main__ as suite_main
from benchmarks.gpu import command, tidy
from benchmarks.gpu.gather import gather
from benchmarks.gpu.part import Finding, Part, PartFailed, Slice
from benchmarks.gpu.parts import NAMED, PARTS
from benchmarks.gpu.suite import Plan, failure_file, result_file, run_plan, time_for
from benchmarks.gpu.tidy import end_daemons, private_folder
from fractune_core.cuda import PROGRAM
from fractune_core.errors import ShareUnavailable
from fractune_workers.gpu.nvml import Gpu
from tests.support.hardware.simulated_mps import H200, installed_program
from tests.support.paths import REPOSITORY
from tests.support.processes.redis_process import wait_until
from tests.support.processes.worker_processes import alive

SCRIPT = REPOSITORY / "scripts" / "gpu_suite"
HAS_DRIVER = Path("/proc/driver/nvidia/version").exists()

Run = Callable[[Slice], Finding]


def part(name: str, run: Run, full_s: float = 60.0) -> Part:
    return Part(name, f"how is {name}?", full_s, run)


def good(_given: Slice) -> Finding:
    return Finding("2.0x (bar 1)", {"ratio": 2.0})


def bad(_given: Slice) -> Finding:
    raise PartFailed("it never began")


def half_done(_given: Slice) -> Finding:
    return Finding("1 of 2", {"ratio": 0.5}, ("the other half did not run",))


def mistaken(_given: Slice) -> Finding:
    raise KeyError("settings")


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., int]:
    """Run these parts; results go to `out` in the test's folder."""

    def run_these(*parts: Part, again: bool = False, total_s: float | None = None) -> int:
        return run_plan(Plan(parts, again, total_s, tmp_path / "out"), H200, tmp_path)

    return run_these


def last_lines(capsys: pytest.CaptureFixture[str], count: int) -> list[str]:
    return capsys.readouterr().out.splitlines()[-count:]


def test_every_part_fits_in_ten_minutes_and_has_a_name_of_its_own() -> None:
    names = ["look", "shares", "operator", "noise", "matrix", "vs_stock", "faults", "tests"]
    assert [each.name for each in PARTS] == names
    longest_end_s = command._STOP_TIMEOUT_S + tidy._END_TIMEOUT_S
    assert all(each.full_s + longest_end_s < 510 for each in (*PARTS, *NAMED)), "a lent host ends a command after 600 s"


def test_what_a_failed_part_logged_is_kept_beside_the_results(run: Callable[..., int], tmp_path: Path) -> None:
    def logging(given: Slice) -> Finding:
        command.python(given, "-c", "import sys; print('said'); sys.exit('Traceback: why')")
        (given.private / "stack" / "logs").mkdir(parents=True)
        (given.private / "stack" / "logs" / "server.log").write_text("x" * (1 << 20) + "the end")
        (given.private / "stack" / "records.db").write_text("not a log")
        raise PartFailed("it broke")

    assert run(part("broken", logging), part("good", good)) == 1
    assert not (tmp_path / "out" / "logs" / "good").exists(), "logs of other parts"
    kept = tmp_path / "out" / "logs" / "broken"
    assert {str(path.relative_to(kept)) for path in kept.rglob("*") if path.is_file()} == {
        "said/000.log",
        "stack/logs/server.log",
    }
    said = (kept / "said" / "000.log").read_text()
    assert "said\n" in said
    assert said.endswith("Traceback: why\n")
    server = (kept / "stack" / "logs" / "server.log").read_text()
    assert server.endswith("the end")
    assert len(server) == 256 << 10


def test_without_a_limit_each_part_takes_what_it_needs() -> None:
    assert [time_for(PARTS[number:], None) for number in range(len(PARTS))] == [each.full_s for each in PARTS]


@given(st.floats(0, 7200))
def test_the_time_left_is_divided_among_the_parts_that_are_left(total_s: float) -> None:
    waiting, left_s = list(PARTS), total_s
    while waiting:
        budget_s = time_for(waiting, left_s)
        assert 0 <= budget_s <= waiting[0].full_s
        left_s -= budget_s
        waiting = waiting[1:]
    assert left_s >= -1e-6
    enough = sum(each.full_s for each in PARTS)
    assert left_s == pytest.approx(max(0.0, total_s - enough), abs=1e-6), "no time is kept back"


def test_what_a_part_leaves_is_there_for_the_next() -> None:
    assert time_for([part("a", good), part("b", good)], 90.0) == 45.0
    assert time_for([part("b", good)], 89.0) == 60.0
    assert time_for([part("b", good)], -3.0) == 0.0


def test_all_good(run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(part("a", good), part("b", good)) == 0
    assert last_lines(capsys, 2) == ["a: 2.0x (bar 1)", "b: 2.0x (bar 1)"]
    told = json.loads((tmp_path / "out" / "a.json").read_text())
    assert (told["part"], told["ratio"], told["faults"], told["gpu"]["name"]) == ("a", 2.0, [], H200.name)
    assert told["machine"]["cores"] == os.cpu_count()


def test_less_time_is_said(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[float] = []

    def note(given: Slice) -> Finding:
        seen.append(given.budget_s)
        assert 0 < given.left_s <= given.budget_s
        return good(given)

    run(part("a", note), total_s=30.0)
    assert seen == [pytest.approx(30.0, abs=1.0)]
    assert "of the 60 s for all of its work: it does less" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (bad, "a: FAILED: it never began"),
        (half_done, "a: FAILED: 1 of 2; the other half did not run"),
        (mistaken, "a: FAILED: KeyError: 'settings'"),
    ],
)
def test_a_part_that_fails_does_not_keep_the_others_from_running(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: Run, says: str
) -> None:
    assert run(part("a", fault), part("b", good)) == 1
    assert last_lines(capsys, 2) == [says, "b: 2.0x (bar 1)"]
    assert not (tmp_path / "out" / "a.json").exists()
    assert json.loads((tmp_path / "out" / "a.failed.json").read_text())["faults"]


def test_what_is_there_is_skipped_and_what_failed_is_run_again(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(part("a", good), part("b", bad)) == 1
    assert run(part("a", bad), part("b", good)) == 0
    said = capsys.readouterr().out
    assert "== a: skipped, " in said
    assert said.splitlines()[-2:] == ["a: 2.0x (bar 1)", "b: 2.0x (bar 1)"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.json", "b.json"]


def test_a_part_that_is_named_runs_again(run: Callable[..., int], tmp_path: Path) -> None:
    only = part("a", good)
    assert run(only) == 0
    assert run(part("a", bad), again=True) == 1
    assert not result_file(tmp_path / "out", only).exists(), "an old result does not pass for a new one"
    assert failure_file(tmp_path / "out", only).exists()


def test_a_part_goes_on_with_what_it_had_not_done(run: Callable[..., int], tmp_path: Path) -> None:
    worked: list[str] = []
    late = [True, False, False]

    def piece(name: str) -> dict[str, str]:
        worked.append(name)
        return {"name": name}

    def in_pieces(given: Slice) -> Finding:
        first = given.once("mps:25", lambda: piece("first"))
        if late.pop(0):
            raise PartFailed("its time is over")
        return Finding("both", {"found": [first, given.once("second", lambda: piece("second"))]})

    only = part("a", in_pieces)
    assert run(only, again=True) == 1
    assert run(only, again=True) == 0
    assert worked == ["first", "second"]
    assert json.loads(result_file(tmp_path / "out", only).read_text())["found"] == [
        {"name": "first"},
        {"name": "second"},
    ]
    assert run(only, again=True) == 0
    assert worked == ["first", "second"] * 2, "one that is done and named begins anew"


def test_all_results_come_in_one_file_and_the_longest_logs_are_left_out(tmp_path: Path) -> None:
    out, file = tmp_path / "out", tmp_path / "results.tar.gz"
    for name, contents in (("a.json", b"{}"), ("logs/a/short.log", b"short"), ("logs/a/long.log", os.urandom(100_000))):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(contents)
    assert gather(out, file, most_bytes=50_000) == ["logs/a/long.log"]
    assert file.stat().st_size < 50_000
    with tarfile.open(file) as archive:
        assert archive.getnames() == ["a.json", "logs/a/short.log"]
    assert gather(out, file) == []


def test_a_torn_result_is_none(run: Callable[..., int], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.json").write_text('{"part": "a", ')
    assert run(part("a", good)) == 0
    assert json.loads((tmp_path / "out" / "a.json").read_text())["ratio"] == 2.0


@pytest.mark.skipif(HAS_DRIVER, reason="there is an NVIDIA driver here")
def test_without_a_gpu_it_ends_at_once_with_one_clear_line(tmp_path: Path) -> None:
    began = time.monotonic()
    ended = subprocess.run(
        [SCRIPT, "--out", str(tmp_path / "out"), "--minutes", "30"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHON": sys.executable},
    )
    assert ended.returncode == 4
    (line,) = ended.stderr.splitlines()
    assert line.startswith("gpu_suite: no GPU here: ")
    assert "NVIDIA" in line
    assert not (tmp_path / "out").exists()
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--minutes", "0"], "above 0"),
        (["--part", "all"], "invalid choice"),
        (["second-table"], "argument PART: invalid choice: 'second-table'"),
    ],
)
def test_a_wrong_option_is_named(args: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        suite_main.main(args)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_parts_are_chosen_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plans: list[Plan] = []
    monkeypatch.setattr(suite_main, "open_nvml", OneGpu)

    def note(plan: Plan, _gpu: Gpu, _private: Path) -> int:
        plans.append(plan)
        return 0

    monkeypatch.setattr(suite_main, "run_plan", note)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert suite_main.main(["--part", "faults", "--part", "shares", "--minutes", "10", "--out", str(tmp_path)]) == 0
    assert suite_main.main([]) == 0
    assert suite_main.main(["first-table"]) == suite_main.main(["--part", "first-table"]) == 0
    assert suite_main.main(["shares"]) == 0
    assert [plan.parts for plan in plans] == [[PARTS[1], PARTS[6]], list(PARTS), list(NAMED), list(NAMED), [PARTS[1]]]
    assert [(plan.again, plan.total_s) for plan in plans] == [(True, 600.0), (False, None), *[(True, None)] * 3]
    assert plans[1].out == REPOSITORY / "benchmarks" / "results" / "gpu"


class OneGpu:
    def gpus(self) -> list[Gpu]:
        return [H200]


def test_a_gpu_that_cannot_be_had_is_none(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse() -> OneGpu:
        raise ShareUnavailable("the driver sees no GPU")

    monkeypatch.setattr(suite_main, "open_nvml", refuse)
    for args in ([], ["first-table"]):
        assert suite_main.main(args) == 4
        assert capsys.readouterr().err == "gpu_suite: no GPU here: the driver sees no GPU\n"


# ---- commands ------------------------------------------------------------------------------------------------


@pytest.fixture
def given_slice(tmp_path: Path) -> Slice:
    return Slice(60.0, time.monotonic() + 60.0, H200, tmp_path, tmp_path)


def test_a_command_runs_in_the_suites_folder_and_its_output_is_read(given_slice: Slice, tmp_path: Path) -> None:
    says = "import json, os, sys; print(json.dumps(os.environ['TMPDIR'])); print('{\"event\": 1}'); sys.exit('why')"
    ended = command.python(given_slice, "-c", says)
    assert ended.lines == [json.dumps(str(tmp_path)), '{"event": 1}']
    assert ended.events == [{"event": 1}]
    with pytest.raises(PartFailed, match="it ended with code 1: why"):
        ended.check("it")


def test_a_command_is_stopped_with_its_time_and_with_all_that_it_started(given_slice: Slice, tmp_path: Path) -> None:
    starts = f"""
import subprocess
from pathlib import Path
with subprocess.Popen(["sleep", "600"]) as sleeper:
    Path("{tmp_path}/pid").write_text(str(sleeper.pid))
"""
    with pytest.raises(PartFailed, match="not done within 10 s"):
        command.python(given_slice, "-c", starts, seconds=10.0)
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not alive(pid))


# ---- daemons -------------------------------------------------------------------------------------------------

# A worker that holds a daemon, and is killed before it can end it.
LEAVE = """
import os, signal
from fractune_workers.gpu.mps_daemon import OwnMpsDaemon
OwnMpsDaemon("GPU-74d43ed3-cdf7-e667-3644-bf5b4f46ed65").hold()
{then}
"""
KILLED = LEAVE.format(then="os.kill(os.getpid(), signal.SIGKILL)")
STUCK = LEAVE.format(then="print('held', flush=True); signal.pause()")


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The simulated control program on PATH."""
    for name in [name for name in os.environ if name.startswith("CUDA_")]:
        monkeypatch.delenv(name)
    with installed_program() as folder:
        monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
        yield


def daemon_in(private: Path) -> int:
    (pid_file,) = private.glob(f"fractune-mps-*/pipe/{PROGRAM}.pid")
    return int(pid_file.read_text())


def test_a_daemon_that_a_killed_worker_left_is_ended(program: None, capsys: pytest.CaptureFixture[str]) -> None:
    del program
    with private_folder() as private:
        given_slice = Slice(60.0, time.monotonic() + 60.0, H200, private, private)
        assert command.python(given_slice, "-c", KILLED).code == -signal.SIGKILL
        pid = daemon_in(private)
        assert alive(pid)
    assert not alive(pid)
    assert not private.exists()
    assert f"ended the MPS daemon {pid}" in capsys.readouterr().out


def test_a_daemon_that_does_not_answer_is_killed(program: None, monkeypatch: pytest.MonkeyPatch) -> None:
    del program
    monkeypatch.setattr(tidy, "_END_TIMEOUT_S", 0.2)
    with private_folder() as private:
        given_slice = Slice(60.0, time.monotonic() + 60.0, H200, private, private)
        command.python(given_slice, "-c", KILLED)
        pid = daemon_in(private)
        (pipe_dir,) = private.glob("fractune-mps-*/pipe")
        (pipe_dir / "control").unlink()
        (line,) = end_daemons(private)
        assert str(pid) in line
        assert not alive(pid)
        assert end_daemons(private) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_suite_that_is_stopped_leaves_no_process_and_no_daemon(
    program: None, number: signal.Signals, tmp_path: Path
) -> None:
    del program
    main = f"""
import sys
from benchmarks.gpu import __main__ as suite, command, tidy
from benchmarks.gpu.part import Part
from tests.support.hardware.simulated_mps import OneGpu
command._STOP_TIMEOUT_S = 1.0
def stuck(given):
    print("private", given.private, flush=True)
    command.python(given, "-c", {STUCK!r})
suite.open_nvml, suite.PARTS = OneGpu, (Part("stuck", "?", 60.0, stuck),)
sys.exit(suite.main(["--out", "{tmp_path}/out"]))
"""
    process = subprocess.Popen([sys.executable, "-c", main], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    assert process.stdout is not None
    private = next(Path(line.split()[1]) for line in process.stdout if line.startswith("private"))
    wait_until(lambda: any(found.read_text() for found in private.glob(f"fractune-mps-*/pipe/{PROGRAM}.pid")))
    pid = daemon_in(private)
    process.send_signal(number)
    assert process.wait(60) == 128 + number
    assert not alive(pid)
    assert not private.exists()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["logs"]
    process.stdout.close()
