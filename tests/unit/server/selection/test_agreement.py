"""What `match`, tables and bundles tell of the same records, under noise: it holds, and they agree with each other."""

import random

import pytest

from fractune.features.matrix.cross_table import CrossTable, operator_table, sentences
from fractune.server.job_status import OperatorRecords, OperatorStatus
from fractune_core.analysis.match import How, find_match
from fractune_core.analysis.validated import ValidatedRecords
from fractune_core.codec.messages import from_proto
from fractune_core.files.bundles import Bundle
from fractune_core.jobs import OperatorTask
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import UNTUNED, VALIDATION_POLICY, TimingPolicy
from fractune_runtime.choosing import choose_variant
from fractune_server.selection.model_match import OperatorRow, _row
from fractune_server.selection.variants import Deployment, ValidatedOperator, measured_secs, variants_for
from tests.support.client_samples import bundle_bytes, variants as named_variants
from tests.support.samples import DEVICE, TARGET_KEY, WORKLOAD, granted, validation

TRACES = [UNTUNED, "a", "b", "c", "d"]
NAME = WORKLOAD


def deployment(units: tuple[int, ...]) -> Deployment:
    return Deployment(DEVICE.key, TARGET_KEY, {f"cpu:{each}": granted(each) for each in units})


def one_program(
    rng: random.Random, units: tuple[int, ...], policy: TimingPolicy = VALIDATION_POLICY
) -> ValidatedRecords:
    """Finalists that are all one program, at each of the shares timed in turn."""

    def run_secs() -> tuple[float, ...]:
        return tuple(1.0 + 0.1 * rng.paretovariate(1.5) for _ in range(policy.repeats))

    return ValidatedRecords(
        tuple(validation(trace, at, 0.0, run_secs=run_secs(), policy=policy) for trace in TRACES for at in units)
    )


def row(found: ValidatedRecords, place: Deployment) -> OperatorRow:
    return _row(OperatorTask(NAME, "conv2d", 1), found, place)


def table(found: ValidatedRecords, place: Deployment) -> CrossTable:
    cells = tuple((tuned_at, run_at, record) for (tuned_at, run_at), record in row(found, place).cells.items())
    operator = from_proto(OperatorStatus, pb.Operator(display_name="conv2d", workload_hash=NAME, weight=1))
    return operator_table(OperatorRecords(operator, cells), list(place.granted))


def says_a_difference(told: CrossTable) -> bool:
    """In a cell, or below."""
    words = any(" loses " in sentence or " faster than " in sentence for sentence in sentences(told))
    return words or any(not lost.is_tie for *_, lost in told.all())


def false_alarms(units: tuple[int, ...], tables: int, policy: TimingPolicy = VALIDATION_POLICY) -> float:
    """The part of the tables that say that something differs where all is one program."""
    rng, place, alarms = random.Random(0), deployment(units), 0
    for _ in range(tables):
        alarms += says_a_difference(table(one_program(rng, units, policy), place))
    return alarms / tables


@pytest.mark.parametrize("units", [(1,), (1, 2)])
def test_a_table_of_chosen_schedules_seldom_says_that_one_loses_where_all_are_one(units: tuple[int, ...]) -> None:
    assert false_alarms(units, tables=200) <= 0.05


def test_match_and_table_tell_of_the_same_measurement() -> None:
    rng, place = random.Random(0), deployment((1, 2))
    for _ in range(50):
        found = one_program(rng, (1, 2))
        for share, cell in ((share, row(found, place).cells[share, share]) for share in place.granted):
            matched = find_match(found, place.granted[share], DEVICE.key, TARGET_KEY)
            chosen = UNTUNED if matched.record is None else matched.record.trace
            assert (cell.trace, cell.share) == (chosen, share)
            assert matched.record in (None, cell)


def test_between_two_shares_match_tells_a_loss_that_stands_in_the_table() -> None:
    rng, place = random.Random(0), deployment((1, 4))
    for _ in range(50):
        found = one_program(rng, (1, 4))
        matched = find_match(found, granted(2), DEVICE.key, TARGET_KEY)
        if matched.record is None:
            continue
        assert matched.how is How.NEAR
        measured, cells = found.measured(DEVICE.key, TARGET_KEY, "cpu"), row(found, place).cells
        losses = [
            measured.reported[units][matched.record.candidate_id] / cells[f"cpu:{units}", f"cpu:{units}"].median_s - 1.0
            for units in (1, 4)
        ]
        assert matched.regret in [pytest.approx(loss) for loss in losses]


def test_a_bundle_runs_at_a_share_what_match_answers_there() -> None:
    rng, place = random.Random(0), deployment((1, 4))
    for _ in range(50):
        operators = [ValidatedOperator(NAME, 1, one_program(rng, (1, 4)))]
        variants = variants_for(place, operators, robust_only=False)
        measured = measured_secs(place, operators, variants)
        choosing = measured_secs(place, operators, variants, choosing=True)
        named = named_variants(*(variant.name for variant in variants))
        bundle = Bundle(bundle_bytes(variants=named, measured=measured, choosing=choosing))
        traces = {variant.name: variant.traces for variant in variants}
        for share, at in place.granted.items():
            taken = choose_variant(bundle, at.units)
            assert traces[taken.variant] == traces[share]
            assert measured[share][taken.variant] == row(operators[0].validated, place).cells[share, share].median_s
