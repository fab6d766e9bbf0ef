"""The part `matrix`: two models tuned at a quarter, a half and all of the GPU, each run at all three; by MPS and by
green contexts.

Each model and mechanism has one search, and its candidates are measured at all three shares. Then `fractune matrix`
runs. The inputs of one model are larger than its own, so that its kernels take far longer than a launch: a kernel as
short as a launch takes the same time at every share.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from benchmarks.gpu.command import fractune
from benchmarks.gpu.part import Finding, PartFailed, Slice
from benchmarks.gpu.quarter import MPS_QUARTER, green_of, refusal_of
from benchmarks.support.models import Model, find_model, heavy, operators_of, resized
from fractune_core.names import UNTUNED_VARIANT
from fractune_workers.gpu.nvml import Gpu
from fractune_workers.inventory.shares import largest_green_share

_MODELS = {"resnet50": 0, "squeezenet": 896}
"""sides of their square inputs; 0 = the model's own: it cannot take others"""
_OPERATORS = 4
"""of each model: all of them would take more than the time of a part"""
_PERCENTAGES = (25, 50, 100)
_SEARCH = 0.35
"""of a cell's time; the rest is for what begins and ends it"""
_CELL_S = 90.0
"""the least time of a table: with less than four times that, the last tables are left out"""
_MOST_TRIALS = 512


def run(given: Slice) -> Finding:
    tables: dict[str, Any] = {}
    faults = []
    refusal = refusal_of(MPS_QUARTER)
    wanted = {name: shares for name, shares in mechanisms(given.gpu).items() if name != "mps" or not refusal}
    places = [(name, mechanism) for mechanism in wanted for name in _MODELS]
    begun = places[: max(1, int(given.budget_s / _CELL_S))]
    cell_s = given.budget_s / len(begun)
    for name, mechanism in begun:
        place = f"{name} by {mechanism}"
        cell = partial(_cell, given, name, _MODELS[name], mechanism, wanted[mechanism], seconds=cell_s)
        try:
            tables[place] = given.once(place, cell)
        except PartFailed as error:
            faults.append(f"{place}: {error}")
    lines = [f"{name}: {worst(found['tables'][0])}{_launch_bound(found)}" for name, found in tables.items()]
    lines += [f"skipped: mps ({refusal})"] if refusal else []
    lines += [f"no time for {name} by {mechanism}" for name, mechanism in places[len(begun) :]]
    return Finding("; ".join(lines), {"operators": _OPERATORS, "sides": _MODELS, "cells": tables}, tuple(faults))


def mechanisms(gpu: Gpu) -> dict[str, tuple[str, ...]]:
    """The three shares of each mechanism. Green contexts come in steps, so that the largest is not quite the whole."""
    sizes = [green_of(gpu, percent) for percent in _PERCENTAGES[:-1]]
    return {
        "mps": tuple(f"mps:{percent}" for percent in _PERCENTAGES),
        "green": (*sizes, f"green:{largest_green_share(gpu)}"),
    }


def _cell(
    given: Slice, name: str, side: int, mechanism: str, shares: tuple[str, ...], *, seconds: float
) -> dict[str, Any]:
    """The table of one model and mechanism. Raises PartFailed."""
    model, only = _model(given, name, side)
    state = given.private / f"{model.name}-{mechanism}"
    common = [str(model.path), "--shares", ",".join(shares), "--only", only, *model.options, "--state", str(state)]
    minutes = f"{seconds * _SEARCH / 60:.2f}"
    search = ["--minutes", minutes, "--trials", str(_MOST_TRIALS), "--out-dir", str(given.private)]
    tuned = fractune(given, "tune", *common, *search, seconds=2 * seconds)[-1]
    drawn = given.out / f"matrix_{model.name}_{mechanism}"
    outputs = ["--picture", f"{drawn}.svg", "--csv", f"{drawn}.csv"]
    (table,) = (
        event
        for event in fractune(given, "matrix", *common, "--operators", *outputs, seconds=2 * seconds)
        if event["event"] == "matrix"
    )
    floors_s = {each["share"]: each["launch_s"] for each in tuned["shares"]}
    bound = [each["name"] for each in tuned["operators"] if any(each["launch_bound"].values())]
    figures = {name: tuned[name] for name in ("trials", "trials_per_s", "busy_s", "phases_s")}
    return {**figures, "launch_s": floors_s, "launch_bound": bound, **table}


def _model(given: Slice, name: str, side: int) -> tuple[Model, str]:
    """The model, and its operators for `--only`."""
    model = resized(find_model(name), side, given.private) if side else find_model(name)
    operators = heavy(operators_of(model, f"cuda:{given.gpu.arch}"), model.kinds, _OPERATORS)
    return model, ",".join(operator.name for operator in operators)


def _launch_bound(found: Mapping[str, Any]) -> str:
    """The operators that are too short to be informative."""
    names = found.get("launch_bound")
    return f" (LAUNCH-BOUND: {', '.join(names)})" if names else ""


def worst(table: Mapping[str, Any]) -> str:
    """The largest loss of a schedule tuned at one share and run at another, of those beyond the noise."""
    strangers = [
        cell
        for cell in table["cells"]
        if cell["tuned_at"] not in {UNTUNED_VARIANT, cell["run_at"]} and not cell["tie"] and cell["loss"] > 0
    ]
    if not strangers:
        return "no schedule loses at another share, beyond the noise"
    cell = max(strangers, key=lambda each: each["loss"])
    return f"tuned at {cell['tuned_at']}, run at {cell['run_at']} loses {cell['loss']:.1%}"
