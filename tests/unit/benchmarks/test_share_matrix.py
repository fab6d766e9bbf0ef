"""What `share_matrix` says of its timings, here made-up ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.share_matrix import SHARES, summaries

WINNERS = (*SHARES, *(f"joint {share}" for share in SHARES))
CONTESTANTS = (*WINNERS, "joint robust")


def timed(own_s: float, other_s: float, finalists: Sequence[str] = CONTESTANTS) -> dict[str, dict[str, list[float]]]:
    """By share and finalist: all take `own_s`, but what was tuned at the other share takes `other_s`."""
    return {
        share: {each: [other_s if each in SHARES and each != share else own_s] * 9 for each in finalists}
        for share in SHARES
    }


def told(operator_s: float) -> dict[str, object]:
    return {"model": timed(1.0, 1.1), "operators": {"conv": timed(operator_s, 2 * operator_s, WINNERS)}}


def test_it_tells_what_the_other_share_loses() -> None:
    found = summaries([told(0.5)])
    assert set(found) == {"model", "operators", "heavy operators"}
    assert found["model"]["other_mean"] == pytest.approx(0.1)
    assert found["model"]["robust_worst"] == 0.0
    assert found["operators"] == found["heavy operators"]
    assert found["operators"]["other_slower"] == found["operators"]["cases"] == len(SHARES)


def test_it_is_silent_about_heavy_operators_where_none_is_heavy() -> None:
    assert set(summaries([told(0.001)])) == {"model", "operators"}


def test_the_robust_pick_of_operators_is_not_told() -> None:
    assert "robust_worst" not in summaries([told(0.5)])["operators"]
