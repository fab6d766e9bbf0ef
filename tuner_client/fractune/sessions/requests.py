"""The file for a model's bundle."""

from __future__ import annotations

import os
from pathlib import Path

from fractune_core.errors import BadRequest
from fractune_core.files.bundles import SUFFIX
from fractune_core.files.fused import SUFFIX as FUSED

_MODEL_SUFFIXES = (".onnx", ".pt2", ".json", ".py", FUSED)


def bundle_file(out: str | os.PathLike[str], model_name: str) -> Path:
    """The file for a model's bundle: `out` itself (`*.fractune`), or `<model>.fractune` in the folder `out`.

    Raises BadRequest if `out` has the name of a model file, which would become a folder.
    """
    path = _checked(out)
    return path if path.suffix == SUFFIX else path / f"{Path(model_name).stem}{SUFFIX}"


def named_bundle_file(out: str | os.PathLike[str] | None, model_name: str) -> Path:
    """The file `out`, or `<model>.fractune` in the folder `out` if it exists; None = in the current folder.

    Raises BadRequest if `out` has the name of a model file, which would be overwritten.
    """
    path = _checked(out or ".")
    return path / f"{Path(model_name).stem}{SUFFIX}" if path.is_dir() and path.suffix != SUFFIX else path


def _checked(out: str | os.PathLike[str]) -> Path:
    path = Path(out).absolute()
    if path.suffix in _MODEL_SUFFIXES and not path.is_dir():
        raise BadRequest(f"--out {out}: this is the name of a model; write NAME{SUFFIX}, or a folder for the bundle")
    return path
