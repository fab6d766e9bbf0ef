"""The file of times of a pack, and slots that other measurements hold."""

import contextlib
import json
import math
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fractune_core.errors import BadRequest, StateUnusable
from fractune_core.files.packs import Pack
from fractune_core.records import TuningRecord
from fractune_workers.locks.core_locks import CoreLocks
from fractune_workers.measuring.session import TimeOver
from fractune_workers.packs.measuring import TimesFile, held_in_time
from tests.support.samples import validation
from tests.unit.core.files.test_packs import HASH, OPERATOR, packed


def test_a_slot_of_another_measurement_is_not_awaited_beyond_the_end(tmp_path: Path) -> None:
    locks = CoreLocks(tmp_path)
    with contextlib.ExitStack() as other:
        other.enter_context(CoreLocks(tmp_path).measuring([0]))
        with pytest.raises(TimeOver), held_in_time(locks.measuring([0]), time.monotonic() + 0.2):
            pytest.fail("two measurements have the same core")
    with held_in_time(CoreLocks(tmp_path).measuring([0]), math.inf) as slot:
        assert slot.co_runners == 0
        assert locks.is_measurement_waiting() is False


def test_an_error_of_what_is_measured_passes_and_frees_the_slot(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match="its own"), held_in_time(CoreLocks(tmp_path).measuring([0]), math.inf):
        raise TimeoutError("its own")
    with held_in_time(CoreLocks(tmp_path).measuring([0]), time.monotonic() + 60.0) as slot:
        assert slot.co_runners == 0


PACK = Pack(packed())


def opened(path: Path) -> contextlib.closing[TimesFile]:
    return contextlib.closing(TimesFile(path, PACK, {HASH: OPERATOR}))


def record(job: str, trace: str) -> TuningRecord:
    return validation(trace, 1, 1.0, workload_hash=HASH, job=job)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "m.times"
    with opened(path) as times:
        times.add([record(times.job, "[1]"), record(times.job, "[2]")])
    return path


def test_it_goes_on_after_a_kill_at_any_byte(written: Path) -> None:
    whole = written.read_bytes()
    *_, last = whole.splitlines(keepends=True)
    begin = len(whole) - len(last)
    for end in (1, begin, begin + 1, begin + len(last) // 2, len(whole) - 2, len(whole) - 1, len(whole)):
        written.write_bytes(whole[:end])
        with opened(written) as times:
            times.add([record(times.job, "[3]")])
            found = set(times.records)
        with opened(written) as times:
            assert set(times.records) == found
        lines = list(map(json.loads, written.read_bytes().splitlines()))
        assert sum("record" in line for line in lines) == len(found)


def others() -> Iterator[bytes]:
    """Files of somebody else, without the end of their last line."""
    own = json.dumps({"workload": {"workload_hash": HASH, "json": OPERATOR.workload}}).encode() + b"\n"
    yield b'{"record": {"my": "notes"}}'
    yield b'{"workload": {"my": "notes"}}'
    yield b'{"workload": {"workload_hash": "0", "json": ""}}\n'
    yield own + json.dumps({"record": record("j1", "[1]").to_json()}).encode() + b'\n{"record": {"torn'


@pytest.mark.parametrize("held", list(others()), ids=range(4))
def test_somebody_elses_file_stays_as_it_is(tmp_path: Path, held: bytes) -> None:
    path = tmp_path / "m.times"
    path.write_bytes(held)
    with pytest.raises(BadRequest, match="name another file with --out"):
        TimesFile(path, PACK, {HASH: OPERATOR})
    assert path.read_bytes() == held


def test_a_full_disk_is_one_line_and_loses_nothing(written: Path) -> None:
    before = written.stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(written) as times:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before + 10, limits[1]))
        try:
            with pytest.raises(StateUnusable, match="File too large; free some space"):
                times.add([record(times.job, "[3]")])
            times.close()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with opened(written) as times:
        assert len(times.records) == 2
