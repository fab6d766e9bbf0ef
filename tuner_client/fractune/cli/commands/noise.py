"""`fractune noise`: what a measurement is worth on this machine."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fractune.cli import options
from fractune.launchers import measure_noise
from fractune.local.noise_file import NOISE_FILE, check_noise_file, save_noise
from fractune.local.stack import own_env
from fractune.local.state import default_state_dir
from fractune.reports.noise_picture import draw_noise
from fractune.reports.picture import check_picture
from fractune.reports.text import percent_text, score_text, span_text, table_console, time_text
from fractune_core.analysis.noise import FEWEST_CANDIDATES, REGRET_ALLOWED, TAU_WANTED, WIDEST_TIE, NoiseAdvice
from fractune_core.errors import BadModel, BadRequest
from fractune_core.shares import Share, units_text

_CANDIDATES_AT_MOST = 200
_MEASURERS_AT_MOST = 64
_MEASURERS = {"cpu": "1,2", "cuda": "1,2,4,8"}
"""What is tried where nothing is said, by kind of device"""


def noise(
    share: Annotated[str, typer.Option("--share", metavar="cpu:1", help="Share to measure under.")],
    measurers: Annotated[
        str | None,
        typer.Option("--measurers", metavar="1,2", help="How many to try at the same time (1,2; on a GPU 1,2,4,8)."),
    ] = None,
    candidates: Annotated[int, typer.Option("--candidates", help="Candidates to time, 8 to 200.")] = 24,
    model: Annotated[
        Path | None, typer.Option("--model", help="Take this model's heaviest operator (default: a convolution).")
    ] = None,
    only: Annotated[str, typer.Option("--only", help="Only an operator whose name contains one of these (A,B).")] = "",
    inputs: options.Inputs = None,
    picture: Annotated[
        Path | None, typer.Option("--picture", help="Draw each setting's times over the reference's (.svg or .png).")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the candidates.")] = 0,
    state: options.State = None,
    as_json: options.Json = False,
) -> None:
    """Tell what a measurement is worth here, and how many may run at the same time."""
    wanted = Share.parse(share)
    counts = parse_measurers(_MEASURERS[wanted.device_kind] if measurers is None else measurers)
    if not FEWEST_CANDIDATES <= candidates <= _CANDIDATES_AT_MOST:
        allowed = f"from {FEWEST_CANDIDATES} to {_CANDIDATES_AT_MOST}"
        raise BadRequest(f"--candidates is {candidates}; it must be {allowed}")
    _check_model(model, only, inputs)
    if picture is not None:
        check_picture(picture)
    noise_file = (state or default_state_dir()).expanduser() / NOISE_FILE
    check_noise_file(noise_file)
    # The children must import our packages from where this process has them, never from the folder they run in.
    os.environ.update(own_env())
    report = measure_noise(
        wanted,
        _tell,
        measurers=counts,
        candidates=candidates,
        seed=seed,
        model=model,
        inputs=options.parse_inputs(inputs),
        only=only,
    )
    save_noise(noise_file, report["device"], report["share"], NoiseAdvice(**report["advice"]))
    if picture is not None:
        draw_noise(report, picture)
    if as_json:
        print(json.dumps({**report, "saved": str(noise_file)}), flush=True)
    else:
        _print(report, noise_file)
        if picture is not None:
            print(f"picture: {picture}")


def parse_measurers(text: str) -> list[int]:
    """Read `1,2,4`. Raises BadRequest."""
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        raise BadRequest(f"--measurers '{text}': write whole numbers, such as 1,2") from None
    if not all(1 <= count <= _MEASURERS_AT_MOST for count in counts):
        raise BadRequest(f"--measurers '{text}': each must be from 1 to {_MEASURERS_AT_MOST}")
    return counts


def _check_model(model: Path | None, only: str, inputs: list[str] | None) -> None:
    options.parse_inputs(inputs)
    if model is None and (only or inputs):
        raise BadRequest("--only and --input choose from a model's operators; pass --model too")
    if model is not None and not model.is_file():
        raise BadModel(f"{model}: no such model file")


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _print(report: dict[str, Any], noise_file: Path) -> None:
    reference = report["settings"][0]
    granted = report["granted"]
    share = f"{report['share']} ({granted['units']} of {units_text(granted['units_total'], granted['unit'])})"
    title = f"{report['operator']} at {share}, {report['candidates']} candidates, two passes each"
    table_console().print(_table(report["settings"], title))
    print(
        f"reference: {reference['name']}. tau: Kendall's tau-b over the pairs that the reference times further apart "
        f"than {percent_text(report['tie_width'])} (its own A/A p90, at most {percent_text(WIDEST_TIE)})."
    )
    for note in report["notes"]:
        print(f"note: {note}")
    print(*advice_lines(report), sep="\n")
    print(f"took {span_text(report['wall_s'])}; saved in {noise_file}")


def _table(settings: list[dict[str, Any]], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    columns = ("A/A median", "A/A p90", "tau", "tau, all pairs", "top-1 regret", "failed", "a candidate")
    table.add_column("timed")
    for column in columns:
        table.add_column(column, justify="right")
    for each in settings:
        table.add_row(
            each["name"],
            percent_text(each["spread_median"]),
            percent_text(each["spread_p90"]),
            score_text(each["tau"]),
            score_text(each["tau_all"]),
            percent_text(each["regret"]),
            str(each["failures"]),
            time_text(each["secs_per_candidate"]),
        )
    return table


def advice_lines(report: dict[str, Any]) -> list[str]:
    """What to do, and why."""
    advice = NoiseAdvice(**report["advice"])
    bar = f"tau of at least {TAU_WANTED:g} and a winner that loses at most {percent_text(REGRET_ALLOWED)}"
    tau, regret = score_text(advice.tau), percent_text(advice.regret)
    found = f"tau {tau}, regret {regret}; wanted: {bar}"
    keeps = "keeps" if report["race_keeps_winner"] else "does not keep"
    return [
        f"measurers at the same time: {advice.measurers} ({found})",
        f"builds beside a measurement: {'yes' if advice.builds_beside else 'no'}",
        f"racing margin: {advice.margin:g}; the race at margin {report['race_margin']:g} {keeps} a winner",
    ]
