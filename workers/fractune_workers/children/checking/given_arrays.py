"""The caller's own inputs as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fractune_core.files.input_arrays import check_arrays, read_input_arrays
from fractune_workers.children.checking.references import Array

LABEL = "--check-inputs"


def given_arrays(path: Path, inputs: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
    """The arrays of the file by name, which are exactly the `inputs` of a manifest. Raises BadRequest."""
    arrays = read_input_arrays(path, LABEL)
    check_arrays(arrays, inputs, LABEL)
    return {name: np.frombuffer(each.data, each.dtype).reshape(each.shape) for name, each in arrays.items()}
