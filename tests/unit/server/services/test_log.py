"""Answers of the log's service."""

from __future__ import annotations

from fractune_core.analysis.match import How, Match
from fractune_core.jobs import OperatorTask
from fractune_server.selection.model_match import OperatorAnswer
from fractune_server.services.log import _answer


def test_a_match_without_a_record_has_the_time_of_the_untuned_default_at_its_share() -> None:
    task = OperatorTask("0123", "conv", 1)
    known, unknown = (
        _answer(OperatorAnswer("cpu:1", task, Match(How.NONE, None, 0.0, "", untuned_s), None))
        for untuned_s in (2e-3, None)
    )
    assert dict(known.operator.untuned_s) == {"cpu:1": 2e-3}
    assert not unknown.operator.untuned_s
    assert not known.HasField("record")
