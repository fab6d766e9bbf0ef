"""The counts of a job's own trials."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from fractune_core.records import Status
from fractune_server.engine.active_job import TrialCounts

TRIALS = st.tuples(st.sampled_from("abcd"), st.sampled_from(["cpu:1", "cpu:2", "cpu:4"]), st.sampled_from(list(Status)))


@given(st.lists(TRIALS, max_size=40))
def test_counts_are_those_of_the_distinct_trials(trials: list[tuple[str, str, Status]]) -> None:
    own, first = TrialCounts(), dict[tuple[str, str], Status]()
    for candidate, share, status in trials:
        own.add(candidate, share, status)
        first.setdefault((candidate, share), status)
    assert own.candidates == {candidate for candidate, _ in first}
    assert own.by_share == Counter(share for _, share in first)
    assert own.failures == Counter(status.value for status in first.values() if status is not Status.OK)
