"""The results of `fractune noise` as a table and in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fractune.text.rendering import Column, Table
from fractune.text.text import percent_text, score_text, time_text
from fractune_core.analysis.noise import REGRET_ALLOWED, TAU_WANTED, WIDEST_TIE, Explanation, NoiseAdvice
from fractune_core.shares import units_text

_NUMBERS = {
    "A/A median": 0,
    "A/A p90": 2,
    "tau": 0,
    "tau, all pairs": 3,
    "top-1 regret": 0,
    "lost": 1,
    "failed": 4,
    "a candidate": 0,
}
"""columns, and how dispensable each is"""


def noise_table(report: Mapping[str, Any]) -> Table:
    """A row for each setting; `rows` as `fractune noise --json` prints them."""
    granted = report["granted"]
    share = f"{report['share']} ({granted['units']} of {units_text(granted['units_total'], granted['unit'])})"
    return Table(
        title=f"{report['operator']} at {share}, {report['candidates']} candidates, two passes each",
        columns=(
            Column("timed", wraps_at=16),
            *(Column(name, numbers=True, dispensable=most) for name, most in _NUMBERS.items()),
        ),
        cells=tuple(map(_cells, report["settings"])),
        rows=tuple(dict(setting) for setting in report["settings"]),
        notes=(
            _reference_line(report),
            *(f"note: {note}" for note in report["notes"]),
            *explanation_lines(report),
            *advice_lines(report),
        ),
    )


def _cells(setting: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        setting["name"],
        percent_text(setting["spread_median"]),
        percent_text(setting["spread_p90"]),
        score_text(setting["tau"]),
        score_text(setting["tau_all"]),
        percent_text(setting["regret"]),
        percent_text(setting["lost"]),
        str(setting["failures"]),
        time_text(setting["secs_per_candidate"]),
    )


def _reference_line(report: Mapping[str, Any]) -> str:
    return (
        f"reference: {report['settings'][0]['name']}. tau is Kendall's tau-b; pairs that the reference times within "
        f"{percent_text(report['tie_width'])} (its A/A p90, at most {percent_text(WIDEST_TIE)}) are ties."
    )


def explanation_lines(report: Mapping[str, Any]) -> list[str]:
    """The causes of the spread of undisturbed timings; empty if nothing was counted."""
    if report["explanation"] is None:
        return []
    found = Explanation(**report["explanation"])
    machine = _machine_text(found)
    if not found.causes:
        return [f"no counter of the kernel explains the spread ({found.pairs} pairs); {machine}"]
    causes = ", ".join(f"{cause} (tau {score_text(found.taus[cause])})" for cause in found.causes)
    calm, disturbed = percent_text(found.calm_spread), percent_text(found.disturbed_spread)
    halves = f"the half of {found.pairs} pairs with less {found.causes[0]} differs by {calm} (median)"
    return [f"the spread is explained by {causes}: {halves}, the other half by {disturbed}; {machine}"]


def _machine_text(found: Explanation) -> str:
    """The anchor's evidence. The causes affect it too; without causes it shows changes of the machine."""
    if found.anchor_spread is None:
        return "the anchor could not be timed"
    left = f"{percent_text(found.anchored_spread)} in place of {percent_text(found.spread)}"
    divided = f"divided by the anchor's times, pairs differ by {left}"
    if not found.anchor_explains:
        return f"the machine's speed does not explain it either: {divided}" if not found.causes else divided
    moved = f"by {percent_text(found.anchor_spread)} (median)"
    return f"{divided}; the anchor varies {moved}" if found.causes else f"the machine's speed varies {moved}: {divided}"


def advice_lines(report: Mapping[str, Any]) -> list[str]:
    """The advice and its reasons."""
    advice = NoiseAdvice(**report["advice"])
    bar = f"tau of at least {TAU_WANTED:g} and a regret of at most {percent_text(REGRET_ALLOWED)}"
    tau, regret = score_text(advice.tau), percent_text(advice.regret)
    found = f"tau {tau}, regret {regret}; required: {bar}"
    keeps = "keeps" if report["race_keeps_winner"] else "does not keep"
    return [
        f"measurers at the same time: {advice.measurers} ({found})",
        f"builds beside a measurement: {'yes' if advice.builds_beside else 'no'}",
        f"racing margin: {advice.margin:g}; at margin {report['race_margin']:g} the race {keeps} the winner",
    ]
