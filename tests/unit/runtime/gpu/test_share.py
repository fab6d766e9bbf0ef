"""Which share of a GPU a process is under, and whether a bundle was made for that GPU: as a simulated CUDA shows it."""

import contextlib
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

import pytest

from fractune_core.analysis.match import How, Policy
from fractune_core.cuda import MPS_PERCENTAGE, MPS_PIPE_DIRECTORY, VISIBLE_DEVICES, daemon_folder, kept_mark, pipes_in
from fractune_core.errors import BadBundle, BadRequest, ShareUnavailable
from fractune_core.files.bundles import Bundle
from fractune_core.shares import Device, GrantedShare, Share
from fractune_runtime import gpu as gpus
from fractune_runtime.choosing import choose_variant
from fractune_runtime.gpu import (
    GpuHere,
    NoDriver,
    ask_gpu,
    check_gpu,
    check_held,
    confine_gpu,
    gpu_share_here,
    join_daemon,
    look_at_gpu,
)
from tests.support.client_samples import bundle_bytes, variants
from tests.support.hardware.simulated_cuda import Staged
from tests.support.hardware.simulated_gpu import MODELS, SimulatedGpu, gpu_in_mig_mode
from tests.support.hardware.simulated_libcuda import SimulatedLibcuda

H200 = Device("cuda", "sm_90", 132, 140, 51_200, "NVIDIA H200")
WHOLE = H200.units
NOTHING_STAGED = Staged()
MPS = Staged(mps=True)
UNITS = {"mps:25": 32, "mps:50": 66, "full": 132, "mig:1g.18gb": 16}


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (VISIBLE_DEVICES, MPS_PERCENTAGE, MPS_PIPE_DIRECTORY, "CUDA_MPS_SM_PARTITION"):
        monkeypatch.setenv(name, "")  # so that it is restored where a test has it set
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def tempdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where daemons have their folders."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def seen(gpu: SimulatedGpu | None = None, staged: Staged = NOTHING_STAGED) -> GpuHere:
    return ask_gpu(SimulatedLibcuda(gpu or SimulatedGpu(MODELS["H200"]), staged))


def gpu_bundle(*shares: str, arch: str = "sm_90", device: Device = H200, **changes: Any) -> Bundle:
    """Variants of one GPU, of which nothing was measured unless `changes` say so."""
    granted = {each: GrantedShare(each, UNITS[each], WHOLE, "sm", 1 << 30, reserved=False).to_json() for each in shares}
    return Bundle(
        bundle_bytes(
            device=device.to_json(),
            target=f'{{"kind":"cuda","arch":"{arch}"}}',
            code={"architecture": platform.machine(), "features": []},
            shares=granted,
            variants=variants(*shares, "untuned"),
            **changes,
        )
    )


def test_a_whole_gpu() -> None:
    gpu = seen()
    assert (gpu.isa, gpu.sms, gpu.is_mps_client, gpu.is_mig) == ("sm_90", 132, False, False)
    check_gpu(gpu_bundle("full"), gpu)
    here = gpu_share_here(gpu, WHOLE, (0, 1))
    assert (here.units, here.unit, here.mechanism, here.cpus) == (132, "sm", "full", (0, 1))
    assert here.reason == "132 of 132 SMs (all of NVIDIA H200)"


def test_a_client_of_mps_has_what_cuda_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MPS_PERCENTAGE, "25")
    gpu = seen(staged=MPS)
    check_gpu(gpu_bundle("mps:25"), gpu)
    here = gpu_share_here(gpu, WHOLE, (0,))
    assert (here.mechanism, here.units) == ("mps", 33)
    assert here.reason == "33 of 132 SMs (a client of MPS, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25)"
    check_held(Share.parse("mps:25"), here, WHOLE)


def test_a_limit_of_the_daemon_counts_too() -> None:
    here = gpu_share_here(seen(staged=Staged(mps=True, percentage=50)), WHOLE, (0,))
    assert (here.mechanism, here.units) == ("mps", 66)
    assert "the daemon's percentage" in here.reason


def test_a_client_without_a_limit_has_the_whole_gpu() -> None:
    here = gpu_share_here(seen(staged=MPS), WHOLE, (0,))
    assert here.mechanism == "full"
    assert here.reason.endswith("a client of MPS without a limit)")
    check_held(Share.parse("full"), here, WHOLE)
    check_held(Share.parse("mps:100"), here, WHOLE)


def test_a_static_partition_of_mps_is_another_mechanism(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_SM_PARTITION", "GPU-1/2")
    here = gpu_share_here(seen(staged=Staged(mps=True, percentage=25)), WHOLE, (0,))
    assert (here.mechanism, here.units) == ("mps-sm", 33)
    check_held(Share.parse("mps-sm:4"), here, WHOLE)


def test_a_mig_instance() -> None:
    divided = gpu_in_mig_mode("H200", ("3g", 4), ("1g", 0))
    assert divided.instances[1] is not None
    confine_gpu(Share.parse(f"mig:{divided.instances[1].uuid}"))
    gpu = seen(divided)
    check_gpu(gpu_bundle("mig:1g.18gb"), gpu)
    here = gpu_share_here(gpu, WHOLE, (0,))
    assert (here.mechanism, here.units) == ("mig", 16)
    check_held(Share.parse("mig:1g.18gb"), here, WHOLE)
    with pytest.raises(ShareUnavailable, match=r"share 'mig:3g\.71gb' is not in force: this process has 16 of 132 SMs"):
        check_held(Share.parse("mig:3g.71gb"), here, WHOLE)


def test_a_share_that_cuda_does_not_show_is_not_in_force() -> None:
    """No daemon was reached: CUDA runs without MPS, unconfined, and says nothing."""
    here = gpu_share_here(seen(), WHOLE, (0,))
    with pytest.raises(ShareUnavailable, match=r"'mps:25' is not in force: this process has 132 of 132 .*mps start"):
        check_held(Share.parse("mps:25"), here, WHOLE)
    confine_gpu(Share.parse("mps:25"))
    here = gpu_share_here(seen(), WHOLE, (0,))
    with pytest.raises(ShareUnavailable, match="has no effect without MPS: start a daemon by `fractune mps start`, or"):
        check_held(Share.parse("mps:25"), here, WHOLE)


def test_a_daemon_outside_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As NVIDIA's device plugin and DRA driver hand a share on; the percentage is the daemon's own."""
    monkeypatch.setenv(MPS_PIPE_DIRECTORY, "/mps/pipe")
    inside = gpu_share_here(seen(staged=Staged(mps=True, percentage=50)), WHOLE, (0,))
    assert (inside.mechanism, inside.units, inside.warning) == ("mps", 66, "")
    assert gpu_share_here(seen(), WHOLE, (0,)).warning == (
        "this process has 132 of 132 SMs (all of NVIDIA H200); CUDA_MPS_PIPE_DIRECTORY has no effect: no daemon "
        "answers at /mps/pipe (`fractune mps status`)"
    )


def test_hami_takes_no_sms_away_and_nonsense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_SM_LIMIT", "50")
    here = gpu_share_here(seen(), WHOLE, (0,))
    assert (here.mechanism, here.units, here.warning) == ("full", 132, "")
    assert here.reason.endswith(
        "HAMi delays launches beyond 50 % of the GPU's time, and a kernel that runs has all SMs"
    )
    monkeypatch.setenv("CUDA_DEVICE_SM_LIMIT", "half")
    with pytest.raises(BadRequest, match="CUDA_DEVICE_SM_LIMIT is 'half': set it to a whole number from 0 to 100, or"):
        join_daemon(None)


@pytest.mark.parametrize("percentage", ["", "100"])
def test_a_percentage_that_limits_nothing_needs_no_daemon(percentage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MPS_PERCENTAGE, percentage)
    assert gpu_share_here(seen(), WHOLE, (0,)).warning == ""


def keep_daemon(tempdir: Path, uuid: str) -> str:
    """As `fractune mps start` does; the daemon's pipe folder."""
    kept = kept_mark(daemon_folder(uuid))
    assert kept.is_relative_to(tempdir)
    kept.parent.mkdir(mode=0o700)
    kept.touch()
    return str(pipes_in(kept.parent))


@pytest.mark.parametrize("share", [Share.parse("mps:25"), None])
def test_the_daemon_that_is_kept_is_found(share: Share | None, tempdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipes = keep_daemon(tempdir, "GPU-1")
    join_daemon(None)
    assert MPS_PIPE_DIRECTORY not in os.environ, "this process does not need MPS"
    monkeypatch.setenv(MPS_PERCENTAGE, "25")
    join_daemon(share)
    assert (os.environ[MPS_PIPE_DIRECTORY], os.environ[VISIBLE_DEVICES]) == (pipes, "GPU-1")
    assert gpu_share_here(seen(), WHOLE, (0,)).warning.endswith(f"no daemon answers at {pipes} (`fractune mps status`)")


def test_of_several_daemons_the_visible_gpus_is_found(tempdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MPS_PERCENTAGE, "25")
    keep_daemon(tempdir, "GPU-1")
    second = keep_daemon(tempdir, "GPU-2")
    for visible in ("", "0"):
        monkeypatch.setenv(VISIBLE_DEVICES, visible)
        join_daemon(None)
        assert MPS_PIPE_DIRECTORY not in os.environ
        warning = gpu_share_here(seen(), WHOLE, (0,)).warning
        assert warning.endswith("set CUDA_VISIBLE_DEVICES to the UUID of a GPU with a daemon, GPU-1 or GPU-2")
    monkeypatch.setenv(VISIBLE_DEVICES, "GPU-2,GPU-1")
    join_daemon(None)
    assert os.environ[MPS_PIPE_DIRECTORY] == second


def test_the_daemon_of_the_environment_is_not_replaced(tempdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_daemon(tempdir, "GPU-1")
    monkeypatch.setenv(MPS_PIPE_DIRECTORY, "/run/mps")
    join_daemon(Share.parse("mps:25"))
    assert os.environ[MPS_PIPE_DIRECTORY] == "/run/mps"


def test_a_share_that_is_larger_than_asked_for_is_not_in_force() -> None:
    here = gpu_share_here(seen(staged=Staged(mps=True, percentage=50)), WHOLE, (0,))
    check_held(Share.parse("mps:50"), here, WHOLE)
    with pytest.raises(ShareUnavailable, match="'mps:25' is not in force"):
        check_held(Share.parse("mps:25"), here, WHOLE)


@pytest.mark.parametrize(
    ("percentage", "share", "says"),
    [
        (25, "mps:25..50", ""),
        (50, "mps:25..50", ""),
        (100, "mps:50..100", ""),
        (20, "mps:25..50", "'mps:25..50' is not in force: .* start it with CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50 "),
        (60, "mps:25..50", "'mps:25..50' is not in force: this process has 79 of 132 SMs"),
        (100, "mps:25..50", "'mps:25..50' is not in force: this process has 132 of 132 SMs"),
    ],
)
def test_a_process_may_be_anywhere_in_a_range(percentage: int, share: str, says: str) -> None:
    here = gpu_share_here(seen(staged=Staged(mps=True, percentage=percentage)), WHOLE, (0,))
    with pytest.raises(ShareUnavailable, match=says) if says else contextlib.nullcontext():
        check_held(Share.parse(share), here, WHOLE)


def test_a_process_enters_a_range_by_its_burst(tempdir: Path) -> None:
    pipes = keep_daemon(tempdir, "GPU-1")
    confine_gpu(Share.parse("mps:25..50"))
    join_daemon(Share.parse("mps:25..50"))
    assert (os.environ[MPS_PERCENTAGE], os.environ[MPS_PIPE_DIRECTORY]) == ("50", pipes)


@pytest.mark.parametrize("share", ["green:32", "none", "cpu:1"])
def test_shares_that_nobody_serves_at(share: str) -> None:
    with pytest.raises(BadRequest, match=f"share '{share}'"):
        confine_gpu(Share.parse(share))


@pytest.mark.parametrize(
    ("bundle", "model", "says"),
    [
        (
            gpu_bundle("full"),
            "A100-40",
            "code for sm_90, which does not run on sm_80 with 108 SMs and 40 GiB (NVIDIA A1",
        ),
        (gpu_bundle("full", arch="sm_90a"), "A100-40", "code for sm_90a, which does not run on sm_80"),
        (gpu_bundle("full"), "H100", "on sm_90 with 132 SMs and 140 GiB, this GPU is sm_90 with 132 SMs and 80 GiB"),
        (
            gpu_bundle("full", device=Device("cuda", "sm_90", 114, 140, 0)),
            "H200",
            "sm_90 with 114 SMs and 140 GiB, this",
        ),
    ],
)
def test_another_gpu_is_refused_and_both_are_named(bundle: Bundle, model: str, says: str) -> None:
    with pytest.raises(BadBundle) as caught:
        check_gpu(bundle, seen(SimulatedGpu(MODELS[model])))
    assert says in str(caught.value)


def test_a_part_of_a_gpu_may_not_be_larger_than_the_whole() -> None:
    small = gpu_bundle("mps:25", device=Device("cuda", "sm_90", 30, 140, 0))
    with pytest.raises(BadBundle, match="was measured on sm_90 with 30 SMs"):
        check_gpu(small, seen(staged=Staged(mps=True, percentage=25)))


def test_an_old_driver_and_none_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoDriver, match="serves CUDA 12 only, and TVM needs CUDA 13; install driver 580 or newer"):
        ask_gpu(SimulatedLibcuda(SimulatedGpu(MODELS["H200"]), version=12_080))
    monkeypatch.setattr(gpus, "LIBRARY", "libcuda-of-nobody.so.1")
    with pytest.raises(NoDriver, match="this machine has no NVIDIA driver"):
        look_at_gpu()


@pytest.mark.parametrize(
    ("code", "says"), [(100, "CUDA sees no GPU"), (807, "is not ready"), (999, "Xid"), (1, "`dmesg` may show")]
)
def test_a_cuda_that_does_not_start_says_what_to_do(code: int, says: str) -> None:
    with pytest.raises(ShareUnavailable, match=f"cuInit: CUDA error {code}; .*{says}"):
        seen(staged=Staged(errors={"cuInit": code}))


MEASURED = {
    "mps:25": {"mps:25": 1.0, "mps:50": 1.2, "untuned": 9.0},
    "mps:50": {"mps:25": 0.9, "mps:50": 0.5, "untuned": 9.0},
    "full": {"full": 0.3, "untuned": 9.0},
}


def test_the_variant_is_chosen_among_those_of_the_mechanism_here() -> None:
    bundle = gpu_bundle("mps:25", "mps:50", "full", measured=MEASURED)
    exact = choose_variant(bundle, 66, mechanism="mps")
    assert (exact.variant, exact.how, exact.threads) == ("mps:50", How.EXACT, 1)
    between = choose_variant(bundle, 50, mechanism="mps")
    assert (between.variant, between.how) == ("mps:50", How.NEAR)
    assert between.reason.endswith("(32, 66 SMs)")
    whole = choose_variant(bundle, 132, mechanism="full")
    assert (whole.variant, whole.reason) == ("full", "it was tuned for 132 SMs, and no other variant was faster there")


def test_what_another_mechanism_granted_counts_as_unmeasured() -> None:
    bundle = gpu_bundle("mps:25", "mps:50", measured={name: MEASURED[name] for name in ("mps:25", "mps:50")})
    choice = choose_variant(bundle, 60, mechanism="mig")
    assert (choice.variant, choice.how) == ("untuned", How.NONE)
    assert choice.reason == (
        "the bundle has no variant for a share of the kind 'mig', only for mps:25, mps:50; "
        "to get a faster variant, tune the model for 60 SMs"
    )
    allowed = choose_variant(bundle, 60, Policy(allow_unmeasured=True), "mig")
    assert (allowed.variant, allowed.how) == ("mps:50", How.NEAR)
