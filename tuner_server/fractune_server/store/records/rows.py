"""Rows of the `records` table to and from TuningRecord."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, get_type_hints

from sqlalchemy import JSON, Column, ColumnElement, Connection, RowMapping, Text, cast, select

from fractune_core.codec.plain_json import from_json
from fractune_core.records import TuningRecord
from fractune_server.store.database.database import as_dict
from fractune_server.store.database.tables import records

_PAGE = 500

_OWN = ("record_id", "run_secs", "cpu_secs", "anchor_ratio", "measured_at", "build_secs", "max_error", "disturbance")
"""fields that hardly ever are the same in two records"""


def record_to_row(record: TuningRecord) -> dict[str, Any]:
    return {
        **record.to_json(),
        "device_key": record.device.key,
        "share_key": record.granted.key,
        "ranking_median_s": record.choosing_s,
    }


def record_from_row(row: RowMapping) -> TuningRecord:
    return TuningRecord.from_json(as_dict(row))


class RecordReader:
    """Reads many records at once; what they have in common is parsed once and held once."""

    def __init__(self) -> None:
        kinds = get_type_hints(TuningRecord)
        columns = [records.c[field.name] for field in fields(TuningRecord)]
        self._query = select(*(cast(each, Text) if isinstance(each.type, JSON) else each for each in columns))
        self._parsers = [_parser(column, kinds[column.name]) for column in columns]

    def read(self, connection: Connection, *clauses: ColumnElement[bool]) -> Iterator[TuningRecord]:
        """The records that pass all clauses."""
        found = connection.execution_options(yield_per=_PAGE).execute(self._query.where(*clauses))
        for row in found:
            yield TuningRecord(*(parse(value) for parse, value in zip(self._parsers, row, strict=True)))


def _parser(column: Column[Any], kind: Any) -> Callable[[Any], Any]:
    is_json = isinstance(column.type, JSON)

    def parse(value: Any) -> Any:
        return from_json(kind, json.loads(value) if is_json and value is not None else value)

    return parse if column.name in _OWN else _Once(parse).__getitem__


class _Once(dict[Any, Any]):
    """Results of a function by its argument."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, argument: Any) -> Any:
        result = self[argument] = self._function(argument)
        return result
