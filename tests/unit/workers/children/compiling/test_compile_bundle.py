"""Variants of a bundle, without their compiler."""

from __future__ import annotations

from typing import Any

import pytest

from fractune_workers.children.compiling import child


def test_variants_of_the_same_schedules_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[dict[Any, str]] = []

    def compile_one(schedules: dict[Any, str]) -> int:
        compiled.append(schedules)
        return len(compiled)

    monkeypatch.setattr(child, "side_by_side", lambda work: [each() for each in work])
    one, other = {"conv": "fast"}, {"conv": "faster"}
    assert child._each_once(compile_one, [one, dict(one), other, {}]) == [1, 1, 2, 3]
    assert compiled == [one, other, {}]
