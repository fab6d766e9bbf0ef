"""The candidates of the storm become machine code for a GPU, without one; on a GPU they do what they are made for."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.gpu.faulty import ADDRESS, ARGS_INFO, CORRUPT, FAULTS, GOOD, HANG
from fractune_core.cuda import PROGRAM
from fractune_core.errors import ShareUnavailable
from fractune_core.records import Status
from fractune_core.shares import Share
from fractune_workers.calibration.candidates import running
from fractune_workers.calibration.experiment import PooledMeasurer
from fractune_workers.child import Child
from fractune_workers.children.tvm_api.artifacts import unpack
from fractune_workers.confinement import confinement_for
from fractune_workers.cuda.compilers import find_compiler
from fractune_workers.gpu.mps_daemon import OwnMpsDaemon
from fractune_workers.gpu.nvml import Gpu, open_nvml, visible_gpu
from fractune_workers.measuring import session as session_module
from fractune_workers.measuring.session import ArtifactBatch, MeasurementSession, Outcome
from fractune_workers.measuring.validation import validate
from tests.support.hardware.cubins import cubin_arch, cubins_in
from tests.support.processes.cli_process import events, run_fractune, write_model
from tests.support.processes.worker_processes import alive

pytestmark = [
    pytest.mark.skipif(find_compiler() is None, reason="no CUDA compiler here; `make setup` installs NVRTC"),
    pytest.mark.timeout(240),
]

BUILD_TIMEOUT_S = 120.0
FAILED = {Status.CRASHED, Status.RUN_FAILED}


@pytest.fixture(scope="module")
def builder() -> Iterator[Child]:
    child = Child("benchmarks.gpu.faulty")
    yield child
    child.stop()


def code(builder: Child, kind: str, number: int, target: str) -> bytes:
    answer = builder.call("build", BUILD_TIMEOUT_S, kind=kind, number=number, target=target)
    code: bytes = answer["object"]
    return code


def test_every_kind_becomes_machine_code_of_its_own(builder: Child) -> None:
    wanted = [(kind, number) for number, kind in enumerate((GOOD, *FAULTS, *FAULTS, GOOD))]
    codes = [code(builder, kind, number, "cuda:sm_90") for kind, number in wanted]
    assert len(set(codes)) == len(wanted)
    for archive in codes:
        (cubin,) = cubins_in(unpack(archive)["device.o"])
        assert cubin_arch(cubin) == "sm_90"


# ---- on a GPU ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    try:
        return visible_gpu(open_nvml().gpus())
    except ShareUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def share(request: pytest.FixtureRequest, gpu: Gpu) -> Share:
    del gpu
    wanted = Share.parse(request.param)
    try:
        confinement_for(wanted).probe()
    except ShareUnavailable as error:
        pytest.skip(str(error))
    return wanted


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of locks of all measurers here: a device that failed waits for each of its clients to leave."""
    return tmp_path_factory.mktemp("gate")


@pytest.fixture(scope="module")
def bench(share: Share, gate: Path) -> Iterator[MeasurementSession]:
    """One for all tests of a share: a child takes seconds to start."""
    made = MeasurementSession(share, [], lock_dir=gate)
    try:
        made.handshake()
        yield made
    finally:
        made.stop()


def batch(builder: Child, gpu: Gpu, **kinds: str) -> ArtifactBatch:
    """Candidates by name; `number` of each is its place."""
    codes = {name: code(builder, kind, number, f"cuda:{gpu.arch}") for number, (name, kind) in enumerate(kinds.items())}
    return ArtifactBatch(ARGS_INFO, 0, codes)


def statuses(outcomes: dict[str, Outcome]) -> dict[str, Status]:
    return {name: outcome.status for name, outcome in outcomes.items()}


every_share = pytest.mark.parametrize("share", ["full", "green:32", "mps:25"], indirect=True, scope="module")


@pytest.mark.gpu
@every_share
def test_good_candidates_are_timed_and_right(bench: MeasurementSession, builder: Child, gpu: Gpu) -> None:
    asked = batch(builder, gpu, untuned=GOOD, other=GOOD, third=GOOD)
    trials, finals = bench.trials(asked), validate(bench, asked, "untuned")
    for outcomes in (trials, finals):
        assert set(statuses(outcomes).values()) == {Status.OK}, outcomes
        assert all(0 < outcome.median_s < 1e-2 for outcome in outcomes.values())
    assert max(outcome.max_error or 0.0 for outcome in finals.values()) < 1e-6


@pytest.mark.gpu
@every_share
def test_what_corrupts_memory_is_found_by_the_final(bench: MeasurementSession, builder: Child, gpu: Gpu) -> None:
    outcomes = validate(bench, batch(builder, gpu, untuned=GOOD, corrupting=CORRUPT, other=GOOD), "untuned")
    expected = {"untuned": Status.OK, "corrupting": Status.WRONG_OUTPUT, "other": Status.OK}
    assert statuses(outcomes) == expected, outcomes


@pytest.mark.gpu
@every_share
def test_after_an_illegal_address_the_next_is_timed(bench: MeasurementSession, builder: Child, gpu: Gpu) -> None:
    outcomes = bench.trials(batch(builder, gpu, before=GOOD, guilty=ADDRESS, after=GOOD))
    assert outcomes["guilty"].status in FAILED
    assert outcomes["guilty"].cause
    assert (outcomes["before"].status, outcomes["after"].status) == (Status.OK, Status.OK), outcomes


@pytest.mark.gpu
@every_share
def test_after_a_hang_the_next_is_timed(
    bench: MeasurementSession, builder: Child, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "_TRIAL_TIMEOUT_S", 5.0)
    outcomes = bench.trials(batch(builder, gpu, before=GOOD, stuck=HANG, after=GOOD))
    expected = {"before": Status.OK, "stuck": Status.RUN_TIMEOUT, "after": Status.OK}
    assert statuses(outcomes) == expected, outcomes


@pytest.mark.gpu
@pytest.mark.parametrize("share", ["mps:25"], indirect=True)
@pytest.mark.parametrize("fault", [ADDRESS, HANG])
def test_a_neighbour_of_a_fault_is_timed_and_not_blamed(
    share: Share, fault: str, builder: Child, gpu: Gpu, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "_TRIAL_TIMEOUT_S", 5.0)
    monkeypatch.setattr(session_module, "default_lock_dir", lambda: gate)
    innocent, guilty = batch(builder, gpu, one=GOOD, two=GOOD, three=GOOD), batch(builder, gpu, bad=fault, good=GOOD)
    with running(PooledMeasurer(share, [])) as neighbour, running(PooledMeasurer(share, [])) as culprit:
        for greeting in [neighbour.handshake(), culprit.handshake()]:
            greeting.result()
        beside = neighbour.thread.submit(lambda: neighbour._session.trials(innocent))
        faulty = culprit.thread.submit(lambda: culprit._session.trials(guilty))
        assert faulty.result()["bad"].status in FAILED | {Status.RUN_TIMEOUT}
        assert faulty.result()["good"].status is Status.OK
        assert set(statuses(beside.result()).values()) == {Status.OK}, beside.result()


@pytest.mark.gpu
@pytest.mark.parametrize("share", ["mps:50"], indirect=True)  # after all tests of mps:25, whose bench ends with them
def test_the_last_bench_ends_the_daemon(share: Share, gpu: Gpu, tmp_path: Path) -> None:
    benches = [MeasurementSession(share, [], lock_dir=tmp_path) for _ in range(2)]
    daemon = OwnMpsDaemon(gpu.uuid)
    pid = int((daemon.pipe_dir / f"{PROGRAM}.pid").read_text())
    for number, each in enumerate(benches):
        assert alive(pid), number
        each.handshake()
        assert each.device_info["granted"]["units"] < gpu.sms
        each.stop()
    assert not alive(pid)


@pytest.mark.gpu
@pytest.mark.parametrize("share", ["mps:50", "green:32"], indirect=True)
def test_a_model_is_tuned_for_a_share_of_the_gpu(share: Share, tmp_path: Path) -> None:
    model = write_model(tmp_path / "small.onnx")
    options = ["--shares", str(share), "--trials", "16", "--round", "8", "--json"]
    ended = run_fractune("tune", str(model), *options, "--state", str(tmp_path / "state"), "--out-dir", str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    result = events(ended)[-1]
    (found,) = result["shares"]
    assert found["granted"]["unit"] == "sm"
    assert 0 < found["tuned_s"] < math.inf
    assert result["trials"][str(share)] > 0
