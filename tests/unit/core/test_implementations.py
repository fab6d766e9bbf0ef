"""How a candidate names its implementation, and how an operator's workloads are kept together."""

from __future__ import annotations

import pytest

from fractune_core.records import UNTUNED
from fractune_core.workloads import (
    DIRECT,
    TRITON,
    WINOGRAD2,
    WINOGRAD4,
    implementation_of,
    is_exact,
    text_of,
    trace_of,
)

TRACE = '[[["GetSBlock",[],["a:b","main"],["b0"]]],[]]'


@pytest.mark.parametrize("name", [DIRECT, TRITON, WINOGRAD2, WINOGRAD4])
def test_a_text_is_taken_apart_as_it_was_put_together(name: str) -> None:
    text = text_of(name, TRACE)
    assert (implementation_of(text), trace_of(text)) == (name, TRACE)


@pytest.mark.parametrize("text", [UNTUNED, TRACE, "not a trace: [", "no:colon", ":[]"])
def test_what_names_no_implementation_is_of_the_direct_one(text: str) -> None:
    assert (implementation_of(text), trace_of(text)) == (DIRECT, text)


def test_the_untuned_default_is_the_direct_one() -> None:
    assert text_of(DIRECT, UNTUNED) == UNTUNED


def test_which_of_them_round_otherwise() -> None:
    names = [DIRECT, "split", TRITON, WINOGRAD2, WINOGRAD4]
    assert [is_exact(text_of(name, TRACE)) for name in names] == [True, True, False, False, False]
