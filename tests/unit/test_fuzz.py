"""A few hundred of the inputs of `scripts/fuzz`, and that it sees what fails."""

import json
from dataclasses import asdict
from random import Random

import pytest

from fractune_core.errors import BadRequest
from fractune_core.pb import fractune_pb2 as pb
from tests.support.fuzz import files, onnx_files, sealed, texts
from tests.support.fuzz.__main__ import shared_out, table
from tests.support.fuzz.mutations import Mutator
from tests.support.fuzz.target import Target, fuzz

TARGETS = (*texts.TARGETS, *files.TARGETS, *sealed.TARGETS)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_inputs_that_nobody_meant_are_refused_in_one_line_or_taken(target: Target) -> None:
    outcome = fuzz(target, 300, seed=1)
    assert outcome.examples == [], f"scripts/fuzz --target '{target.name}' --seed {outcome.seed}"
    assert outcome.inputs == outcome.refused + outcome.accepted == 300


def test_an_onnx_file_that_nobody_meant_becomes_a_bundle_or_one_line() -> None:
    """In the sandbox of the child that reads models, with its limits."""
    target = onnx_files.TARGETS[0]
    outcome = fuzz(target, 40, seed=1)
    assert outcome.examples == [], f"scripts/fuzz --target '{target.name}' --seed {outcome.seed}"
    assert outcome.accepted > 0 < outcome.refused


def take(made: str) -> None:
    if made == "slow":
        while True:
            pass
    if made == "mistake":
        raise KeyError(made)
    if made == "loud":
        raise RecursionError
    if made == "refused":
        raise BadRequest("one\nline")


def test_what_fails_is_counted_by_where_it_comes_from() -> None:
    words = ("fine", "refused", "mistake", "loud", "slow")
    target = Target("words", lambda mutator: mutator.random.choice(words), take, deadline_s=0.02)
    outcome = fuzz(target, 60, seed=1)
    assert outcome.inputs == 60 == outcome.accepted + outcome.refused + outcome.failures
    assert {kind.partition(" ")[0] for kind in outcome.by_kind} == {"KeyError", "RecursionError", "TooLong"}
    assert outcome.accepted > 0 < outcome.refused
    assert "words" in table([outcome])
    assert json.loads(json.dumps(asdict(outcome)))["failures"] == outcome.failures


def test_an_input_is_made_again_from_its_seed_and_number() -> None:
    made: list[str] = []
    target = Target("shares", texts.TARGETS[0].make, made.append)
    fuzz(target, 20, seed=3)
    fuzz(target, 5, seed=3, first=15)
    assert made[15:20] == made[20:]
    assert len(set(made)) > 10


def test_every_field_of_a_message_is_filled_at_times() -> None:
    mutator = Mutator(Random(1))
    seen: set[str] = set()
    for _ in range(300):
        made = mutator.message(pb.MakePlanRequest)
        seen |= {field.name for field, _ in made.ListFields()}
        changed = mutator.changed(made)
        assert pb.MakePlanRequest.FromString(changed.SerializeToString()) is not None
    assert seen == set(pb.MakePlanRequest.DESCRIPTOR.fields_by_name)


def test_a_whole_run_is_shared_out_by_weights() -> None:
    counts = shared_out(TARGETS, 10_000)
    assert min(counts) >= 1
    assert sum(counts) == pytest.approx(10_000, abs=len(counts))
