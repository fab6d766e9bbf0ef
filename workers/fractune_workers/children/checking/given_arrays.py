"""The caller's own inputs as arrays."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fractune_core.files.input_arrays import LABEL, InputFile
from fractune_workers.children.checking.references import Array


def given_arrays(path: Path, inputs: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
    """The arrays of the file by name, which are exactly the `inputs` of a manifest. Raises BadRequest."""
    with contextlib.closing(InputFile(path, LABEL)) as file:
        file.check(inputs)
        return {
            name: np.frombuffer(file.data(name), each.dtype).reshape(each.shape) for name, each in file.arrays.items()
        }
