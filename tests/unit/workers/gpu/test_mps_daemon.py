"""MPS daemons: one of our own is shared, and ended by the last; a joined one is never changed. No GPU.

Tests that stage nothing run with NVIDIA's own program too, where there is one (tests/support/hardware/real_mps.py).
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fractune_core.cuda import MPS_PIPE_DIRECTORY, PROGRAM, daemon_folder
from fractune_core.errors import ShareUnavailable
from fractune_workers.gpu import mps_daemon as mps_daemon_module
from fractune_workers.gpu.mps_control import MpsClient, MpsControl, MpsFailed, MpsUnreachable
from fractune_workers.gpu.mps_daemon import MpsDaemon, OwnMpsDaemon, mps_daemon
from tests.support.hardware.real_mps import REAL_MPS, daemons_below, real_program
from tests.support.hardware.simulated_mps import H200, Scripted, installed_program
from tests.support.hardware.simulated_mps_control import tell
from tests.support.processes.redis_process import wait_until
from tests.support.processes.worker_processes import alive

HOLD = """
import sys
from pathlib import Path
from fractune_workers.gpu.mps_daemon import OwnMpsDaemon
uuid, folder, program, chunks = sys.argv[1:]
daemon = OwnMpsDaemon(uuid, static=bool(int(chunks)), folder=Path(folder), program=program)
daemon.hold()
print(daemon.take_partition(int(chunks)) if int(chunks) else "held", flush=True)
sys.stdin.read()
daemon.release()
"""


class Host:
    """A host with the simulated program, and a GPU."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "d"
        self.program = str(folder / "bin" / PROGRAM)
        self.pipe_dir = self.folder / "pipe"

    def own(self, *, static: bool = False) -> OwnMpsDaemon:
        return OwnMpsDaemon(H200.uuid, static=static, folder=self.folder, program=self.program)

    def joined(self) -> MpsDaemon:
        return MpsDaemon(self.pipe_dir, self.program)

    def worker(self, chunks: int = 0) -> subprocess.Popen[str]:
        """Another process that holds the daemon until its standard input closes."""
        arguments = [H200.uuid, str(self.folder), self.program, str(chunks)]
        pipe = subprocess.PIPE
        return subprocess.Popen([sys.executable, "-c", HOLD, *arguments], stdin=pipe, stdout=pipe, text=True)

    def is_running(self) -> bool:
        try:
            self.joined().probe()
        except MpsUnreachable:
            return False
        return True


@pytest.fixture
def host() -> Iterator[Host]:
    with installed_program() as folder:
        yield Host(folder)


@pytest.fixture
def own(host: Host) -> Iterator[OwnMpsDaemon]:
    """A daemon of ours, held."""
    daemon = host.own()
    daemon.hold()
    yield daemon
    daemon.release()


@pytest.fixture(params=["simulated", *(["NVIDIA's"] if REAL_MPS else [])])
def any_host(request: pytest.FixtureRequest) -> Iterator[Host]:
    with installed_program(real_program() if request.param != "simulated" else None) as folder:
        yield Host(folder)
        for left in daemons_below(folder):
            left.kill()


@pytest.fixture
def client() -> Iterator[subprocess.Popen[bytes]]:
    """A process that may be a client."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_probing_starts_nothing(any_host: Host) -> None:
    any_host.own().probe()
    assert not any_host.folder.exists()


def test_it_runs_from_the_first_hold_to_the_last_release(any_host: Host) -> None:
    first, second = any_host.own(), any_host.own()
    first.hold()
    first.hold()
    second.hold()
    first.release()
    assert any_host.is_running()
    second.release()
    assert not any_host.is_running()
    second.release()


def test_it_can_be_held_again(any_host: Host) -> None:
    for _ in range(2):
        daemon = any_host.own()
        daemon.hold()
        assert daemon.control.servers() == []
        daemon.release()


def test_another_process_keeps_it_alive(any_host: Host) -> None:
    other = any_host.worker()
    assert answer(other) == "held"
    daemon = any_host.own()
    daemon.hold()
    daemon.release()
    assert any_host.is_running()
    other.communicate("")
    assert not any_host.is_running()


def test_what_a_killed_worker_left_is_taken_over_and_ended(any_host: Host) -> None:
    other = any_host.worker()
    assert answer(other) == "held"
    other.kill()
    other.communicate()
    assert any_host.is_running()
    daemon = any_host.own()
    daemon.hold()
    daemon.release()
    assert not any_host.is_running()


def test_a_daemon_that_was_killed_is_started_anew(any_host: Host) -> None:
    daemon = any_host.own()
    daemon.hold()
    kill_daemon(any_host)
    again = any_host.own()
    again.hold()
    assert any_host.is_running()
    daemon.release()
    again.release()


def test_before_the_first_server_nothing_is_a_client(any_host: Host) -> None:
    daemon = any_host.own()
    daemon.hold()
    assert daemon.control.processes() == []
    assert not daemon.end_client(os.getpid())
    assert daemon.is_active()
    daemon.release()


@pytest.mark.skipif(not REAL_MPS, reason="FRACTUNE_REAL_MPS names no folder with NVIDIA's program")
def test_nvidias_daemon_ends_although_its_server_fails_to_start() -> None:
    """Its `quit` returns 1 in most of these cases."""
    with installed_program(real_program()) as folder:
        host = Host(folder)
        for _ in range(5):
            daemon = host.own()
            daemon.hold()
            daemon.control.ask(f"start_server -uid {os.getuid()}")
            assert daemon.control.processes() == []
            daemon.release()
            assert not host.is_running()
            assert daemons_below(folder) == []


def test_a_server_that_has_ended_since_it_was_listed_takes_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = MpsDaemon(Path("/nowhere"))
    monkeypatch.setattr(daemon, "control", Scripted("Server 6472 not found\n"))
    monkeypatch.setattr(daemon.control, "servers", lambda: [6472])
    assert not daemon.is_active()


def test_a_daemon_whose_server_ended_badly_has_ended_although_quit_failed(host: Host) -> None:
    daemon = host.own()
    daemon.hold()
    tell(host.pipe_dir, f"stage connect {os.getpid()}")
    tell(host.pipe_dir, "stage fault")
    daemon.release()
    assert not host.is_running()


def test_a_daemon_that_refuses_to_quit_says_how(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps_daemon_module, "_QUIT_TIMEOUT_S", 0.0)
    daemon = host.own()
    daemon.hold()
    with monkeypatch.context() as patch:
        patch.setattr(daemon.control, "quit", refuse)
        with pytest.raises(MpsFailed, match=r"did not end within 0 s \(it must not\)$"):
            daemon.release()
    daemon.hold()
    daemon.release()
    assert not host.is_running()


def refuse() -> None:
    raise MpsFailed("it must not")


def kill_daemon(host: Host) -> None:
    (daemon,) = daemons_below(host.folder)
    daemon.kill()
    wait_until(lambda: not alive(daemon.pid))


def test_a_daemon_that_dies_in_mid_job_is_started_again_for_those_who_hold_it(any_host: Host) -> None:
    first, second, stranger = any_host.own(), any_host.own(), any_host.own()
    first.hold()
    second.hold()
    kill_daemon(any_host)
    with pytest.raises(MpsUnreachable):
        first.is_active()
    stranger.restart_service()
    assert not any_host.is_running(), "who does not hold it starts nothing"
    second.restart_service()
    first.restart_service()
    assert first.is_active()
    first.release()
    assert any_host.is_running()
    second.release()
    assert not any_host.is_running()


def test_partitions_die_with_their_daemon_and_the_workers_are_told(host: Host) -> None:
    own = host.own(static=True)
    own.take_partition(4)
    kill_daemon(host)
    with pytest.raises(MpsFailed, match=r"has died, and its partitions with it; .*start the workers of mps-sm"):
        own.restart_service()
    own.release()


def test_somebody_elses_daemon_is_not_started_again(any_host: Host) -> None:
    any_host.joined().restart_service()
    assert not any_host.is_running()


def test_limits_in_the_workers_environment_do_not_become_the_daemons(
    any_host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50")
    daemon = any_host.own()
    daemon.hold()
    assert daemon.control.ask("get_default_active_thread_percentage") == "100.0"
    daemon.release()


def test_a_kept_daemon_survives_its_workers_until_it_is_stopped(any_host: Host) -> None:
    daemon = any_host.own()
    daemon.keep()
    daemon.hold()
    daemon.release()
    assert (daemon.is_kept, daemon.is_running()) == (True, True)
    any_host.own().stop_keeping()
    assert (daemon.is_kept, daemon.is_running()) == (False, False)
    daemon.stop_keeping()


def test_a_daemon_that_workers_use_is_left_to_the_last_of_them(any_host: Host) -> None:
    worker, other = any_host.own(), any_host.own()
    worker.hold()
    other.keep()
    other.stop_keeping()
    assert worker.is_running()
    worker.release()
    assert not worker.is_running()


def test_a_daemon_with_clients_is_not_stopped(host: Host, client: subprocess.Popen[bytes]) -> None:
    daemon = host.own()
    daemon.keep()
    tell(host.pipe_dir, f"stage connect {client.pid}")
    with pytest.raises(ShareUnavailable, match=rf"has clients \(process {client.pid}\); end them first"):
        daemon.stop_keeping()
    assert (daemon.is_kept, daemon.clients()) == (True, [client.pid])
    client.kill()
    client.wait()
    daemon.stop_keeping()
    assert daemon.clients() == []


def test_a_kept_daemon_is_not_replaced_by_one_for_partitions(host: Host) -> None:
    daemon = host.own()
    daemon.keep()
    with pytest.raises(ShareUnavailable, match="end it: `fractune mps stop`"):
        host.own(static=True).hold()
    daemon.stop_keeping()


def test_a_joined_daemon_is_neither_kept_nor_stopped(host: Host) -> None:
    for change in (host.joined().keep, host.joined().stop_keeping):
        with pytest.raises(ShareUnavailable, match=r"CUDA_MPS_PIPE_DIRECTORY names the daemon .* unset the variable"):
            change()


def test_one_daemon_has_one_mode_while_it_is_used(host: Host) -> None:
    percentage, static = host.own(), host.own(static=True)
    percentage.hold()
    with pytest.raises(ShareUnavailable, match="serves mps shares, and cannot serve mps-sm"):
        static.hold()
    percentage.release()
    static.hold()
    with pytest.raises(ShareUnavailable, match="serves mps-sm shares, and cannot serve mps "):
        percentage.hold()
    static.release()


def test_a_daemon_of_the_other_mode_that_nobody_uses_is_replaced(host: Host) -> None:
    other = host.worker()
    assert answer(other) == "held"
    other.kill()
    other.communicate()
    static = host.own(static=True)
    static.hold()
    assert tell(host.pipe_dir, "stage mode") == "static"
    static.release()


def test_a_program_that_is_not_there_is_named(host: Host) -> None:
    with pytest.raises(MpsFailed, match=r"/nowhere is not installed; install nvidia-compute-utils-580 .*Debian"):
        OwnMpsDaemon(H200.uuid, folder=host.folder, program="/nowhere").probe()


def test_a_folder_too_long_for_a_socket_is_refused_before_the_start(host: Host) -> None:
    with pytest.raises(MpsFailed, match="107 are possible; set TMPDIR"):
        OwnMpsDaemon(H200.uuid, folder=host.folder / ("x" * 80), program=host.program).hold()
    assert not host.folder.exists()


def test_a_daemon_that_does_not_start_names_its_logs(host: Host) -> None:
    failing = host.folder.parent / "failing"
    failing.write_text("#!/bin/sh\n[ $# = 0 ] && echo Cannot find MPS control daemon process\nexit 1\n")
    failing.chmod(0o755)
    with pytest.raises(MpsFailed, match=rf"did not start .*look into {host.folder}/log"):
        OwnMpsDaemon(H200.uuid, folder=host.folder, program=str(failing)).hold()
    with pytest.raises(MpsFailed, match="static partitions need driver 590"):
        OwnMpsDaemon(H200.uuid, static=True, folder=host.folder, program=str(failing)).hold()


def test_the_environment_names_the_daemon_to_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MPS_PIPE_DIRECTORY, raising=False)
    own = mps_daemon(H200.uuid)
    assert isinstance(own, OwnMpsDaemon)
    assert own.pipe_dir == daemon_folder(H200.uuid) / "pipe"
    monkeypatch.setenv(MPS_PIPE_DIRECTORY, "/run/mps")
    joined = mps_daemon(H200.uuid, static=True)
    assert not isinstance(joined, OwnMpsDaemon)
    assert joined.pipe_dir == Path("/run/mps")


@pytest.mark.usefixtures("own")
def test_a_daemon_that_hangs_is_an_error_and_not_an_absent_one(host: Host) -> None:
    tell(host.pipe_dir, "stage hang")
    with pytest.raises(MpsFailed, match=r"no answer to 'get_server_list' within 0\.3 s") as failure:
        MpsControl(host.pipe_dir, host.program, timeout_s=0.3).servers()
    assert not isinstance(failure.value, MpsUnreachable)
    tell(host.pipe_dir, "stage say")


def test_a_joined_daemon_must_answer_and_is_left_running(any_host: Host) -> None:
    joined = any_host.joined()
    with pytest.raises(MpsUnreachable, match="start one there, or unset"):
        joined.hold()
    own = any_host.own()
    own.hold()
    joined.hold()
    joined.release()
    assert any_host.is_running()
    own.release()


def test_without_a_server_a_client_may_come(any_host: Host) -> None:
    own = any_host.own()
    own.hold()
    own.wait_until_active(0)
    own.release()


def test_after_a_fault_everybody_must_leave_before_anybody_may_come(
    host: Host, own: OwnMpsDaemon, client: subprocess.Popen[bytes]
) -> None:
    tell(host.pipe_dir, f"stage connect {client.pid}")
    tell(host.pipe_dir, f"stage connect {os.getpid()}")
    own.wait_until_active(0)
    tell(host.pipe_dir, "stage fault")
    with pytest.raises(MpsFailed, match=rf"is FAULT after 0.2 s; .* still: {client.pid}, {os.getpid()}"):
        own.wait_until_active(0.2)
    tell(host.pipe_dir, f"stage leave {os.getpid()}")
    with pytest.raises(MpsFailed, match=f"still: {client.pid}$"):
        own.wait_until_active(0.2)
    client.kill()
    client.wait()
    own.wait_until_active(5)


def test_a_client_is_ended_before_it_is_killed(host: Host, own: OwnMpsDaemon, client: subprocess.Popen[bytes]) -> None:
    assert not own.end_client(client.pid), "no server has been started yet"
    tell(host.pipe_dir, f"stage connect {client.pid}")
    assert own.end_client(client.pid)
    assert alive(client.pid)
    assert own.control.processes() == []
    assert not own.end_client(client.pid)


def test_a_server_that_has_faulted_is_not_asked_to_end_its_clients(
    host: Host, own: OwnMpsDaemon, client: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(host.pipe_dir, f"stage connect {client.pid}")
    tell(host.pipe_dir, "stage fault")
    monkeypatch.setattr(own.control, "terminate_client", lambda *_: pytest.fail("it was asked"))
    assert own.end_client(client.pid)


def test_the_same_number_in_another_pid_namespace_is_another_process(
    host: Host, own: OwnMpsDaemon, client: subprocess.Popen[bytes]
) -> None:
    tell(host.pipe_dir, f"stage connect {client.pid} none 4026539999")
    assert not own.end_client(client.pid)
    assert [found.pid for found in own.control.processes()] == [client.pid]


def test_a_daemon_in_another_pid_namespace_cannot_end_our_clients(
    own: OwnMpsDaemon, client: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Path("/proc/self/ns/pid").stat().st_ino
    beyond_every_pid = 1 << 23
    monkeypatch.setattr(own.control, "processes", lambda: [MpsClient(beyond_every_pid, 6472, here)])
    with pytest.raises(MpsFailed, match=rf"client {client.pid} cannot be ended: .*--pid=host"):
        own.end_client(client.pid)


def test_a_client_that_cannot_be_ended_is_not_passed_off_as_ended(
    host: Host, own: OwnMpsDaemon, client: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(host.pipe_dir, f"stage connect {client.pid}")
    clients = own.control.processes()
    tell(host.pipe_dir, "stage say CUDA_ERROR_UNKNOWN")
    monkeypatch.setattr(own.control, "processes", lambda: clients)
    with pytest.raises(MpsFailed, match="CUDA_ERROR_UNKNOWN"):
        own.end_client(client.pid)
    tell(host.pipe_dir, "stage say")


def test_each_worker_has_a_partition_of_its_own_until_none_is_left(host: Host, client: subprocess.Popen[bytes]) -> None:
    workers = [host.own(static=True) for _ in range(4)]
    first = workers[0].take_partition(4)
    # The GPU has clients from now on: no partition can be made any more.
    tell(host.pipe_dir, f"stage connect {client.pid} {first}")
    names = {first, workers[1].take_partition(4), workers[2].take_partition(4)}
    assert len(names) == 3
    with pytest.raises(ShareUnavailable, match=r"'mps-sm:4' cannot be had now: .*while the GPU has no clients"):
        workers[3].take_partition(4)
    assert workers[2].take_partition(4) in names
    freed = workers[2].take_partition(4)
    workers[2].release()
    assert workers[3].take_partition(4) == freed
    for worker in workers:
        worker.release()


def test_before_the_first_client_unused_partitions_make_room_for_another_size(host: Host) -> None:
    small, large, too_large = (host.own(static=True) for _ in range(3))
    small.take_partition(4)
    large.take_partition(8)
    assert sorted(partition.chunks for partition in small.control.partitions()) == [4, 8]
    with pytest.raises(ShareUnavailable, match="'mps-sm:12'"):
        too_large.take_partition(12)
    for daemon in (too_large, large, small):
        daemon.release()


def test_the_partition_of_a_killed_worker_is_free_once_its_client_is_gone(
    host: Host, client: subprocess.Popen[bytes]
) -> None:
    own = host.own(static=True)
    own.hold()
    other = host.worker(chunks=15)
    taken = answer(other)
    tell(host.pipe_dir, f"stage connect {client.pid} {taken}")
    other.kill()
    other.communicate()
    with pytest.raises(ShareUnavailable, match="'mps-sm:15'"):
        own.take_partition(15)
    client.kill()
    client.wait()
    assert own.take_partition(15) == taken
    own.release()


def test_a_partition_with_clients_is_not_removed_although_the_program_says_nothing_bad(
    host: Host, client: subprocess.Popen[bytes]
) -> None:
    own = host.own(static=True)
    partition = own.take_partition(4)
    tell(host.pipe_dir, f"stage connect {client.pid} {partition}")
    with pytest.raises(MpsFailed, match="in use"):
        own.control.remove_partition(partition)
    own.release()


def test_a_joined_daemons_partition_is_named_by_the_environment(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    own = host.own(static=True)
    partition = own.take_partition(4)
    joined = host.joined()
    with pytest.raises(ShareUnavailable, match="='' does not name a partition"):
        joined.take_partition(4)
    monkeypatch.setenv("CUDA_MPS_SM_PARTITION", partition)
    assert joined.take_partition(4) == partition
    with pytest.raises(ShareUnavailable, match="ask for mps-sm:4"):
        joined.take_partition(8)
    own.release()
