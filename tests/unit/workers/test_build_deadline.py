"""How long a build may take."""

from __future__ import annotations

from workers.roles.build import Deadline


def test_eight_times_what_the_last_builds_took_within_bounds() -> None:
    deadline = Deadline()
    assert deadline.limit_cpu_s == 10
    for _ in range(100):
        deadline.note(0.1)
    assert deadline.limit_cpu_s == 2
    for _ in range(40):
        deadline.note(0.6)
    assert deadline.limit_cpu_s == 5
    for _ in range(40):
        deadline.note(5.0)
    assert deadline.limit_cpu_s == 10
