"""Logs of the parts of a stack: lines of text, or JSON for a log collector."""

import json
import logging
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer

from fractune_core.tracing import current_log_fields

_CHATTY = ("alembic", "rq")
"""libraries with INFO messages about their own insides"""


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


Level = Annotated[LogLevel, typer.Option("--log-level", help="Least level of logged messages.")]
Format = Annotated[LogFormat, typer.Option("--log-format", help="Lines of text, or one JSON object a line.")]


def set_up_logs(level: LogLevel, form: LogFormat) -> None:
    """Let this process log to standard error."""
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s")
    handler.setFormatter(_JsonLines() if form is LogFormat.JSON else text)
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(level=number, handlers=[handler], force=True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **current_log_fields(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)
