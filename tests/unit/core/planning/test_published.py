"""Against what others published: no more GPUs than their planner, and their placements checked."""

from __future__ import annotations

import pytest

from benchmarks.support.published import PUBLISHED_GPUS, SETS, overlaps, parvagpu_deployments, parvagpu_request
from fractune_core.planning.devices import BY_NAME, PROFILES, placements
from fractune_core.planning.planner import make_plan
from tests.support.mig_layouts import broken_rule

UNITS = {1: 10, 2: 20, 3: 30, 4: 44, 5: 82, 6: 105}
"""fewest, with the fewest GPUs"""


@pytest.mark.parametrize("number", SETS)
def test_a_published_set_needs_no_more_gpus_than_published(number: int) -> None:
    plan = make_plan(parvagpu_request(number))
    assert len(plan.devices) <= PUBLISHED_GPUS[number]
    assert plan.units_used == UNITS[number]
    assert plan.is_proved
    for parts in plan.devices:
        assert not broken_rule([(BY_NAME[f"{part.units}g"], part.place) for part in parts])
    assert all(model.utilisation is not None and model.utilisation <= 1 + 1e-5 for model in plan.models)


def test_published_placements_overlap_on_most_gpus_though_their_sizes_fit() -> None:
    found = parvagpu_deployments()
    assert {number: len(gpus) for number, gpus in found.items()} == PUBLISHED_GPUS
    gpus = [[each.placed for each in gpu] for deployed in found.values() for gpu in deployed]
    wrong = [gpu for gpu in gpus if overlaps(gpu)]
    assert len(wrong) == 32
    for gpu in wrong:
        assert broken_rule(gpu) == "overlap"
        assert next(placements(sorted((profile for profile, _ in gpu), key=PROFILES.index)), None) is not None
