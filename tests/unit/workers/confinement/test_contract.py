"""What holds for every mechanism: a share is entered and proved in a process of its own, or refused with a reason."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from fractune_core.errors import BadRequest, ShareUnavailable
from fractune_core.share_kinds import CPU, SHARE_KINDS
from fractune_core.shares import GrantedShare, Share
from fractune_workers.child import Child
from fractune_workers.confinement import confinement_for
from fractune_workers.confinement.base import Confinement
from tests.support.hardware.confinement_cases import ALL_CASES, CASES, CPU_CASES, GPU_CASES, Case

CALL_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Machine:
    """A machine that can give the case's share."""

    name: str
    case: Case

    @property
    def is_cpu(self) -> bool:
        return Share.parse(self.case.share).device_kind == CPU

    def confinement(self, share: str = "") -> Confinement:
        return self.case.confinement(Share.parse(share or self.case.share))

    @contextlib.contextmanager
    def process(self, share: str = "", env: dict[str, str] | None = None) -> Iterator[Child]:
        """A process that can enter the share."""
        child = Child("tests.support.children.confinement_child", [self.name, share or self.case.share], env=env)
        try:
            yield child
        finally:
            child.stop()

    @contextlib.contextmanager
    def confined(self, share: str = "") -> Iterator[Child]:
        """A process that has entered it, prepared by its supervisor."""
        supervisor = self.confinement(share)
        supervisor.probe()
        try:
            with self.process(share, supervisor.environment()) as child:
                child.call("enter", CALL_TIMEOUT_S)
                yield child
        finally:
            supervisor.leave()


@pytest.fixture(
    params=[
        *CASES,
        *CPU_CASES,
        *(pytest.param(name, marks=pytest.mark.gpu) for name in GPU_CASES),
    ]
)
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    case = ALL_CASES[request.param]
    with case.machine() as environment:
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        yield Machine(request.param, case)


def test_every_kind_of_share_that_proves_something_has_a_case() -> None:
    """`none` proves nothing, and no worker is under a range."""
    assert {kind.mechanism for kind in SHARE_KINDS if not kind.range_of} - {"none"} == set(CASES)


def test_no_process_is_confined_to_a_range() -> None:
    with pytest.raises(
        BadRequest, match=r"'mps:25\.\.50': this is a range, .* at one share of it; write mps:25, mps:50"
    ):
        confinement_for(Share.parse("mps:25..50"))


def verified(child: Child) -> GrantedShare:
    return GrantedShare.from_json(child.call("verify", CALL_TIMEOUT_S))


def test_probing_changes_nothing(machine: Machine) -> None:
    before = dict(os.environ), os.sched_getaffinity(0)
    machine.confinement().probe()
    assert (dict(os.environ), os.sched_getaffinity(0)) == before


def test_a_share_tells_which_gpu_it_is_a_part_of(machine: Machine) -> None:
    uuid = machine.confinement().gpu_uuid
    assert uuid == machine.confinement().gpu_uuid
    assert uuid is None if machine.is_cpu else str(uuid).startswith("GPU-")


def test_the_environment_is_the_same_when_asked_for_again(machine: Machine) -> None:
    confinement = machine.confinement()
    environment = confinement.environment()
    assert confinement.environment() == environment
    assert all(isinstance(text, str) for item in environment.items() for text in item)
    confinement.leave()


def test_a_confined_process_proves_what_it_was_granted_and_another_the_same_after_it_has_left(machine: Machine) -> None:
    keys = set()
    for leaves in (True, False):
        with machine.confined() as child:
            granted = verified(child)
            keys |= {granted.key, verified(child).key}
            if leaves:
                child.call("leave", CALL_TIMEOUT_S)
    assert keys == {granted.key}
    assert granted.share == machine.case.share
    assert granted.unit == machine.case.unit
    assert granted.reserved == machine.case.reserved
    assert 1 <= granted.units <= granted.units_total
    assert granted.memory_bytes > 0


def test_a_process_that_was_never_confined_proves_nothing(machine: Machine) -> None:
    if machine.case.share == "cpu:1" and len(os.sched_getaffinity(0)) == 1:
        pytest.skip("with one core there is nothing to confine")
    with machine.process() as child, pytest.raises(ShareUnavailable):
        child.call("verify", CALL_TIMEOUT_S)


def test_a_share_that_cannot_be_had_is_refused_by_name(machine: Machine) -> None:
    if not machine.case.refused:
        pytest.skip("there is only one share of this mechanism")
    with (
        pytest.raises(ShareUnavailable, match=f"share '{machine.case.refused}'"),
        machine.confined(machine.case.refused) as child,
    ):
        verified(child)
