"""What a match says of the whole model's times."""

from __future__ import annotations

from fractune.features.log.match import MatchResult
from tests.support.client_results import tuned_job


def test_disturbed_times_choose_nothing_and_are_the_most_that_the_model_takes() -> None:
    timed = tuned_job().results[0].at_load
    (note, *_) = MatchResult("cpu:1", (), None, timed, 0.75).table.notes
    assert note == (
        "cpu:1: other programs had 0.75 cores when the model was timed, so no variant is known to be best, and the "
        "model takes <= 4.40 ms in a loop; tune it again on a quieter machine"
    )
    assert MatchResult("cpu:1", (), None, timed, 0.1).table.notes[0].startswith("cpu:1, best for latency: ")
