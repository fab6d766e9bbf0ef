"""Rows of a table as a data frame of pandas or Polars, where these are installed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from fractune_core.errors import FractuneError

Rows = Sequence[Mapping[str, Any]]


def pandas_frame(rows: Rows) -> Any:
    """A `pandas.DataFrame` with a column for each name. Raises FractuneError without pandas."""
    return _library("pandas").DataFrame(list(rows))


def polars_frame(rows: Rows) -> Any:
    """A `polars.DataFrame` with a column for each name. Raises FractuneError without Polars."""
    # Types of columns are those of all rows: the first rows of a column may lack its value.
    return _library("polars").DataFrame(list(rows), infer_schema_length=None, strict=False)


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise FractuneError(f"a data frame of {name} needs it; install the package '{name}'") from error
