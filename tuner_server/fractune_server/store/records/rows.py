"""Rows of the `records` table to and from TuningRecord."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

from sqlalchemy import JSON, ColumnElement, Connection, RowMapping, Text, cast, select

from fractune_core.disturbances import Disturbance
from fractune_core.records import Kind, Status, TimingPolicy, TuningRecord
from fractune_core.shares import Device, GrantedShare
from fractune_server.store.database.tables import records

_DERIVED = ("seq", "device_key", "share_key", "median_s")
_PAGE = 500

_PARSERS: dict[str, Callable[[Any], Any]] = {
    "kind": Kind,
    "status": Status,
    "device": lambda text: Device.from_json(json.loads(text)),
    "granted": lambda text: GrantedShare.from_json(json.loads(text)),
    "policy": lambda text: TimingPolicy.from_json(json.loads(text)),
    "run_secs": lambda text: tuple(map(float, json.loads(text))),
    "throttled_ns": json.loads,
    "versions": json.loads,
    "disturbance": lambda text: None if text is None else Disturbance.from_json(json.loads(text)),
}
_OWN = ("record_id", "run_secs", "anchor_ratio", "measured_at", "build_secs", "max_error", "disturbance")
"""fields that hardly ever are the same in two records"""


def record_to_row(record: TuningRecord) -> dict[str, Any]:
    return {
        **record.to_json(),
        "device_key": record.device.key,
        "share_key": record.granted.key,
        "median_s": record.choosing_s,
    }


def record_from_row(row: RowMapping) -> TuningRecord:
    return TuningRecord.from_json({name: value for name, value in row.items() if name not in _DERIVED})


class RecordReader:
    """Reads many records at once; what they have in common is parsed once and held once."""

    def __init__(self) -> None:
        columns = [records.c[field.name] for field in fields(TuningRecord)]
        self._query = select(*(cast(each, Text) if isinstance(each.type, JSON) else each for each in columns))
        self._parsers = [self._parser(column.name) for column in columns]

    def read(self, connection: Connection, *clauses: ColumnElement[bool]) -> Iterator[TuningRecord]:
        """The records that pass all clauses."""
        found = connection.execution_options(yield_per=_PAGE).execute(self._query.where(*clauses))
        for row in found:
            yield TuningRecord(*(parse(value) for parse, value in zip(self._parsers, row, strict=True)))

    @staticmethod
    def _parser(name: str) -> Callable[[Any], Any]:
        parse = _PARSERS.get(name, _itself)
        return parse if name in _OWN else _Once(parse).__getitem__


class _Once(dict[Any, Any]):
    """Results of a function by its argument."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, argument: Any) -> Any:
        result = self[argument] = self._function(argument)
        return result


def _itself(value: Any) -> Any:
    return value
