"""Which fields of a record its reader parses once for all records."""

from __future__ import annotations

from typing import get_type_hints

from fractune_core.records import TuningRecord
from fractune_server.store.records.rows import _OWN


def test_measured_numbers_are_parsed_for_each_record() -> None:
    """Two records hardly ever have the same time, so its text is not worth keeping."""
    measured = {name for name, kind in get_type_hints(TuningRecord).items() if "float" in str(kind)}
    assert measured - set(_OWN) == set()
