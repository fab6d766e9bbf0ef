"""A slot that another measurement holds is awaited until the end of the time, and no longer."""

from __future__ import annotations

import contextlib
import math
import time
from pathlib import Path

import pytest

from fractune_workers.locks.core_locks import CoreLocks
from fractune_workers.measuring.session import TimeOver
from fractune_workers.packs.measuring import held_in_time


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
