"""The reliability of measurements on this machine, saved for the one-machine stack."""

import contextlib
import math
import os
import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fractune.local.noise_file import NOISE_FILE, check_noise_file, save_noise
from fractune.local.programs import measure_noise
from fractune.local.stack import own_env
from fractune.local.state import default_state_dir
from fractune.models.open_sizes import sized_model
from fractune.models.source import ModelSource
from fractune.sessions.progress import LineProgress, line_reporter
from fractune.text.rendering import Column, Drawable, Table, draw_panels, save_figure
from fractune.text.text import percent_text, score_text, time_text
from fractune_core.analysis import noise as bounds
from fractune_core.analysis.noise import FEWEST_CANDIDATES, REGRET_ALLOWED, TAU_WANTED, Explanation, NoiseAdvice
from fractune_core.errors import BadRequest, one_line
from fractune_core.model_inputs import Inputs, Sizes, as_shapes
from fractune_core.shares import Share, units_text

_COLUMNS = 4
_CHARACTERS_AN_INCH = 11
_PASSES = (("#0072B2", "o"), ("#D55E00", "^"))
"""colour and marker of each pass: blue and vermilion of Okabe and Ito, which colour-blind people tell apart"""


def draw_noise(report: Mapping[str, Any], path: Path) -> None:
    """Draw one scatter for each setting of `report` (of `fractune noise`) to `path`. Raises StateUnusable."""
    from matplotlib.figure import Figure

    reference, *others = report["settings"]
    truth = {name: statistics.mean(secs) for name, secs in reference["median_s"].items() if None not in secs}
    columns = min(len(others), _COLUMNS)
    rows = math.ceil(len(others) / columns)
    figure = Figure(figsize=(0.6 + 2.8 * columns, 0.9 + 2.9 * rows), layout="constrained")
    draw = partial(_draw_setting, truth=truth)
    grid, *legend = draw_panels(figure, others, columns, draw, same_scale=True)
    line = int(figure.get_figwidth() * _CHARACTERS_AN_INCH)
    figure.supxlabel(textwrap.fill(f"reference: {reference['name']}, two passes (ms)", line), fontsize=10)
    figure.supylabel("this setting (ms)", fontsize=10)
    title = f"{report['operator']} at {report['share']}: each candidate's time by setting"
    figure.suptitle(textwrap.fill(title, line), fontsize=10)
    grid[0].legend(*legend, loc="upper left", fontsize=8)
    save_figure(figure, path)


def _draw_setting(axes: Any, setting: Mapping[str, Any], truth: Mapping[str, float]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = min(truth.values()) * 1e3, max(truth.values()) * 1e3
    axes.plot([low, high], [low, high], color="0.6", linewidth=1, label="equal")
    for index, (colour, marker) in enumerate(_PASSES):
        names = [name for name in truth if setting["median_s"][name][index] is not None]
        if not names:
            continue
        axes.scatter(
            [truth[name] * 1e3 for name in names],
            [setting["median_s"][name][index] * 1e3 for name in names],
            s=14,
            color=colour,
            marker=marker,
            alpha=0.75,
            linewidths=0,
            label=f"pass {index + 1}",
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    tau, regret = score_text(setting["tau"]), percent_text(setting["regret"])
    axes.set_title(f"{setting['name']}\ntau {tau}, regret {regret}", fontsize=9)


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
        f"{percent_text(report['tie_width'])} (its A/A p90, at most {percent_text(bounds.WIDEST_TIE)}) are ties."
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


MOST_CANDIDATES = 200
MOST_MEASURERS = 64
_MEASURERS = {"cpu": (1, 2), "cuda": (1, 2, 4, 8)}
"""numbers of measurers by default, by kind of device"""


@dataclass(frozen=True)
class NoiseResult(Drawable):
    """Agreement of the settings with the careful reference, and the advice that follows."""

    share: str
    operator: str
    """operator of the timed candidates"""
    advice: NoiseAdvice
    """number of concurrent measurers, and the racing margin; `tune` in the same state folder follows the advice"""
    notes: tuple[str, ...]
    saved: Path
    """file with the advice"""
    data: Mapping[str, Any]
    """all data, as `fractune noise --json` prints them: times in seconds, spreads and regrets as fractions"""

    def __repr__(self) -> str:
        advice = f"{self.advice.measurers} measurers at a time, racing margin {self.advice.margin:g}"
        return f"NoiseResult({one_line(self.operator)} at {self.share}: {advice}; saved in {self.saved})"

    @property
    def table(self) -> Table:
        """A row for each setting."""
        return noise_table(self.data)

    def _draw(self, path: Path) -> None:
        """Draw each setting's times over the reference's."""
        draw_noise(self.data, path)


def noise(
    share: str,
    *,
    measurers: Sequence[int] | None = None,
    candidates: int = 24,
    model: ModelSource | None = None,
    only: str = "",
    inputs: Inputs | None = None,
    sizes: Sizes | None = None,
    run_script: bool = False,
    seed: int = 0,
    state: str | os.PathLike[str] | None = None,
    progress: LineProgress = True,
) -> NoiseResult:
    """Measure how reliable measurements under `share` are here, and how many may run at the same time.

    It times `candidates` (8 to 200) twice in every setting, with each number of `measurers` (default: 1 and 2, on a GPU
    up to 8). The candidates belong to the heaviest operator of `model` with one of the parts in `only` in its name, by
    default to a convolution. The advice goes to `noise.json` in the folder `state`. `progress` prints lines to standard
    error, nothing (False), or calls a function with each line. While it runs, the environment of this process points
    child processes to our packages.

    Raises ShareUnavailable, BadModel, BadRequest, StateUnusable, and FractuneError if too few could be timed.
    """
    requested = Share.parse(share)
    requested.check_measures_kernels()
    counts = list(_MEASURERS[requested.device_kind] if measurers is None else measurers)
    _check(counts, candidates)
    if model is None and (only or inputs or sizes):
        raise BadRequest("--only, inputs and sizes select an operator of a model; pass --model too")
    noise_file = Path(state or default_state_dir()).expanduser() / NOISE_FILE
    check_noise_file(noise_file)
    with contextlib.ExitStack() as held:
        path, shapes = None, inputs
        if model is not None:
            path, shapes = held.enter_context(sized_model(model, run_script=run_script, inputs=inputs, sizes=sizes))
        held.enter_context(children_find_us())
        data = measure_noise(
            requested,
            line_reporter(progress),
            measurers=counts,
            candidates=candidates,
            seed=seed,
            model=path,
            inputs=as_shapes(shapes or {}),
            only=only,
        )
    advice = NoiseAdvice(**data["advice"])
    save_noise(noise_file, data["device"], data["share"], advice)
    return NoiseResult(data["share"], data["operator"], advice, tuple(data["notes"]), noise_file, data)


def _check(measurers: Sequence[int], candidates: int) -> None:
    if not measurers or not all(1 <= count <= MOST_MEASURERS for count in measurers):
        raise BadRequest(f"--measurers is {list(measurers)}; name at least one, each from 1 to {MOST_MEASURERS}")
    if not FEWEST_CANDIDATES <= candidates <= MOST_CANDIDATES:
        raise BadRequest(f"--candidates is {candidates}; it must be from {FEWEST_CANDIDATES} to {MOST_CANDIDATES}")


@contextlib.contextmanager
def children_find_us() -> Iterator[None]:
    """Let child processes import our packages from the place of this process, never from their working directory."""
    before = dict(os.environ)
    added = own_env()
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
        os.environ.update({name: before[name] for name in added if name in before})
