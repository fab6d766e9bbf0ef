"""A goal: when a bundle counts as faster than its peer, how the trials grow, and what people are told."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from fractune.features.goal import (
    Goal,
    GoalEnd,
    GoalStep,
    LoopAndPaced,
    PeerTiming,
    SideBySide,
    goal_end,
    goal_json,
    goal_line,
    goal_notes,
    next_trials,
    step_line,
    step_times,
    verdict_line,
)

PEER_SECS = tuple(1e-3 * (1 + 0.01 * (number % 3)) for number in range(15))


def timing(ratio: float, share: str = "cpu:1", jitter: float = 0.01) -> PeerTiming:
    """Ours takes `ratio` of the peer's time, a little more or less from repeat to repeat."""
    ours = tuple(secs * ratio * (1 + jitter * (number % 5 - 2)) for number, secs in enumerate(PEER_SECS))
    paced = SideBySide(tuple(2 * secs for secs in ours), PEER_SECS)
    return PeerTiming(ours, PEER_SECS, paced, share, share, None, 1e-6, outputs_agree=True)


def test_a_disturbed_timing_beats_the_peer_only_beyond_what_the_lost_cores_explain() -> None:
    quiet = timing(0.8)
    kept_08, kept_05 = (replace(quiet, others_cores=others_cores) for others_cores in (0.2, 0.5))
    assert (quiet.beats(0.0), kept_08.beats(0.0), kept_05.beats(0.0)) == (True, True, False)
    assert kept_05.ratio == quiet.ratio
    assert kept_05.interval[1] == pytest.approx(quiet.interval[1] / 0.5)
    assert replace(timing(0.4), others_cores=0.5).beats(0.0)


def goal(*ratios: float, by: float = 0.0) -> Goal:
    """A goal at two shares, with a step of 40 s and 10 trials for each ratio; at the other share ours is fast."""
    steps = tuple(
        GoalStep(40.0 * number, 10 * number, (timing(ratio), timing(0.5, "cpu:2")))
        for number, ratio in enumerate(ratios)
    )
    return Goal("onnxruntime", "1.31", by, {"cpu:1": 9.1e-3, "cpu:2": 5.9e-3}, steps)


@pytest.mark.parametrize(
    ("ratio", "by", "jitter", "beaten"),
    [
        (0.9, 0.0, 0.01, True),
        (0.9, 0.05, 0.01, True),
        (0.9, 0.1, 0.01, False),
        (1.0, 0.0, 0.01, False),
        (0.99, 0.0, 0.2, False),  # a difference inside the noise
    ],
)
def test_ours_beats_the_peer_by_a_part_and_beyond_the_noise(
    ratio: float, by: float, jitter: float, *, beaten: bool
) -> None:
    found = timing(ratio, jitter=jitter)
    assert found.beats(by) is beaten
    assert found.ratio == pytest.approx(ratio)
    assert found.interval[0] <= found.ratio <= found.interval[1]


def test_a_peer_is_beaten_at_every_share_by_the_last_step_and_enough_repeats() -> None:
    assert not goal().beaten
    assert not goal(1.5, 1.2).beaten
    assert goal(1.5, 0.8).beaten
    assert not goal(0.8, 1.2).beaten
    assert not goal(1.5, 0.8, by=0.3).beaten
    found = replace(timing(0.5), our_secs=(1e-9, 1e-9), peer_secs=(1.0, 1.0))
    assert not found.beats(0.0)


def test_parity_is_the_first_step_that_is_no_slower() -> None:
    found = goal(1.5, 0.95, 0.8)
    assert found.parity_s("cpu:1") == 40.0
    assert found.parity_s("cpu:2") == 0.0
    assert goal(1.5, 1.2).parity_s("cpu:1") is None


@pytest.mark.parametrize(
    ("ratio", "known", "empty_steps", "minutes_over", "end"),
    [
        (0.8, 9, 2, True, GoalEnd.BEATEN),
        (1.2, 8, 0, False, GoalEnd.TRIALS),
        (1.2, 7, 2, False, GoalEnd.EXHAUSTED),
        (1.2, 7, 1, True, GoalEnd.MINUTES),
        (1.2, 7, 1, False, None),
    ],
)
def test_it_ends_when_it_is_beaten_or_nothing_is_left_to_try_with(
    ratio: float, known: int, empty_steps: int, *, minutes_over: bool, end: GoalEnd | None
) -> None:
    assert goal_end(goal(ratio), known, 8, empty_steps, minutes_over=minutes_over) is end


@given(st.integers(0, 5000), st.integers(1, 200), st.none() | st.integers(0, 5000))
def test_steps_grow_up_to_their_bound(reached: int, operators: int, most: int | None) -> None:
    wanted = next_trials(reached, operators, most)
    if most is None:
        assert wanted > reached
        assert wanted >= 1.5 * reached - 1
    else:
        assert wanted == min(most, next_trials(reached, operators, None))


def test_what_people_are_told() -> None:
    found = goal(1.5, 1.25)
    assert goal_line(found) == "goal  onnxruntime 1.31: cpu:1 9.10 ms, cpu:2 5.90 ms"
    assert goal_line(goal(by=0.05)).endswith(", to be beaten by 5.0 %")
    assert step_line(found.steps[1]).startswith("10 trials, 40 s, ours / theirs: cpu:1 1.25 (1.2")
    ended = replace(found, end=GoalEnd.MINUTES)
    assert verdict_line(ended).startswith("goal: onnxruntime 1.31 is not beaten at every share: the minutes are over, ")
    beaten = replace(goal(1.5, 0.8), end=GoalEnd.BEATEN)
    assert verdict_line(beaten) == "goal: onnxruntime 1.31 is beaten, after 10 trials and 40 s of tuning"


def test_outputs_that_differ_or_say_nothing_are_noted() -> None:
    found = goal(1.25)
    assert goal_notes(found) == []
    doubtful = replace(found.steps[0].timings[0], max_rel_difference=0.2, outputs_agree=False)
    (note,) = goal_notes(replace(found, steps=(GoalStep(0.0, 0, (doubtful,)),)))
    assert note.startswith("note: at cpu:1 the outputs differ from onnxruntime's by 2.0e-01")
    found = goal(1.25)
    unproved = replace(found.steps[0].timings[0], unproved="NaN or infinite")
    (note,) = goal_notes(replace(found, steps=(GoalStep(0.0, 0, (unproved,)),)))
    assert note.startswith("note: at cpu:1 the outputs are NaN or infinite, so that their agreement with onnxruntime's")


def test_as_json_it_has_every_step_and_the_last_one_in_full() -> None:
    told = goal_json(replace(goal(1.5, 1.25), end=GoalEnd.TRIALS))
    assert (told["peer"], told["version"], told["beaten"], told["end"]) == ("onnxruntime", "1.31", False, "trials")
    assert (told["trials"], told["tuning_s"], len(told["steps"])) == (10, 40.0, 2)
    assert told["steps"][0]["shares"]["cpu:1"]["ratio"] == pytest.approx(1.5)
    slow, fast = told["shares"]
    assert (slow["beaten"], slow["parity_s"], fast["beaten"], fast["parity_s"]) == (False, None, True, 0.0)
    assert slow["ratio_low"] <= slow["ratio"] <= slow["ratio_high"]
    assert len(slow["our_run_secs"]) == len(slow["peer_run_secs"]) == len(PEER_SECS)
    assert slow["paced"]["ratio"] == pytest.approx(2.5)
    assert len(slow["paced"]["our_run_secs"]) == len(slow["paced"]["peer_run_secs"]) == len(PEER_SECS)
    assert goal_json(goal())["shares"] == []


def test_a_quantized_model_has_a_note_and_json_of_the_exact_session() -> None:
    plain, half = goal(0.5), timing(0.5)
    beside = LoopAndPaced(half.our_secs, half.our_secs, half.paced)
    step = replace(plain.steps[0], timings=(replace(half, exact=beside),))
    exact = replace(plain, steps=(step,))
    assert goal_notes(plain) == []
    (note,) = goal_notes(exact)
    assert note.startswith("note: at cpu:1 onnxruntime with exact products takes 505 us, ours / theirs 1.00 (")
    assert goal_json(plain)["shares"][0]["exact"] is None
    assert goal_json(exact)["shares"][0]["exact"]["ratio"] == pytest.approx(1.0)


def test_a_log_gets_the_peer_of_the_last_step() -> None:
    first, second = step_times(goal(1.4, 0.8), "ab" * 32, {"x": [1, 8]})
    assert (first.share, second.share) == ("cpu:1", "cpu:2")
    assert (first.runtime, first.version, first.inputs) == ("onnxruntime", "1.31", {"x": [1, 8]})
    timed = timing(0.8)
    assert (first.loop_s, first.bundle_loop_s) == (timed.peer_s, timed.our_s)
    assert (first.paced_s, first.bundle_paced_s) == (timed.paced.peer_s, timed.paced.our_s)
    assert first.loop_ratio.median == pytest.approx(0.8, rel=0.02)
    assert first.paced_ratio.median == pytest.approx(1.6, rel=0.02)
    for each in (first, second):
        each.check()
    assert first.time_id != second.time_id
