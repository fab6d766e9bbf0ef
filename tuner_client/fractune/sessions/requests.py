"""What a caller asks for, checked before anything starts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fractune_core.errors import BadRequest
from fractune_core.files.bundles import SUFFIX
from fractune_core.jobs import JobSpec, Priority
from fractune_core.records import Kind
from fractune_core.shares import Share, parse_shares


def job_spec(model_name: str, shares: str | Sequence[str], inputs: Mapping[str, Sequence[int]], **rest: Any) -> JobSpec:
    """What the caller asks for; the digest of the model is still missing. Raises BadRequest."""
    spec = JobSpec(model="", model_name=model_name, shares=share_names(shares), inputs=shapes(inputs), **rest)
    spec.check()
    return spec


def tuning_spec(
    model_name: str,
    shares: str | Sequence[str],
    inputs: Mapping[str, Sequence[int]],
    *,
    more: int | None,
    minutes: float | None,
    rerank: int | None,
    priority: str,
    **rest: Any,
) -> JobSpec:
    """As `job_spec`, for a search with limits that may be left out. Raises BadRequest."""
    rest["priority"] = Priority.parse(priority).number
    limits = {"more": more, "minutes": minutes, "rerank": rerank}
    for name, value in limits.items():
        check_above_zero(name, value)
    return job_spec(model_name, shares, inputs, **{name: value or 0 for name, value in limits.items()}, **rest)


def share_names(shares: str | Sequence[str]) -> tuple[str, ...]:
    """`"cpu:1,cpu:2"` or `["cpu:1", "cpu:2"]`. Raises BadRequest for none, a wrong or a repeated one."""
    text = shares if isinstance(shares, str) else ",".join(map(str, shares))
    return tuple(map(str, parse_shares(text)))


def shapes(inputs: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """Raises BadRequest for a size below 1."""
    for name, dims in inputs.items():
        if any(dim < 1 for dim in dims):
            raise BadRequest(f"inputs: '{name}' has the shape {list(dims)}; every size must be at least 1")
    return {name: [int(dim) for dim in dims] for name, dims in inputs.items()}


def check_above_zero(name: str, value: float | None) -> None:
    """Raises BadRequest for a limit that is given and cannot be meant."""
    if value is not None and not value > 0:
        raise BadRequest(f"{name} is {value}; it must be above 0, or left out")


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
