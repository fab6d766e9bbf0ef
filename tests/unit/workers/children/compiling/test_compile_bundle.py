"""Variants of a bundle, without their compiler."""

from __future__ import annotations

import pytest

from fractune_workers.children.compiling import child


def test_variants_of_the_same_schedules_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[int] = []

    def compile_one(at: int) -> int:
        compiled.append(at)
        return 10 * at

    monkeypatch.setattr(child, "side_by_side", lambda work: [each() for each in work])
    one, other = {"conv": "fast"}, {"conv": "faster"}
    assert child._each_once([one, dict(one), other, {}], compile_one) == [0, 0, 20, 30]
    assert compiled == [0, 2, 3]
