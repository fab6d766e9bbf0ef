"""One schedule for each operator, so that the whole model loses least at the worst of several shares."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractune_server.selection.variants import robust_for_model

SECS = st.floats(1e-6, 10.0)

OPERATORS = st.dictionaries(
    st.sampled_from(["conv", "dense", "pool"]),
    st.fixed_dictionaries({units: st.fixed_dictionaries(dict.fromkeys(("a", "b", "c"), SECS)) for units in (1, 2)}),
    min_size=1,
)


def _model_regret(times: dict[str, dict[int, dict[str, float]]], chosen: dict[str, str]) -> float:
    return (
        max(
            sum(times[op][units][name] for op, name in chosen.items())
            / sum(min(t[units].values()) for t in times.values())
            for units in (1, 2)
        )
        - 1.0
    )


@given(OPERATORS)
def test_a_robust_model_loses_no_more_than_what_is_tuned_at_one_share(
    times: dict[str, dict[int, dict[str, float]]],
) -> None:
    weights, default = dict.fromkeys(times, 1), dict.fromkeys(times, "")
    chosen, regret = robust_for_model(times, weights, [1, 2], default)
    assert chosen.keys() == times.keys()
    assert regret == pytest.approx(_model_regret(times, chosen))
    for units in (1, 2):
        tuned = {op: min(found[units], key=found[units].__getitem__) for op, found in times.items()}
        assert regret <= _model_regret(times, tuned) + 1e-6
    every = [dict(zip(times, names, strict=True)) for names in product("abc", repeat=len(times))]
    assert regret <= 1e-6 + 2 * max(_model_regret(times, one) for one in every)


def test_the_whole_model_may_want_another_schedule_than_the_operator_alone() -> None:
    # Alone, the big operator's least worst regret is b (10 % at both); beside the small one, which loses nothing.
    times = {
        "big": {1: {"a": 1.0, "b": 1.1}, 2: {"a": 1.21, "b": 1.0}},
        "small": {1: {"a": 1.0}, 2: {"a": 1.0}},
    }
    chosen, regret = robust_for_model(times, {"big": 1, "small": 9}, [1, 2], {})
    assert chosen == {"big": "b", "small": "a"}
    assert regret == pytest.approx(0.01)
    assert robust_for_model(times, {"big": 1, "small": 9}, [1, 4], {}) == ({}, 0.0)


def test_of_several_starts_the_one_that_ends_best_counts() -> None:
    # From the fastest at the second share, no single change helps: that ends at a regret of 1.0.
    times = {
        "a": {1: {"x": 4.0, "y": 5.0, "z": 8.0}, 2: {"x": 3.0, "y": 4.0, "z": 1.0}},
        "b": {1: {"x": 1.0, "y": 6.0, "z": 6.0}, 2: {"x": 2.0, "y": 9.0, "z": 1.0}},
    }
    chosen, regret = robust_for_model(times, {"a": 1, "b": 1}, [1, 2], {})
    assert chosen == {"a": "z", "b": "x"}
    assert regret == pytest.approx(0.8)
