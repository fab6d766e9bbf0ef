"""A process that measures on a CPU has a limit of memory, and what meets it fails for that: with real processes."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fractune_core.host import machine
from fractune_core.records import Status
from fractune_core.shares import Share
from fractune_workers.child.errors import LimitMet
from fractune_workers.children.tvm_api.target import host_device
from fractune_workers.measuring.session import ArtifactBatch, MeasurementSession
from fractune_workers.sandboxes import MeasurerLimits
from tests.support.client_samples import bundle_bytes

MEMORY_BYTES = 3 << 28
CAUSE = "it takes more than 0.75 GiB of memory; make it smaller, or start workers with a larger --max-model-memory"
EIGHT_LARGE = [["TENSOR", "float32", [2**25]]] * 6
"""0.75 GiB"""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeasurementSession]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "_MODEL_SHARE", 0.0)
        patch.setattr(machine, "_FEWEST_MODEL_BYTES", MEMORY_BYTES)
        core = sorted(os.sched_getaffinity(0))[:1]
        limits = MeasurerLimits(readable=[tmp_path_factory.getbasetemp()])
        made = MeasurementSession(Share.parse("cpu:1"), core, lock_dir=tmp_path_factory.mktemp("gate"), limits=limits)
    made.handshake()
    yield made
    made.stop()


def test_a_candidate_whose_arguments_take_too_much_is_failed_and_not_run_again(session: MeasurementSession) -> None:
    before = session.generation
    outcomes = session.trials(ArtifactBatch(EIGHT_LARGE, 0, {"large": b"no code"}))
    assert (outcomes["large"].status, outcomes["large"].cause) == (Status.CRASHED, CAUSE)
    assert session.generation == before
    # Its end is its own: the next batch is not held up by it.
    outcomes = session.trials(ArtifactBatch([["TENSOR", "float32", [4]]], 0, {"small": b"no code"}))
    assert outcomes["small"].status is Status.RUN_FAILED
    assert session.generation == before + 1


def test_a_model_that_takes_too_much_is_not_timed(session: MeasurementSession, tmp_path: Path) -> None:
    path = tmp_path / "large.fractune"
    inputs = [{"name": "x", "dtype": "float32", "shape": [2**28]}]
    path.write_bytes(bundle_bytes(inputs=inputs, device=host_device().to_json()))
    before = session.generation
    with pytest.raises(LimitMet) as met:
        session.time_model(path)
    assert str(met.value) == CAUSE
    assert session.generation <= before + 1
