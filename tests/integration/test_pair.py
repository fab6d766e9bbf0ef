"""`fractune pair` for real: two models, confined, alone and together on the cores of this machine."""

import os
import statistics
from pathlib import Path
from unittest.mock import patch

import pytest

import fractune
from fractune.errors import BadBundle
from fractune.features.pair import run as sharing
from fractune.features.pair.run import Program, arrange, co_located, usable_cores
from fractune.local.stack import own_env
from fractune_core.cpu_limits import SPIN_COUNT, SPIN_YIELDS
from tests.support.client_samples import DEVICE, bundle_bytes
from tests.support.real_bundle import Small

pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="two models on one core have no cores of their own"
)

SIDES = 2
ROUNDS = 7
TRIES = 3
"""whoever else is busy on the machine may hide in one of them what short blocks are to show"""


@pytest.fixture
def bundle(small: Small) -> Path:
    return small.bundle


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures that nobody reads need no long blocks."""
    monkeypatch.setattr(sharing, "_BLOCK_S", 0.2)


def test_each_process_is_confined_to_its_place_and_does_not_spin_for_long(bundle: Path) -> None:
    arrangement = arrange("cpu", shares="cpu:1,cpu:1", overlap=None, interleaved=False, cores=usable_cores())
    program = Program("bundle", str(bundle))
    spinning = patch.dict(os.environ, {SPIN_COUNT: "300000"})
    with spinning, co_located((program, program), arrangement, 0, own_env()) as both:
        assert [co_runner.description["variant"] for co_runner in both.co_runners] == ["cpu:1"] * SIDES
        for co_runner in (*both.co_runners, *both.wholes):
            assert co_runner.pid is not None
            assert sorted(os.sched_getaffinity(co_runner.pid)) == list(co_runner.placement.cores)
            environ = Path(f"/proc/{co_runner.pid}/environ").read_text().split("\0")
            assert f"{SPIN_COUNT}={SPIN_YIELDS}" in environ
        pids = [co_runner.pid for co_runner in (*both.co_runners, *both.wholes)]
    assert len(set(pids)) == 2 * SIDES
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.long
def test_a_pair_on_cores_of_their_own(bundle: Path) -> None:
    found = fractune.pair(bundle, bundle, shares="cpu:1,cpu:1", rounds=ROUNDS, rate=100, progress=False)
    assert (len(found.rounds), found.whole) == (ROUNDS, f"cpu:{SIDES}")
    for times in (each for pair in found.rounds for each in pair):
        assert times.s is not None
        assert times.r == pytest.approx(times.s * times.i)
    gains = [sum(1 / times.r for times in pair if times.r) for pair in found.rounds]
    assert found.figures.stp is not None
    assert found.figures.stp.median == pytest.approx(statistics.median(gains))
    assert all(latency.latency_s and latency.p50_s and latency.p99_s for latency in found.latencies)
    assert "makespan: " in str(found.table)


@pytest.mark.long
@pytest.mark.alone
def test_who_waits_for_the_others_turn_gets_half(bundle: Path) -> None:
    for _ in range(TRIES):
        found = fractune.pair(bundle, bundle, interleaved=True, rounds=ROUNDS, progress=False)
        assert [side.s.median for side in found.figures.sides if side.s] == [1.0] * SIDES
        if all(side.i.median > 1.3 for side in found.figures.sides):
            return
    pytest.fail(f"{TRIES} times no side waited: {found.table}")


@pytest.mark.long
def test_a_bubble_in_place_of_a_model(bundle: Path) -> None:
    found = fractune.pair(bundle, co_runner="bubble:8MiB", rounds=ROUNDS, rate=50, progress=False)
    assert [len(each) for each in found.rounds] == [1] * ROUNDS
    assert (found.figures.stp, len(found.latencies)) == (None, 1)


def test_a_bundle_of_another_processor_is_refused(bundle: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.fractune"
    other.write_bytes(bundle_bytes(device={**DEVICE.to_json(), "isa": "zx81"}))
    with pytest.raises(BadBundle, match="is for the CPU 'zx81'"):
        fractune.pair(bundle, other, progress=False)
