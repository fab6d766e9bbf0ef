"""MIG, green contexts, the whole GPU and none: what can go wrong on a real one is staged, and refused."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fractune_core.errors import ShareUnavailable
from fractune_core.share_kinds import SHARE_KINDS, ShareKind
from fractune_core.shares import GrantedShare, Share
from fractune_workers.confinement import confinement_for, stream_of
from fractune_workers.confinement.full import FullConfinement, NoConfinement
from fractune_workers.confinement.green import GreenConfinement
from fractune_workers.confinement.mig import MigConfinement
from fractune_workers.cuda.driver import largest_green
from fractune_workers.gpu.nvml import NoNvidiaDriver, NvidiaMl
from tests.support.hardware.simulated_cuda import Staged, simulated_driver
from tests.support.hardware.simulated_gpu import MODELS, SimulatedGpu, gpu_in_mig_mode
from tests.support.hardware.simulated_nvml import LIBRARY_NOT_FOUND, NOT_SUPPORTED, SimulatedNvml

VISIBLE = "CUDA_VISIBLE_DEVICES"
PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
NOTHING_STAGED = Staged()

Confinement = FullConfinement | GreenConfinement | MigConfinement | NoConfinement


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (VISIBLE, PERCENTAGE, "CUDA_MPS_SM_PARTITION"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Confinement]]:
    """A confinement to a share of a simulated GPU. Instances of MIG are given back at the end."""
    claimed: list[MigConfinement] = []

    def made(text: str, gpu: SimulatedGpu, staged: Staged = NOTHING_STAGED, **broken: int) -> Confinement:
        share = Share.parse(text)
        seams = (lambda: NvidiaMl(SimulatedNvml(gpu, broken=broken)), lambda: simulated_driver(gpu, staged))
        if share.mechanism == "mig":
            claimed.append(MigConfinement(share, *seams, claims=tmp_path))
            return claimed[-1]
        kinds: dict[str, Callable[..., Confinement]] = {
            "full": FullConfinement,
            "green": GreenConfinement,
            "none": NoConfinement,
        }
        return kinds[share.mechanism](share, *seams)

    yield made
    for each in claimed:
        each.leave()


def entered(confinement: Confinement, monkeypatch: pytest.MonkeyPatch) -> GrantedShare:
    """What is granted to a process that was started as the confinement says."""
    confinement.probe()
    for name, value in confinement.environment().items():
        monkeypatch.setenv(name, value)
    confinement.enter()
    return confinement.verify()


def h200() -> SimulatedGpu:
    return SimulatedGpu(MODELS["H200"])


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", ["1g", "1g wide", "2g", "3g", "4g", "7g", "1g+me"])
def test_an_instance_has_the_sms_that_nvidia_says(
    make: Callable[..., Confinement], model: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = gpu_in_mig_mode(model, (kind, 0))
    profile = gpu.profile(kind)
    granted = entered(make(f"mig:{profile.name}", gpu), monkeypatch)
    assert (granted.units, granted.units_total, granted.unit) == (profile.sms, gpu.model.sms, "sm")
    assert granted.memory_bytes == profile.memory_mib << 20
    assert granted.reserved


def test_two_workers_get_two_instances_and_a_third_gets_none(make: Callable[..., Confinement]) -> None:
    gpu = gpu_in_mig_mode("H100", ("1g", 0), ("1g", 1), ("2g", 2))
    first, second, third = (make("mig:1g.10gb", gpu) for _ in range(3))
    taken = {each.environment()[VISIBLE] for each in (first, second)}
    assert len(taken) == 2
    assert first.environment()[VISIBLE] in taken
    third.probe()
    with pytest.raises(ShareUnavailable, match=r"share 'mig:1g.10gb': other workers hold every instance .*\(2\)"):
        third.environment()
    second.leave()
    assert third.environment()[VISIBLE] in taken


def test_an_instance_can_be_named_by_its_uuid(
    make: Callable[..., Confinement], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = gpu_in_mig_mode("H100", ("1g", 0), ("1g", 1))
    chosen = gpu.instances[1]
    assert chosen is not None
    confinement = make(f"mig:{chosen.uuid}", gpu)
    granted = entered(confinement, monkeypatch)
    assert (confinement.environment(), granted.share) == ({VISIBLE: chosen.uuid}, f"mig:{chosen.uuid}")


def test_a_worker_that_was_given_one_instance_takes_no_other(
    make: Callable[..., Confinement], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = gpu_in_mig_mode("H100", ("2g", 0), ("1g", 2), ("1g", 3))
    given = gpu.instances[2]
    assert given is not None
    monkeypatch.setenv(VISIBLE, given.uuid)
    assert make("mig:1g.10gb", gpu).environment() == {VISIBLE: given.uuid}
    with pytest.raises(ShareUnavailable, match="has no such instance"):
        make("mig:2g.20gb", gpu).probe()


def test_a_profile_that_is_not_there_names_those_that_are(make: Callable[..., Confinement]) -> None:
    gpu = gpu_in_mig_mode("H200", ("3g", 4), ("1g", 0))
    with pytest.raises(ShareUnavailable, match=r"share 'mig:2g.35gb': .* it has mig:3g.71gb \(MIG-.*mig:1g.18gb"):
        make("mig:2g.35gb", gpu).probe()
    with pytest.raises(ShareUnavailable, match=r"has no instance yet; `fractune shares --mig-layout"):
        make("mig:2g.35gb", gpu_in_mig_mode("H200")).probe()
    with pytest.raises(ShareUnavailable, match=r"is not in MIG mode; `fractune shares --mig-layout"):
        make("mig:2g.35gb", h200()).probe()


def test_cuda_on_another_instance_is_no_confinement(
    make: Callable[..., Confinement], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = gpu_in_mig_mode("H200", ("1g", 0))
    with pytest.raises(ShareUnavailable, match=r"CUDA uses GPU-ffffffff-.*, not MIG-"):
        entered(make("mig:1g.18gb", gpu, Staged(other_device=True)), monkeypatch)


@pytest.mark.parametrize("text", ["full", "green:32"])
def test_a_gpu_in_mig_mode_has_instances_only(make: Callable[..., Confinement], text: str) -> None:
    with pytest.raises(ShareUnavailable, match=rf"share '{text}': .* is in MIG mode.*ask for mig:1g.18gb, mig:3g.71gb"):
        make(text, gpu_in_mig_mode("H200", ("3g", 4), ("1g", 0), ("1g", 1))).probe()
    with pytest.raises(ShareUnavailable, match="divide it first: `fractune shares --mig-layout"):
        make(text, gpu_in_mig_mode("H200")).probe()


@pytest.mark.parametrize(
    ("model", "asked", "granted"),
    [("H200", 1, 8), ("H200", 32, 32), ("H200", 33, 40), ("A100-80", 1, 4), ("A100-80", 7, 8)],
)
def test_rounding_is_stated(
    make: Callable[..., Confinement], model: str, asked: int, granted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant = entered(make(f"green:{asked}", SimulatedGpu(MODELS[model])), monkeypatch)
    assert (grant.share, grant.units, grant.reserved) == (f"green:{asked}", granted, False)


def test_a_green_context_tells_the_stream_to_launch_on(
    make: Callable[..., Confinement], monkeypatch: pytest.MonkeyPatch
) -> None:
    confinement = make("green:32", h200())
    with pytest.raises(ShareUnavailable, match="was never entered"):
        stream_of(confinement)
    entered(confinement, monkeypatch)
    assert stream_of(confinement) == 0x2000
    confinement.leave()
    with pytest.raises(ShareUnavailable, match="was never entered"):
        confinement.verify()
    assert stream_of(make("full", h200())) == 0


@pytest.mark.parametrize(("name", "value"), [(PERCENTAGE, "50"), ("CUDA_MPS_SM_PARTITION", "GPU-1/2")])
@pytest.mark.parametrize("text", ["green:32", "full"])
def test_a_share_of_mps_around_it_is_refused(
    make: Callable[..., Confinement], text: str, name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside a percentage a green context may grow to the whole percentage."""
    monkeypatch.setenv(name, value)
    with pytest.raises(ShareUnavailable, match=f"share '{text}': the environment has {name}='{value}'"):
        make(text, h200()).probe()


@pytest.mark.parametrize("text", ["green:32", "full"])
def test_a_percentage_that_only_the_daemon_knows_of_is_refused(
    make: Callable[..., Confinement], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ShareUnavailable, match="an MPS daemon is around it, which shows 66 of 132 SMs"):
        entered(make(text, h200(), Staged(mps=True, percentage=50)), monkeypatch)


def test_all_of_mps_is_no_share_of_it(make: Callable[..., Confinement], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PERCENTAGE, "100")
    assert entered(make("green:32", h200(), Staged(mps=True)), monkeypatch).units == 32


@pytest.mark.parametrize(
    ("staged", "says"),
    [
        (Staged(leaks=True), "is not in force: a kernel ran on 132 SMs, and 32 were granted"),
        (Staged(met_fewer=2), "cannot be verified: a kernel ran on 30 of 32 SMs only"),
        (Staged(stray_stream=True), "its stream is not one of its green context"),
        (Staged(other_device=True), "CUDA uses GPU-ffffffff"),
        (Staged(hands_out=8), "CUDA granted 40 SMs, more than a step of 8 away; ask for green:40"),
        (Staged(errors={"cuInit": 807}), "until every affected client has ended"),
    ],
)
def test_a_green_context_that_does_not_hold_is_refused(
    make: Callable[..., Confinement], staged: Staged, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ShareUnavailable, match=says):
        entered(make("green:32", h200(), staged), monkeypatch)


def test_more_than_there_is_is_refused(make: Callable[..., Confinement], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ShareUnavailable, match=r"share 'green:133' is larger than NVIDIA H200, which has 132 SMs"):
        make("green:133", h200()).probe()
    with pytest.raises(
        ShareUnavailable, match=r"'green:132' cannot be had: CUDA cannot split 132 .*ask for 128 at most"
    ):
        entered(make("green:132", h200()), monkeypatch)  # 136, rounded up


def test_a_die_with_uneven_parts_has_a_smaller_largest_green_context(
    make: Callable[..., Confinement], monkeypatch: pytest.MonkeyPatch
) -> None:
    uneven = Staged(splits_at_most=120)
    assert largest_green(simulated_driver(h200())) == 128
    assert largest_green(simulated_driver(h200(), uneven)) == 120
    with pytest.raises(ShareUnavailable, match="ask for 120 at most"):
        entered(make("green:128", h200(), uneven), monkeypatch)


@pytest.mark.parametrize(
    ("exclusive", "mps", "reserved"), [(False, False, False), (True, False, True), (True, True, False)]
)
def test_the_whole_gpu_is_reserved_only_where_nobody_else_gets_in(
    make: Callable[..., Confinement], *, exclusive: bool, mps: bool, reserved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = SimulatedGpu(MODELS["H100"], exclusive=exclusive)
    granted = entered(make("full", gpu, Staged(mps=mps)), monkeypatch)
    assert (granted.units, granted.fraction, granted.reserved) == (132, 1.0, reserved)


def test_fewer_sms_than_nvml_tells_of_are_not_full(
    make: Callable[..., Confinement], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ShareUnavailable, match="a kernel ran on 131 of 132 SMs"):
        entered(make("full", h200(), Staged(met_fewer=1)), monkeypatch)
    with pytest.raises(ShareUnavailable, match="CUDA shows 118 SMs, and NVML tells of 132"):
        entered(make("full", h200(), Staged(percentage=90)), monkeypatch)


def test_a_gpu_of_unknown_size_cannot_be_shared(make: Callable[..., Confinement]) -> None:
    with pytest.raises(ShareUnavailable, match="NVML does not tell how many SMs"):
        make("full", h200(), nvmlDeviceGetNumGpuCores=NOT_SUPPORTED).probe()


@pytest.mark.parametrize("text", ["full", "green:32", "mig:1g.18gb"])
def test_without_a_driver_every_share_is_refused(make: Callable[..., Confinement], text: str) -> None:
    with pytest.raises(ShareUnavailable, match="no NVIDIA driver on this machine"):
        make(text, h200(), nvmlInit=LIBRARY_NOT_FOUND).probe()


@pytest.mark.parametrize("text", ["full", "green:32"])
def test_a_process_that_was_started_for_another_gpu_is_refused(
    make: Callable[..., Confinement], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VISIBLE, "0")
    with pytest.raises(ShareUnavailable, match=rf"this process has {VISIBLE}='0', and the share needs 'GPU-"):
        make(text, h200()).enter()


def test_none_takes_what_it_finds_and_says_so(
    make: Callable[..., Confinement], monkeypatch: pytest.MonkeyPatch
) -> None:
    granted = entered(make("none", h200(), Staged(mps=True, percentage=50, leaks=True)), monkeypatch)
    assert (granted.share, granted.units, granted.units_total, granted.reserved) == ("none", 66, 132, False)
    whole = entered(make("none", h200()), monkeypatch)
    full = entered(make("full", h200()), monkeypatch)
    assert (whole.units, full.units) == (132, 132)
    assert whole.key != full.key
    alone = entered(make("none", h200(), nvmlInit=LIBRARY_NOT_FOUND), monkeypatch)
    assert (alone.units, alone.units_total) == (132, 132)


@pytest.mark.parametrize("kind", [kind for kind in SHARE_KINDS if not kind.range_of])
def test_every_kind_of_share_has_a_confinement(kind: ShareKind) -> None:
    size = {"cpu-limit": "500m", "full": "", "none": ""}.get(kind.mechanism, "1")
    with contextlib.suppress(NoNvidiaDriver):  # those under MPS look for their GPU when they are built
        confinement_for(Share(kind.mechanism, size))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("full", FullConfinement),
        ("green:8", GreenConfinement),
        ("mig:1g.18gb", MigConfinement),
        ("none", NoConfinement),
    ],
)
def test_each_mechanism_has_its_confinement(text: str, kind: type) -> None:
    """Building one asks nothing of the machine."""
    assert isinstance(confinement_for(Share.parse(text)), kind)
