"""What of an operator's validations counts."""

from __future__ import annotations

from fractune_core.analysis.validated import ValidatedRecords
from fractune_core.workloads import WINOGRAD2, text_of
from tests.support.samples import validation


def test_exact_leaves_out_what_rounds_otherwise() -> None:
    texts = ["t", text_of("split", "[]"), text_of(WINOGRAD2, "[]")]
    found = ValidatedRecords(tuple(validation(text, 1, 1.0) for text in texts))
    assert [record.trace for record in found.exact.records] == texts[:2]
