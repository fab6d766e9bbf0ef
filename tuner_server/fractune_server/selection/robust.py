"""One schedule for each operator, for several shares: the smallest worst-case loss of the whole model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fractune_core.analysis.validated import Times

_GAIN = 1e-9
"""a smaller improvement of the worst regret counts as rounding"""

Rows = Mapping[str, Mapping[str, Sequence[float]]]
"""seconds at each share, by operator and finalist"""


def robust_for_model(
    times: Mapping[str, Times],
    weights: Mapping[str, int],
    shares: Sequence[int],
    default: Mapping[str, str],
    *,
    reported: Mapping[str, Times] | None = None,
) -> tuple[dict[str, str], float]:
    """A finalist for each operator that minimizes the model's loss at the worst of `shares` (units), and this loss.

    The loss is relative to every operator's best at the share. `times` are for selection: they choose the finalists
    and the worst share. `reported` times of the same finalists and shares give the size of the loss (None = `times`).
    Both, `weights` and `default` (the untuned finalist) are by operator. Operators without a finalist that was
    measured at all shares are left out. The local search starts from each operator's own smallest worst-case regret
    and from the fastest finalists at each share. It changes one operator at a time while that helps, so it is never
    worse than its starts, but not always optimal.
    """
    rows = {op: _measured_at_all(found, shares) for op, found in times.items()}
    rows = {op: row for op, row in rows.items() if row}
    if not rows:
        return {}, 0.0
    fastest = [{op: _fastest(row, place) for op, row in rows.items()} for place in range(len(shares))]
    best = [_sums(chosen, rows, weights)[place] for place, chosen in enumerate(fastest)]
    starts = [{op: _least(row, default.get(op, "")) for op, row in rows.items()}, *fastest]
    found = [_improved(start, rows, weights, best) for start in starts]
    chosen, _ = min(found, key=lambda answer: answer[1])
    sums = _sums(chosen, rows, weights)
    worst = max(range(len(shares)), key=lambda place: sums[place] / best[place])
    shown = rows if reported is None else {op: _measured_at_all(reported[op], shares) for op in rows}
    return chosen, _sums(chosen, shown, weights)[worst] / _sums(fastest[worst], shown, weights)[worst] - 1.0


def _improved(
    start: Mapping[str, str], rows: Rows, weights: Mapping[str, int], best: Sequence[float]
) -> tuple[dict[str, str], float]:
    """Change one operator at a time while the model's worst loss decreases."""
    chosen = dict(start)
    sums = _sums(chosen, rows, weights)
    gained = True
    while gained:
        gained = False
        for op, row in rows.items():
            for name in sorted(row):
                changes = zip(sums, row[name], row[chosen[op]], strict=True)
                other = [held + weights[op] * (new - old) for held, new, old in changes]
                if _worst(other, best) < _worst(sums, best) - _GAIN:
                    chosen[op], sums, gained = name, other, True
    return chosen, _worst(_sums(chosen, rows, weights), best)


def _sums(chosen: Mapping[str, str], rows: Rows, weights: Mapping[str, int]) -> list[float]:
    """Seconds of the model at each share."""
    columns = zip(*([weights[op] * secs for secs in rows[op][name]] for op, name in chosen.items()), strict=True)
    return [sum(column) for column in columns]


def _worst(sums: Sequence[float], best: Sequence[float]) -> float:
    return max(held / ideal for held, ideal in zip(sums, best, strict=True)) - 1.0


def _fastest(row: Mapping[str, Sequence[float]], place: int) -> str:
    return min(row, key=lambda name: (row[name][place], name))


def _least(row: Mapping[str, Sequence[float]], default: str) -> str:
    """The finalist with the smallest worst-case regret; among equals the default."""
    best = [min(secs) for secs in zip(*row.values(), strict=True)]
    return min(row, key=lambda n: (max(t / b for t, b in zip(row[n], best, strict=True)), n != default, n))


def _measured_at_all(times: Times, shares: Sequence[int]) -> dict[str, list[float]]:
    """Times at `shares`, in their order, of the finalists that were measured at all of them."""
    rows = [times.get(share, {}) for share in shares]
    names = set.intersection(*(set(row) for row in rows)) if rows else set()
    return {name: [row[name] for row in rows] for name in names}
