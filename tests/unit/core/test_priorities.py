"""Words and numbers of priorities."""

from __future__ import annotations

import pytest

from fractune_core.errors import BadRequest
from fractune_core.priorities import Priority


def test_words_stand_for_numbers_and_any_number_for_a_word() -> None:
    assert [Priority.parse(word).number for word in ("low", "normal", "high")] == [-1, 0, 1]
    assert [Priority.of(number).value for number in (-7, -1, 0, 1, 5)] == ["low", "low", "normal", "high", "high"]


def test_another_word_is_refused_in_one_line() -> None:
    with pytest.raises(BadRequest, match="priority is 'urgent'; write low, normal, high"):
        Priority.parse("urgent")
