"""The surrogate: what it learns from few points, and that no set of points breaks it."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fractune_workers.children.searching import surrogate
from fractune_workers.children.searching.surrogate import Surrogate

Point = dict[str, float]


def drawn(count: int, seed: int) -> list[Point]:
    source = random.Random(seed)
    return [{name: float(source.randrange(8)) for name in "abcd"} for _ in range(count)]


def secs_of(point: Point) -> float:
    """Fastest in the middle of `a`, faster with a large `b`; `c` and `d` mean nothing."""
    return math.exp(0.2 * (point["a"] - 4.0) ** 2 - 0.3 * point["b"])


def taught(points: list[Point], factor: float = 1.0) -> Surrogate:
    model = Surrogate()
    model.add(points, [factor * secs_of(point) for point in points])
    return model


def test_a_few_dozen_points_rank_those_not_seen() -> None:
    model, others = taught(drawn(32, seed=1)), drawn(200, seed=2)
    scores = model.scores(others)
    secs = np.array([secs_of(point) for point in others])
    ranks = [np.argsort(np.argsort(values)) for values in (scores, -secs)]
    assert np.corrcoef(ranks[0], ranks[1])[0, 1] > 0.8
    assert secs[np.argmax(scores)] <= np.quantile(secs, 0.1)


@pytest.mark.parametrize("secs", [[], [0.0, 0.0]], ids=["nothing known", "failures only"])
def test_without_a_time_all_score_alike(secs: list[float]) -> None:
    model = Surrogate()
    model.add(drawn(len(secs), seed=1), secs)
    assert model.scores(drawn(3, seed=2)).tolist() == [1.0, 1.0, 1.0]


def test_what_fails_is_avoided() -> None:
    model = Surrogate()
    points = [{"a": float(at), "fails": float(at % 2)} for at in range(16)]
    model.add(points, [0.0 if point["fails"] else 1e-3 for point in points])
    good, bad = model.scores([{"a": 20.0, "fails": 0.0}, {"a": 20.0, "fails": 1.0}])
    assert good > bad


def test_a_feature_that_only_some_have_counts_as_0_for_the_others() -> None:
    model = Surrogate()
    model.add([{"a": 1.0}, {"a": 2.0, "b": 3.0}] * 4, [1.0, 2.0] * 4)
    one, other = model.scores([{"a": 1.0}, {"a": 1.0, "b": 0.0}])
    assert one == pytest.approx(other)


def test_beyond_the_most_points_the_fastest_and_the_newest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surrogate, "_MOST_POINTS", 4)
    model = Surrogate()
    model.add([{"a": float(at)} for at in range(8)], [3.0, 1.0, 9.0, 2.0, 8.0, 7.0, 6.0, 5.0])
    assert model._kept() == [1, 3, 6, 7]
    assert len(model.scores([{"a": 0.5}])) == 1


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.floats(1e-7, 10.0) | st.just(0.0)), max_size=30),
    st.floats(1e-3, 1e3),
)
def test_scores_are_finite_above_0_and_do_not_depend_on_the_unit_of_time(
    trials: list[tuple[int, int, float]], factor: float
) -> None:
    points = [{"a": float(a), "b": float(b)} for a, b, _ in trials]
    scores = []
    for scale in (1.0, factor):
        model = Surrogate()
        model.add(points, [scale * secs for _, _, secs in trials])
        scores.append(model.scores([{"a": 1.0, "b": 2.0}, {"a": 9.0}]))
    assert np.isfinite(scores[0]).all()
    assert (scores[0] > 0).all()
    assert np.allclose(scores[0], scores[1], rtol=1e-3)
