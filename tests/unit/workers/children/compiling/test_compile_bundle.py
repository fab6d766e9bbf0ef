"""Variants of a bundle, without their compiler."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fractune_workers.children.compiling import child


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Places of what was compiled, which is ten times the place."""
    monkeypatch.setattr(child, "side_by_side", lambda work: [each() for each in work])
    return []


def compiler(compiled: list[int]) -> Callable[[int], int]:
    def compile_at(at: int) -> int:
        compiled.append(at)
        return 10 * at

    return compile_at


def test_variants_of_the_same_schedules_are_compiled_once(compiled: list[int]) -> None:
    assert child._each_once(["fast", "fast", "faster", "untuned"], {}, compiler(compiled)) == [0, 0, 20, 30]
    assert compiled == [0, 2, 3]


def test_variants_of_the_bundle_before_are_not_compiled_again_and_no_others_are_kept(compiled: list[int]) -> None:
    known: dict[str, int] = {}
    child._each_once(["untuned", "slow"], known, compiler(compiled))
    assert child._each_once(["untuned", "fast", "fast"], known, compiler(compiled)) == [0, 10, 10]
    assert compiled == [0, 1, 1]
    assert known == {"untuned": 0, "fast": 10}
