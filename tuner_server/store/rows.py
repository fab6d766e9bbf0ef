"""Rows of the `records` table to and from TuningRecord."""

from __future__ import annotations

from typing import Any

from sqlalchemy import RowMapping

from tuner_core.records import TuningRecord

_DERIVED = ("seq", "device_key", "share_key", "median_s")


def record_to_row(record: TuningRecord) -> dict[str, Any]:
    return {
        **record.to_json(),
        "device_key": record.device.key,
        "share_key": record.granted.key,
        "median_s": record.median_s,
    }


def record_from_row(row: RowMapping) -> TuningRecord:
    return TuningRecord.from_json({name: value for name, value in row.items() if name not in _DERIVED})
