"""Shares under MPS: what a client must find from inside, and all that is refused. Simulated daemon and driver.

This process plays both parts: the supervisor, then the client, with the environment that the supervisor gave it.
"""

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from fractune_core.cuda import MPS_PARTITION, MPS_PIPE_DIRECTORY
from fractune_core.errors import ShareNotReady, ShareUnavailable
from fractune_core.shares import Share
from fractune_workers.confinement import confinement_for
from fractune_workers.confinement.full import FullConfinement, NoConfinement
from fractune_workers.confinement.mps import BesideMps, MpsConfinement, MpsSmConfinement
from fractune_workers.cuda.driver import Driver, DriverFailed
from fractune_workers.gpu import mps_daemon
from fractune_workers.gpu.mps_control import MpsFailed, MpsUnreachable
from fractune_workers.gpu.mps_daemon import MpsDaemon
from fractune_workers.gpu.nvml import NoNvidiaDriver, Nvml
from tests.support.hardware.confinement_cases import full_confinement, green_confinement
from tests.support.hardware.simulated_gpu import MODELS, SimulatedGpu
from tests.support.hardware.simulated_mps import (
    H200,
    H200_SMS,
    MEMORY_BYTES,
    OneGpu,
    Scripted,
    SimulatedDriver,
    installed_program,
    open_simulated_driver,
)
from tests.support.hardware.simulated_mps_control import CHUNK_SMS, SMS, tell
from tests.support.processes.redis_process import wait_until

PERCENT_VARIABLE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
MEMORY_VARIABLE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"

Confinement = MpsConfinement | MpsSmConfinement
Become = Callable[[Confinement], Path]


def mps(text: str = "mps:25", driver: Callable[[], Driver] = open_simulated_driver) -> MpsConfinement:
    return MpsConfinement(Share.parse(text), nvml=OneGpu, driver=driver)


def mps_sm(text: str = "mps-sm:4", driver: Callable[[], Driver] = open_simulated_driver) -> MpsSmConfinement:
    return MpsSmConfinement(Share.parse(text), nvml=OneGpu, driver=driver)


@pytest.fixture(autouse=True)
def _program(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The simulated control program on PATH, and no variable of CUDA from outside."""
    for name in [name for name in os.environ if name.startswith("CUDA_")]:
        monkeypatch.delenv(name)
    with installed_program() as folder:
        monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
        yield


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> Iterator[Become]:
    """Makes this process the client that a supervisor prepares; gives the pipe folder of its daemon."""
    supervisors: list[Confinement] = []

    def become_client_of(supervisor: Confinement) -> Path:
        supervisors.append(supervisor)
        environment = supervisor.environment()
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return Path(environment[MPS_PIPE_DIRECTORY])

    yield become_client_of
    for supervisor in supervisors:
        supervisor.leave()


def shows(sms: int, met: int | None = None, uuid: str = H200.uuid) -> Callable[[], Driver]:
    """A driver that shows `sms` SMs, and whose kernel meets `met` of them."""
    return lambda: SimulatedDriver(sms=sms, met=[sms if met is None else met] * 3, uuid=uuid)


def test_a_percentage_grants_what_cuda_shows_and_reserves_nothing(become: Become) -> None:
    become(mps("mps:20"))
    client = mps("mps:20")
    client.enter()
    granted = client.verify()
    assert (granted.units, granted.units_total, granted.reserved) == (26, SMS, False)
    assert granted.memory_bytes == MEMORY_BYTES


@pytest.mark.parametrize(("percent", "sms"), [(p, sms) for p, sms in H200_SMS.items() if p >= 5])
def test_the_rounded_percentage_is_what_is_granted(percent: int, sms: int) -> None:
    assert mps(f"mps:{percent}", shows(sms)).verify().units == sms


@pytest.mark.parametrize("percent", [1, 2, 3, 4])
def test_a_percentage_below_the_floor_is_refused_and_one_that_fits_is_named(percent: int) -> None:
    with pytest.raises(ShareUnavailable, match=rf"'mps:{percent}' is .* MPS grants 8: .*ask for mps:6,"):
        mps(f"mps:{percent}", shows(H200_SMS[percent])).verify()


def test_percentages_that_grant_the_same_have_the_same_key() -> None:
    assert mps("mps:14", shows(18)).verify().key == mps("mps:15", shows(18)).verify().key


def test_without_a_daemon_nothing_is_entered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(MPS_PIPE_DIRECTORY, str(tmp_path))
    monkeypatch.setenv(PERCENT_VARIABLE, "25")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", H200.uuid)
    for step in (mps().probe, mps().environment, mps().enter):
        with pytest.raises(MpsUnreachable, match=str(tmp_path)):
            step()


def test_a_daemon_that_dies_before_cuda_starts_leaves_cuda_unconfined_and_is_found_out(
    become: Become, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe_dir = become(mps("mps:100"))
    client = mps("mps:100")
    monkeypatch.setattr(client.daemon, "wait_until_active", lambda: tell(pipe_dir, "quit"))
    client.enter()
    with pytest.raises(ShareUnavailable, match="runs without MPS, unconfined"):
        client.verify()


def test_a_process_with_another_environment_is_not_entered(become: Become, monkeypatch: pytest.MonkeyPatch) -> None:
    become(mps())
    for name, value in ((PERCENT_VARIABLE, "50"), ("CUDA_VISIBLE_DEVICES", "0")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            with pytest.raises(ShareUnavailable, match=f"this process has {name}='{value}'"):
                mps().enter()
            patch.delenv(name)
            with pytest.raises(ShareUnavailable, match=f"this process has {name}=''"):
                mps().enter()


def test_a_process_that_nobody_prepared_starts_nothing() -> None:
    for confinement in (mps(), mps_sm()):
        with pytest.raises(ShareUnavailable, match=f"this process has {MPS_PIPE_DIRECTORY}=''"):
            confinement.enter()
        assert not confinement.daemon.pipe_dir.exists()


@pytest.mark.parametrize("text", ["10", "24.9", "all"])
def test_an_environment_that_allows_less_is_not_overruled(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PERCENT_VARIABLE, text)
    with pytest.raises(ShareUnavailable, match=f"{PERCENT_VARIABLE}='{text}'; unset it"):
        mps().probe()


def test_an_environment_that_allows_as_much_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PERCENT_VARIABLE, "25")
    mps().probe()


def test_a_daemon_with_a_lower_limit_of_its_own_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with installed_program() as folder:
        pipe_dir = folder / "pipe"
        pipe_dir.mkdir()
        environment = {MPS_PIPE_DIRECTORY: str(pipe_dir), PERCENT_VARIABLE: "10", "CUDA_VISIBLE_DEVICES": H200.uuid}
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env=os.environ | environment, check=True)
        monkeypatch.setenv(MPS_PIPE_DIRECTORY, str(pipe_dir))
        wait_until(pipe_dir.joinpath("nvidia-cuda-mps-control.pid").exists)
        for name, value in mps("mps:50").environment().items():
            monkeypatch.setenv(name, value)
        client = mps("mps:50")
        client.enter()
        with pytest.raises(ShareUnavailable, match=r"66\.0 of 132 SMs, and MPS grants 12: .*get_default_active"):
            client.verify()


@pytest.mark.parametrize("met", [32, 31, 30])
def test_a_kernel_meets_the_sms_that_cuda_shows_but_for_a_step(met: int) -> None:
    assert mps(driver=shows(32, met)).verify().units == 32


@pytest.mark.parametrize(
    ("driver", "says"),
    [
        (shows(SMS), "not in force: all 132 SMs"),
        *((shows(32, met), f"CUDA shows 32 SMs, and a kernel ran on {met}") for met in (132, 33, 29)),
        (shows(32, uuid="GPU-other"), "CUDA uses GPU-other, not GPU-74d43ed3"),
    ],
)
def test_another_gpu_and_other_sms_than_those_of_the_cap_are_no_proof(driver: Callable[[], Driver], says: str) -> None:
    with pytest.raises(ShareUnavailable, match=says):
        mps(driver=driver).verify()


def test_a_neighbour_may_hide_an_sm_from_one_run() -> None:
    assert mps(driver=lambda: SimulatedDriver(sms=32, met=[9, 32, 14])).verify().units == 32


def test_after_a_fault_a_new_client_waits_until_all_others_have_left(become: Become) -> None:
    pipe_dir = become(mps())
    client = mps()
    with subprocess.Popen(["sleep", "600"]) as victim:
        tell(pipe_dir, f"stage connect {victim.pid}")
        tell(pipe_dir, "stage fault")
        assert not client.is_active()
        with pytest.raises(DriverFailed, match="807"):
            client.verify()
        with pytest.raises(MpsFailed, match=f"still: {victim.pid}"):
            MpsDaemon(pipe_dir).wait_until_active(0.2)
        victim.kill()
    assert client.is_active()
    client.enter()
    assert client.verify().units == 32


@pytest.mark.parametrize(("code", "again"), [(805, True), (807, True), (915, False)])
def test_a_server_that_lets_nobody_in_yet_is_told_from_one_that_never_will(
    code: int, *, again: bool, become: Become
) -> None:
    def refuse() -> Driver:
        raise DriverFailed.of("cuInit", code, "NAME")

    become(mps())
    with pytest.raises(DriverFailed if not again else ShareNotReady, match=f"CUDA error {code}"):
        mps(driver=refuse).enter()


def test_a_client_is_ended_before_its_kill(become: Become) -> None:
    supervisor = mps()
    pipe_dir = become(supervisor)
    with subprocess.Popen(["sleep", "600"]) as child:
        tell(pipe_dir, f"stage connect {child.pid}")
        assert supervisor.before_kill(child.pid)
        assert MpsDaemon(pipe_dir).control.processes() == []
        child.kill()


@pytest.mark.parametrize(
    ("environment", "told"), [("0=8192M", "0=8192M"), ("0=4G", "0=4096M"), ("0=512M,1=9G", "0=512M")]
)
def test_the_memory_limit_of_the_environment_holds_and_is_proved(
    environment: str, told: str, become: Become, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MEMORY_VARIABLE, environment)
    become(mps())
    assert os.environ[MEMORY_VARIABLE] == told
    client = mps()
    client.enter()
    assert client.verify().memory_bytes == int(told[2:-1]) << 20


def test_a_memory_limit_that_is_not_in_force_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MEMORY_VARIABLE, "0=8G")
    with pytest.raises(ShareUnavailable, match="memory limit of 8192 MiB is not in force, 144384 MiB"):
        mps(driver=shows(32)).verify()


@pytest.mark.parametrize("text", ["8G", "1=8G", "0=8", "0=-1G"])
def test_a_memory_limit_that_says_nothing_of_this_gpu_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MEMORY_VARIABLE, text)
    with pytest.raises(ShareUnavailable, match=f"{MEMORY_VARIABLE}='{text}' sets no limit"):
        mps().environment()


def test_no_memory_limit_unless_asked_for_and_no_priority_at_all(become: Become) -> None:
    become(mps())
    assert MEMORY_VARIABLE not in os.environ
    assert "CUDA_MPS_CLIENT_PRIORITY" not in os.environ


def test_a_partition_grants_what_the_daemon_lists_and_reserves_it(become: Become) -> None:
    pipe_dir = become(mps_sm())
    client = mps_sm()
    client.enter()
    granted = client.verify()
    assert (granted.units, granted.units_total, granted.reserved) == (4 * CHUNK_SMS, SMS, True)
    assert [partition.in_use for partition in MpsDaemon(pipe_dir).control.partitions()] == [True, False, False]


@pytest.mark.parametrize(
    ("shown", "met", "listed", "why"),
    [
        (64, 64, "32 Yes", "CUDA shows 64, a kernel ran on 64"),
        (32, 34, "32 Yes", "CUDA shows 32, a kernel ran on 34"),
        (32, 31, "32 Yes", "CUDA shows 32, a kernel ran on 31"),
        (32, 32, "28 Yes", "its partition has 28 SMs"),
        (32, 32, "32 No", r"32 SMs \(without clients\)"),
    ],
)
def test_a_partition_is_refused_unless_daemon_cuda_and_kernel_agree(
    shown: int, met: int, listed: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = mps_sm(driver=shows(shown, met))
    monkeypatch.setenv(MPS_PARTITION, f"{H200.uuid}/D/79e")
    monkeypatch.setattr(client.daemon, "control", Scripted(f"GPU-74 11 4 100 32\nGPU-74 D/79e 4 {listed}"))
    with pytest.raises(ShareUnavailable, match=f"'mps-sm:4' cannot be verified: .*{why}"):
        client.verify()


def test_without_a_partition_a_static_daemon_lets_nobody_in(become: Become, monkeypatch: pytest.MonkeyPatch) -> None:
    become(mps_sm())
    monkeypatch.delenv(MPS_PARTITION)
    with pytest.raises(ShareUnavailable, match="does not name a partition"):
        mps_sm().enter()
    with pytest.raises(DriverFailed, match="915"):
        mps_sm().verify()


def test_a_partition_of_another_size_is_not_entered(become: Become) -> None:
    become(mps_sm("mps-sm:4"))
    with pytest.raises(ShareUnavailable, match="names a partition of 4 chunks, and mps-sm:8 was asked for"):
        mps_sm("mps-sm:8").enter()


def test_a_gpu_in_mig_mode_is_refused() -> None:
    for gpu, why in ((replace(H200, mig=True), "is in MIG mode"), (replace(H200, sms=0), "does not tell how many SMs")):
        with pytest.raises(ShareUnavailable, match=f"'mps:25': .*{why}"):
            MpsConfinement(Share.parse("mps:25"), nvml=partial(OneGpu, gpu), driver=open_simulated_driver)


def test_clients_of_the_same_gpu_share_its_fate() -> None:
    assert mps().fault_domain == mps_sm().fault_domain == H200.uuid


def test_the_last_supervisor_that_leaves_ends_the_daemon() -> None:
    supervisors = [mps("mps:25"), mps("mps:50")]
    pipe_dirs = {supervisor.environment()[MPS_PIPE_DIRECTORY] for supervisor in supervisors}
    assert len(pipe_dirs) == 1
    daemon = MpsDaemon(Path(pipe_dirs.pop()))
    supervisors[0].leave()
    daemon.probe()
    supervisors[1].leave()
    with pytest.raises(MpsUnreachable):
        daemon.probe()


def test_a_child_that_dies_before_the_first_server_takes_nothing_down(become: Become) -> None:
    supervisor = mps()
    become(supervisor)
    assert supervisor.before_kill(os.getpid())
    assert supervisor.is_active()


def test_a_daemon_that_does_not_end_is_reported_by_the_supervisor_that_leaves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    supervisor = mps()
    pipe_dir = Path(supervisor.environment()[MPS_PIPE_DIRECTORY])
    tell(pipe_dir, "stage say no")
    monkeypatch.setattr(mps_daemon, "_QUIT_TIMEOUT_S", 0.0)
    supervisor.leave()
    assert f"share 'mps:25' was left, and MPS: the daemon at {pipe_dir} answered" in caplog.text


def test_a_share_that_cannot_be_prepared_leaves_no_daemon() -> None:
    supervisor = mps_sm("mps-sm:16")
    with pytest.raises(ShareUnavailable, match="'mps-sm:16' cannot be had now"):
        supervisor.environment()
    with pytest.raises(MpsUnreachable):
        supervisor.daemon.control.servers()


def test_a_driver_without_static_partitions_is_refused_before_anything_is_started() -> None:
    older = replace(H200, driver="580.159.03")
    supervisor = MpsSmConfinement(Share.parse("mps-sm:4"), nvml=partial(OneGpu, older), driver=open_simulated_driver)
    with pytest.raises(ShareUnavailable, match=r"needs driver 590 \(CUDA 13\.1\) or newer, this machine has 580\.159"):
        supervisor.probe()
    MpsConfinement(Share.parse("mps:25"), nvml=partial(OneGpu, older), driver=open_simulated_driver).probe()
    mps_sm().probe()


def test_a_driver_that_tvm_cannot_use_is_refused_before_anything_is_started() -> None:
    older = partial(OneGpu, replace(H200, driver="570.86.10", cuda="12.8"))
    with pytest.raises(ShareUnavailable, match=r"'mps:25': the NVIDIA driver serves CUDA 12 only, .*driver 580"):
        MpsConfinement(Share.parse("mps:25"), nvml=older, driver=open_simulated_driver)


@pytest.mark.skipif(Path("/proc/driver/nvidia/version").exists(), reason="there is an NVIDIA driver here")
@pytest.mark.parametrize("text", ["mps:25", "mps-sm:4"])
def test_where_no_gpu_can_be_asked_the_share_is_refused(text: str) -> None:
    with pytest.raises(ShareUnavailable, match=r"NVML|NVIDIA"):
        confinement_for(Share.parse(text))


def no_nvml() -> Nvml:
    raise NoNvidiaDriver("no NVIDIA driver")


@pytest.mark.parametrize("confinement", [full_confinement(Share("full")), green_confinement(Share("green", "32"))])
def test_faults_are_shared_where_a_daemon_may_be(
    confinement: BesideMps, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(MPS_PIPE_DIRECTORY, str(tmp_path / "none"))
    assert (confinement.fault_domain, confinement.is_active(), confinement.before_kill(1)) == (None, True, True)
    monkeypatch.setenv(MPS_PIPE_DIRECTORY, str(tmp_path))
    uuid = SimulatedGpu(MODELS["H200"]).uuid
    assert (confinement.fault_domain, confinement.is_active(), confinement.before_kill(1)) == (uuid, True, False)


def test_what_is_taken_as_it_is_found_needs_no_nvml(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(MPS_PIPE_DIRECTORY, str(tmp_path))
    confinement = NoConfinement(Share("none"), nvml=no_nvml)
    assert confinement.fault_domain == confinement.gpu_uuid == "gpu"
    with pytest.raises(ShareUnavailable):
        str(FullConfinement(Share("full"), nvml=no_nvml).fault_domain)
