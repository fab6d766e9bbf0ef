"""How long a build may take."""

from __future__ import annotations

from workers.roles.build import Deadline


def test_ten_times_what_the_last_builds_took_within_bounds() -> None:
    deadline = Deadline()
    assert deadline.timeout_s == 10.0
    for _ in range(100):
        deadline.note(0.1)
    assert deadline.timeout_s == 4.0
    for _ in range(40):
        deadline.note(0.6)
    assert deadline.timeout_s == 6.0
    for _ in range(40):
        deadline.note(5.0)
    assert deadline.timeout_s == 10.0
