"""What the benchmarks of load count, and what they say of it."""

import math

import pytest

from benchmarks.support.load_clients import WatchCheck
from benchmarks.support.server_figures import quantile
from fractune_core.pb import fractune_pb2 as pb


def told(revision: int, *, ended: bool = False) -> pb.Job:
    state = pb.JOB_STATE_DONE if ended else pb.JOB_STATE_TUNING
    job = pb.Job(name="jobs/j", revision=revision, state=state)
    if ended:
        job.end_time.GetCurrentTime()
    return job


def test_a_watch_that_is_told_everything() -> None:
    check = WatchCheck()
    check.watch_told(told(1), 0.0)
    check.call_told(told(1), 0.5)
    check.call_told(told(3), 1.0)
    check.watch_told(told(4), 1.2)
    check.watch_told(told(6, ended=True), 2.0)
    assert check.finish(told(6, ended=True)) == []
    assert check.behind_s == [0.0, pytest.approx(0.2)]


@pytest.mark.parametrize(
    ("messages", "lost"),
    [
        ([told(1), told(1), told(2, ended=True)], "jobs/j: revision 1 after 1"),
        ([told(3), told(2, ended=True)], "jobs/j: revision 2 after 3"),
        ([told(1)], "jobs/j: the watch ended with revision 1 of 2"),
    ],
)
def test_what_a_watch_lacks_is_told(messages: list[pb.Job], lost: str) -> None:
    check = WatchCheck()
    for message in messages:
        check.watch_told(message, 0.0)
    assert check.finish(told(2, ended=True))[0] == lost


def test_a_revision_that_a_call_told_of_and_the_watch_never_is_lost() -> None:
    check = WatchCheck()
    check.call_told(told(9), 0.0)
    check.watch_told(told(2, ended=True), 1.0)
    assert check.finish(told(2, ended=True)) == ["jobs/j: revision 9 never came"]


def test_a_quantile_between_two_reads_of_a_histogram() -> None:
    before = {0.1: 10.0, 1.0: 10.0, math.inf: 10.0}
    after = {0.1: 60.0, 1.0: 109.0, math.inf: 110.0}
    assert quantile(before, after, 0.25) == pytest.approx(0.05)
    assert quantile(before, after, 0.745) == pytest.approx(0.55)
    assert quantile(before, after, 1.0) == 1.0
    assert math.isnan(quantile(before, before, 0.5))
