"""Operators of language models give ONNX Runtime's numbers, in the forms of the sweep."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.support.form_cases import run_form
from benchmarks.support.forms import language
from benchmarks.support.forms.form import Form
from benchmarks.support.node_cases import PASSED, Outcome

_ALL = (
    language.rotary,
    language.norms,
    language.group_query,
    language.whole_attention,
    language.multi_head,
    language.packed_weights,
)
FAMILIES = {each.__name__: list(each()) for each in _ALL}


def failed(forms: list[Form]) -> dict[str, Outcome]:
    outcomes = {form.name: run_form(form) for form in forms}
    return {name: each for name, each in outcomes.items() if each != Outcome(PASSED)}


@pytest.mark.parametrize("family", FAMILIES)
def test_some_forms_pass(family: str) -> None:
    assert failed(list(itertools.islice(FAMILIES[family], 2, None, 8))) == {}


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_every_form_passes(family: str) -> None:
    assert failed(FAMILIES[family]) == {}
