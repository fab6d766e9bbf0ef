"""How long a build may take."""

from __future__ import annotations

from fractune_workers.roles.build import Deadline


def noted(deadline: Deadline, workload: str, build_secs: float, count: int) -> int:
    for _ in range(count):
        deadline.note(workload, build_secs)
    return deadline.limit_cpu_s(workload)


def test_eight_times_what_any_builds_took_for_an_operator_with_few() -> None:
    deadline = Deadline()
    assert deadline.limit_cpu_s("new") == 10
    noted(deadline, "a", 0.1, 100)
    assert deadline.limit_cpu_s("new") == 2
    noted(deadline, "b", 0.6, 40)
    assert deadline.limit_cpu_s("new") == 5
    assert noted(deadline, "new", 5.0, 3) == 5
    noted(deadline, "c", 5.0, 40)
    assert deadline.limit_cpu_s("another") == 10


def test_four_times_what_its_own_took_for_an_operator_with_some() -> None:
    deadline = Deadline()
    assert noted(deadline, "small", 0.1, 4) == 1
    assert noted(deadline, "large", 0.8, 4) == 4
    assert noted(deadline, "larger", 6.0, 4) == 10
    assert deadline.limit_cpu_s("small") == 1
