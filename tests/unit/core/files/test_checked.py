"""The line of a bundle's check says why a large difference is none."""

from __future__ import annotations

import pytest

from fractune_core.files.checked import Checked


@pytest.mark.parametrize(("difference", "explained"), [(0.12, True), (1e-3, False), (0.0, False)])
def test_a_difference_beyond_rounding_is_explained(*, difference: float, explained: bool) -> None:
    line = Checked("ONNX Runtime", {"random": 1e-6, "zeros": difference}).line
    assert ("right computations of this model differ" in line) == explained
