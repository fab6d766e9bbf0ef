"""The log beside what the measurers say: each fault is found, and nothing else is called one."""

from dataclasses import replace
from typing import Any

from benchmarks.chaos.audit import Audit, AuditFindings, check_audit
from fractune_core.records import Kind, Status, TuningRecord
from fractune_workers.measuring.audit import delivered_line, measured_line
from tests.support.samples import validation


def trial(name: str, units: int = 1, **changes: Any) -> TuningRecord:
    return validation(name, units, 0.25, kind=Kind.TRIAL, **changes)


def findings(
    told: list[TuningRecord], log: list[TuningRecord], *, sent: list[TuningRecord] | None = None
) -> AuditFindings:
    """`sent`: those that Redis took, by default all that were told."""
    audit = Audit()
    lines = [measured_line(record) for record in told]
    audit.read([*lines, delivered_line((r.record_id for r in (told if sent is None else sent)), 1.0)])
    return check_audit(audit, log)


def test_a_log_that_has_just_what_was_measured() -> None:
    records = [trial("a"), trial("a", 2), trial("b"), validation("a", 1, 0.5, record_id="v")]
    found = findings(records, records)
    assert found.faultless
    assert (found.said, found.recorded, found.measured_again, found.unsent) == (4, 4, 0, 0)


def test_what_was_sent_and_is_not_there_is_lost() -> None:
    found = findings([trial("a"), trial("b")], [trial("a")])
    assert (found.lost, found.faultless) == (("b@1",), False)


def test_what_a_killed_measurer_never_sent_is_not_lost() -> None:
    found = findings([trial("a"), trial("b")], [trial("a")], sent=[trial("a")])
    assert (found.lost, found.unsent, found.faultless) == ((), 1, True)


def test_what_was_sent_though_the_measurer_could_not_say_so_counts_as_told() -> None:
    found = findings([trial("a")], [trial("a")], sent=[])
    assert (found.faultless, found.unsent) == (True, 0)


def test_a_candidate_measured_twice_at_a_share_is_doubled() -> None:
    records = [trial("a"), trial("a", record_id="again")]
    found = findings(records, records)
    assert (found.doubled, found.faultless) == (("again",), False)


def test_a_candidate_of_another_scope_and_a_validation_are_no_doubles() -> None:
    records = [trial("a"), trial("a", record_id="other", namespace="other"), validation("a", 1, 0.5, record_id="v")]
    assert findings(records, records).faultless


def test_what_nobody_told_is_invented() -> None:
    assert findings([], [trial("a")]).invented == ("a@1",)


def test_other_times_than_those_told_are_invented() -> None:
    told = trial("a")
    assert findings([told], [replace(told, run_secs=(0.2, *told.run_secs[1:]))]).invented == ("a@1",)
    assert findings([told], [replace(told, status=Status.CRASHED, run_secs=())]).invented == ("a@1",)


def test_either_of_two_measurers_of_the_same_may_be_the_one_that_was_heard() -> None:
    first, second = trial("a", worker="w1", measured_at=1.0), trial("a", worker="w2", measured_at=2.0)
    for heard in (first, second):
        found = findings([first, second], [heard])
        assert (found.faultless, found.said, found.measured_again) == (True, 1, 1)


def test_what_the_server_gave_up_is_told_apart() -> None:
    found = findings([], [trial("a", worker="", status=Status.CRASHED, run_secs=())])
    assert (found.given_up, found.invented, found.faultless) == (("a@1",), (), True)


def test_a_line_cut_short_says_nothing() -> None:
    audit = Audit()
    line = measured_line(trial("a"))
    audit.read([line[: len(line) // 2], measured_line(trial("b")), "[]", "{}"])
    assert (list(audit.statements), audit.torn) == (["b@1"], 3)
