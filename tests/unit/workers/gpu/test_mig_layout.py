"""Layouts: every one that fits is found and is what the driver would take; the commands make just that."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from fractune_core.errors import BadRequest, ShareUnavailable
from fractune_core.planning.devices import PROFILES, Profile, placements
from fractune_workers.gpu.mig_layout import apply_layout, commands, plan_layout
from fractune_workers.gpu.nvml import Gpu, NvidiaMl
from tests.support.hardware.simulated_gpu import MODELS, InsufficientResources, SimulatedGpu, gpu_in_mig_mode
from tests.support.hardware.simulated_nvml import SimulatedNvml


def seen(simulated: SimulatedGpu) -> Gpu:
    return NvidiaMl(SimulatedNvml(simulated)).gpus()[0]


@given(st.lists(st.sampled_from(PROFILES), min_size=1, max_size=7))
def test_a_plan_is_one_that_the_driver_takes_in_this_order(profiles: list[Profile]) -> None:
    simulated = gpu_in_mig_mode("H200")
    text = "+".join(profile.name if profile.name != "1g with double memory" else "1g.35gb" for profile in profiles)
    if next(placements(sorted(profiles, key=PROFILES.index)), None) is None:
        with pytest.raises(BadRequest, match="does not fit"):
            plan_layout(text, seen(simulated))
        return
    for profile, place in plan_layout(text, seen(simulated)):
        simulated.make(next(each for each in simulated.model.profiles if each.id == profile.id), place)
    assert sorted(each.profile.id for each in simulated.instances if each) == sorted(each.id for each in profiles)


def test_a_3g_is_made_first_and_where_it_wastes_nothing() -> None:
    gpu = seen(gpu_in_mig_mode("H200"))
    placed = plan_layout("1g+1g+2g+3g", gpu)
    assert [(profile.name, place) for profile, place in placed] == [("3g", 4), ("2g", 0), ("1g", 2), ("1g", 3)]
    assert [(profile.name, place) for profile, place in plan_layout("4g+3g", gpu)] == [("3g", 4), ("4g", 0)]
    assert [(profile.name, place) for profile, place in plan_layout("3g+3g", gpu)] == [("3g", 4), ("3g", 0)]
    late = gpu_in_mig_mode("H200", ("1g", 0))
    with pytest.raises(InsufficientResources):
        late.make(late.profile("3g"), 4)


@pytest.mark.parametrize(
    ("model", "text", "ids"),
    [
        ("A100-40", "3g.20gb+1g.5gb+1g.10gb", [9, 15, 19]),
        ("H100", "3g.40gb+1g.10gb+1g.20gb", [9, 15, 19]),
        ("H200", "3g.71gb+1g.18gb+1g.35gb", [9, 15, 19]),
        ("H200", "7g.141gb", [0]),
        ("H100", "1g+me+2g", [14, 20]),
        ("H100", " 1g.10gb+me + 4g.40gb ", [5, 20]),
    ],
)
def test_nvidias_names_are_understood(model: str, text: str, ids: list[int]) -> None:
    assert [profile.id for profile, _ in plan_layout(text, seen(gpu_in_mig_mode(model)))] == ids


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'' is no instance; write"),
        ("5g", "'5g' is no instance"),
        ("3g,4g", "'3g,4g' is no instance"),
        ("3g.20gb", "'3g.20gb' is no instance of NVIDIA H200, whose 3g has 70 GiB"),
        ("1g.25gb", "whose 1g has 18 GiB"),
        ("4g+4g", "layout '4g+4g' does not fit"),
        ("3g+3g+1g", "does not fit"),
        ("1g+me+1g+me", "does not fit"),
        ("7g+1g", "does not fit"),
    ],
)
def test_what_cannot_be_is_refused(text: str, says: str) -> None:
    with pytest.raises(BadRequest, match=says.replace("+", r"\+")):
        plan_layout(text, seen(SimulatedGpu(MODELS["H200"])))


def test_a_gpu_that_divides_otherwise_is_left_alone() -> None:
    four = replace(seen(gpu_in_mig_mode("A100-40")), name="NVIDIA A30", mig_instances_at_most=4)
    with pytest.raises(ShareUnavailable, match="NVIDIA A30 divides into 4 instances"):
        plan_layout("1g+1g", four)


def test_commands_turn_the_mode_on_remove_what_is_there_and_name_places() -> None:
    fresh, used = seen(SimulatedGpu(MODELS["H200"])), seen(gpu_in_mig_mode("H200", ("1g", 0)))
    lines = [" ".join(command) for command in commands(plan_layout("3g+4g", fresh), fresh)]
    assert lines == [f"nvidia-smi -i {fresh.uuid} -mig 1", f"nvidia-smi mig -i {fresh.uuid} -cgi 9:4,5:0 -C"]
    lines = [" ".join(command) for command in commands(plan_layout("7g", used), used)]
    mig = f"nvidia-smi mig -i {used.uuid}"
    assert lines == [f"{mig} -dci", f"{mig} -dgi", f"{mig} -cgi 0:0 -C"]


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of that name which notes its arguments, and fails when they hold what stands in `fails`."""
    program, notes, fails = tmp_path / "nvidia-smi", tmp_path / "notes", tmp_path / "fails"
    fails.write_text("nothing")
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {notes}\n'
        f'case "$*" in *"$(/bin/cat {fails})"*) echo "Unable to create: Insufficient Permissions"; exit 4;; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_applying_runs_the_commands_and_looks_again(nvidia_smi: Path) -> None:
    before, after = seen(gpu_in_mig_mode("H200", ("1g", 0))), seen(gpu_in_mig_mode("H200", ("3g", 4), ("4g", 0)))
    told: list[str] = []
    looks = iter([before, after])
    assert apply_layout("3g+4g", before, lambda: next(looks), lambda command: told.append(" ".join(command))) is after
    assert [f"nvidia-smi {line}" for line in (nvidia_smi / "notes").read_text().splitlines()] == told
    assert [line.split()[-1] for line in told] == ["-dci", "-dgi", "-C"]


def test_a_command_that_fails_is_the_last(nvidia_smi: Path) -> None:
    gpu = seen(gpu_in_mig_mode("H200", ("1g", 0)))
    (nvidia_smi / "fails").write_text("-dgi")
    with pytest.raises(
        ShareUnavailable, match=r"-dgi` failed \(Unable to create: Insufficient Permissions\); it needs root"
    ):
        apply_layout("3g+4g", gpu, lambda: gpu, lambda _: None)
    assert len((nvidia_smi / "notes").read_text().splitlines()) == 2


def test_a_mode_that_waits_for_a_reset_stops_it(nvidia_smi: Path) -> None:
    off = seen(SimulatedGpu(MODELS["A100-80"]))
    with pytest.raises(ShareUnavailable, match=r"is pending, not in force; .*--gpu-reset"):
        apply_layout("3g+4g", off, lambda: off, lambda _: None)
    assert len((nvidia_smi / "notes").read_text().splitlines()) == 1


def test_nothing_is_run_for_a_layout_that_does_not_fit(nvidia_smi: Path) -> None:
    gpu = seen(gpu_in_mig_mode("H200"))
    with pytest.raises(BadRequest):
        apply_layout("7g+7g", gpu, lambda: gpu, lambda _: None)
    assert not (nvidia_smi / "notes").exists()


def test_a_machine_without_nvidia_smi_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    gpu = seen(gpu_in_mig_mode("H200"))
    with pytest.raises(ShareUnavailable, match="there is no nvidia-smi here"):
        apply_layout("7g", gpu, lambda: gpu, lambda _: None)
