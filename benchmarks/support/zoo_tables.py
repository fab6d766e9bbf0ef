"""Rows of the benchmark `zoo`: ratios to the better of two runtimes, their means, and Markdown tables, worst first."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from benchmarks.support.zoo import ROLES, zoo
from fractune.text.text import span_text, time_text
from fractune_core.files.compared import ONNX_RUNTIME, OPENVINO, OURS, RUNTIMES, Compared, Timed
from fractune_core.served import LOAD_TEXT

FIRST, SEARCHED = "first", "searched"
"""steps of a row: the bundle without a search, and after one"""
LOOP, PACED, AT_LOAD = "in a loop", "paced", LOAD_TEXT
TITLES = {ONNX_RUNTIME: "ONNX Runtime", OPENVINO: "OpenVINO"}

Row = Mapping[str, Any]
Ratio = tuple[float, float, float]
"""the bundle's time over the better runtime's, and its 95 % interval"""


def over_better(timed: Mapping[str, Any], how: str) -> tuple[str, Ratio] | None:
    """The better runtime and the ratio to it, of a step at a share; None where no runtime could compete. ONNX Runtime
    has its own defaults. At load the interval is the ratio itself.
    """
    if how == AT_LOAD:
        p50_s = timed["at_load"]["p50_s"]
        best = min(p50_s.keys() - {OURS}, key=p50_s.__getitem__, default="")
        return (best, (p50_s[OURS] / p50_s[best],) * 3) if best else None
    compared = Compared.from_json(timed["compared"])
    found = {name: compared.as_programs_have(name) for name in RUNTIMES if name in compared.times}
    if not found:
        return None
    best = min(found, key=lambda name: _secs(found[name], how))
    return best, cast(Ratio, found[best].loop if how == LOOP else found[best].paced)  # only ours has none


def _secs(timed: Timed, how: str) -> float:
    return timed.loop_s if how == LOOP else timed.paced_s


def worst_first(rows: Sequence[Row]) -> list[Row]:
    """Models that failed come first, then by the largest ratio in a loop at any share, without a search."""
    return sorted(rows, key=lambda row: -max((ratio for _, ratio in _ratios(row, FIRST, LOOP)), default=float("inf")))


def _ratios(row: Row, step: str, how: str) -> Iterator[tuple[str, float]]:
    """The ratios of a row by share."""
    for share, timed in row.get(step, {}).get("shares", {}).items():
        found = over_better(timed, how)
        if found is not None:
            yield share, found[1][0]


def sets_of(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of all models, of each role, and of the recurrent models."""
    of_role = {role: [row for row in rows if zoo()[row["model"]].role == role] for role in ROLES}
    recurrent = [row for row in rows if "recurrent" in zoo()[row["model"]].kinds]
    return {"all": list(rows), **of_role, "recurrent": recurrent}


def means(rows: Sequence[Row], step: str, how: str) -> dict[str, float]:
    """Geometric means of the ratios by share, and over all cases (`all`); empty without a case."""
    cases = [case for row in rows for case in _ratios(row, step, how)]
    shares = dict.fromkeys(share for share, _ in cases)
    by_share = {share: [ratio for each, ratio in cases if each == share] for share in shares}
    return {
        name: statistics.geometric_mean(ratios)
        for name, ratios in {"all": [ratio for _, ratio in cases], **by_share}.items()
        if ratios
    }


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """For each set of models its size, those that failed, and its `means` by step and by how they were timed."""
    return {
        name: {
            "models": len(part),
            "failed": [row["model"] for row in part if is_failed(row)],
            **{step: {how: means(part, step, how) for how in (LOOP, PACED, AT_LOAD)} for step in (FIRST, SEARCHED)},
        }
        for name, part in sets_of(rows).items()
    }


def is_failed(row: Row) -> bool:
    """Whether the model has no bundle, or no runtime to compare it with at some share."""
    shares = row.get(FIRST, {}).get("shares", {}).values()
    return "error" in row or any(over_better(timed, LOOP) is None for timed in shares)


def means_table(rows: Sequence[Row]) -> str:
    """A line for each set of models, with its geometric means; the models that failed are counted beside them."""
    found = summary(rows)
    steps = [step for step in (FIRST, SEARCHED) if found["all"][step][LOOP]]
    columns = [(step, how) for step in steps for how in (LOOP, PACED, AT_LOAD)]
    headings = ["models", "failed", *(f"{_step_text(rows, step)}, {how}" for step, how in columns)]
    lines = [
        [
            f"{name} ({each['models']})",
            str(len(each["failed"])),
            *(_means_text(each[step][how]) for step, how in columns),
        ]
        for name, each in found.items()
        if each["models"]
    ]
    return _markdown(headings, lines)


def _means_text(by_share: Mapping[str, float]) -> str:
    if not by_share:
        return "-"
    shares = ", ".join(f"{share} {mean:.2f}" for share, mean in by_share.items() if share != "all")
    return f"**{by_share['all']:.2f}** ({shares})"


def short_table(rows: Sequence[Row]) -> str:
    """A line for each model, worst first: ratios in a loop. For README.md."""
    shares, steps = _shares(rows), _steps(rows)
    columns = [(step, share) for step in steps for share in shares]
    headings = ["model", "role", *(f"{_step_text(rows, step)}, `{share}`" for step, share in columns)]
    lines = []
    for row in worst_first(rows):
        cells = [_ratio_text(row, step, share, LOOP) for step, share in columns]
        entry = zoo()[row["model"]]
        lines.append([entry.title, entry.role, *(cells if FIRST in row else [row["error"].replace("|", "\\|")])])
    return _markdown(headings, [[*line, *[""] * (len(headings) - len(line))] for line in lines])


def full_table(rows: Sequence[Row]) -> str:
    """A line for each model, share and step that was timed, worst first, with times. For docs/performance.md."""
    headings = ("model", "kinds", "share", "tuning", "fractune", *TITLES.values(), LOOP, PACED, AT_LOAD)
    lines = []
    for row in worst_first(rows):
        for step in (FIRST, SEARCHED):
            for share, timed in row.get(step, {}).get("shares", {}).items():
                compared = Compared.from_json(timed["compared"])
                times = [_time_text(compared, name) for name in (OURS, *RUNTIMES)]
                ratios = [_ratio_text(row, step, share, how) for how in (LOOP, PACED, AT_LOAD)]
                kinds = ", ".join(zoo()[row["model"]].kinds)
                spent = f"{row[step]['trials']} trials, {span_text(row[step]['tuning_s'])}"
                lines.append([row["model"], kinds, f"`{share}`", spent, *times, *ratios])
    return _markdown(headings, lines)


def failures(rows: Sequence[Row]) -> str:
    """A line for each model without a bundle, for each runtime that could not compete, and where the agreement of
    outputs says nothing; empty without any.
    """
    lines = [f"- {row['model']}: {row['error']}" for row in rows if "error" in row]
    for row in rows:
        for share, timed in row.get(FIRST, {}).get("shares", {}).items():
            compared = Compared.from_json(timed["compared"])
            lines += [f"- {row['model']} at {share}, {TITLES[name]}: {why}" for name, why in compared.refused.items()]
            if compared.unproved:
                lines.append(f"- {row['model']} at {share}: outputs not checked, since they are {compared.unproved}")
    return "\n".join(lines)


def _time_text(compared: Compared, name: str) -> str:
    return time_text(compared.as_programs_have(name).loop_s) if name in compared.times else "refused"


def _ratio_text(row: Row, step: str, share: str, how: str) -> str:
    timed = row.get(step, {}).get("shares", {}).get(share)
    found = timed and over_better(timed, how)
    if not found:
        return "-"
    best, (middle, low, high) = found
    interval = "" if how == AT_LOAD else f" ({low:.2f} .. {high:.2f})"
    return f"{middle:.2f}{interval} {TITLES[best]}"


def _shares(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(share for row in rows for share in row.get(FIRST, {}).get("shares", {})))


def _steps(rows: Sequence[Row]) -> list[str]:
    return [step for step in (FIRST, SEARCHED) if any(step in row for row in rows)]


def _step_text(rows: Sequence[Row], step: str) -> str:
    if step == FIRST:
        return "without a search"
    minutes = sorted({row[step]["minutes"] for row in rows if step in row})
    return f"after {' or '.join(f'{each:g}' for each in minutes)} minutes"


def _markdown(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [headings, ["---"] * len(headings), *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
