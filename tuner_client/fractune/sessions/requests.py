"""A caller's request before any work: checks of its filters, and the file of its bundle."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from fractune_core.errors import BadRequest
from fractune_core.files.bundles import SUFFIX
from fractune_core.records import Kind
from fractune_core.shares import Share


def check_record_filter(share: str, kind: str) -> None:
    """Raises BadRequest for a share or a kind that no record can have."""
    if share:
        Share.parse(share)
    if kind:
        with contextlib.suppress(ValueError):
            Kind(kind)
            return
        raise BadRequest(f"kind '{kind}': write {' or '.join(each.value for each in Kind)}")


def bundle_file(out: str | os.PathLike[str], model_name: str) -> Path:
    """The file for a model's bundle: `out` itself (`*.fractune`), or `<model>.fractune` in the folder `out`."""
    path = Path(out).absolute()
    return path if path.suffix == SUFFIX else path / f"{Path(model_name).stem}{SUFFIX}"
