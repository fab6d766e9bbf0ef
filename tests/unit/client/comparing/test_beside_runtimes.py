from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fractune.comparing import beside

WANTED = [np.array([1.0, 2.0], np.float32)]


class TwoVariants:
    """A model whose untuned variant lies this far from the chosen one."""

    def __init__(self, apart: float) -> None:
        self._apart = apart

    def run(self, _: dict[str, Any], variant: str | None = None) -> list[Any]:
        assert variant == "untuned"
        return [WANTED[0] + np.array([0.0, 2.0 * self._apart], np.float32)]


@pytest.mark.parametrize(("apart", "allowed"), [(0.0, 1e-3), (1e-4, 1e-3), (1e-2, 3e-2), (0.5, 5e-2)])
def test_another_runtime_may_differ_as_variants_of_the_bundle_do(apart: float, allowed: float) -> None:
    model: Any = TwoVariants(apart)
    assert beside._allowed(model, {}, WANTED) == pytest.approx(allowed, rel=1e-3)
