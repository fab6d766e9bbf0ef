"""The part `matrix`: two models tuned at a quarter, a half and all of the GPU, each run at all three; by MPS and by
green contexts.

One search for each model and mechanism, whose candidates are measured at all three shares; then `fractune matrix`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.gpu.command import fractune
from benchmarks.gpu.part import Finding, PartFailed, Slice
from benchmarks.support.models import Model, find_model, heavy, operators_of
from fractune_core.names import UNTUNED_VARIANT
from fractune_workers.gpu.nvml import Gpu

_MODELS = ("squeezenet", "resnet50")
_OPERATORS = 4
"""of each model: all of them would take more than the time of a part"""
_PERCENTAGES = (25, 50, 100)
_SEARCH = 0.35
"""of a cell's time; the rest is for what begins and ends it"""
_SHORTEST_SEARCH_S = 10.0
_MOST_TRIALS = 512


def run(given: Slice) -> Finding:
    tables: dict[str, Any] = {}
    faults = []
    cell_s = given.budget_s / (len(_MODELS) * len(mechanisms(given.gpu)))
    for name in _MODELS:
        model = find_model(name)
        only = ",".join(op.name for op in heavy(operators_of(model, f"cuda:{given.gpu.arch}"), model.kinds, _OPERATORS))
        for mechanism, shares in mechanisms(given.gpu).items():
            try:
                tables[f"{name} by {mechanism}"] = _cell(given, model, only, mechanism, shares, cell_s)
            except PartFailed as error:
                faults.append(f"{name} by {mechanism}: {error}")
    line = "; ".join(f"{name}: {worst(found['tables'][0])}" for name, found in tables.items())
    return Finding(line, {"operators": _OPERATORS, "cells": tables}, tuple(faults))


def mechanisms(gpu: Gpu) -> dict[str, tuple[str, ...]]:
    """The three shares of each mechanism. Green contexts come in steps, so that the largest is not quite the whole."""
    step, least = (8, 8) if gpu.capability >= (9, 0) else (2, 4)
    sizes = [max(least, gpu.sms * percent // 100 // step * step) for percent in _PERCENTAGES]
    return {
        "mps": tuple(f"mps:{percent}" for percent in _PERCENTAGES),
        "green": tuple(f"green:{sms}" for sms in sizes),
    }


def _cell(
    given: Slice, model: Model, only: str, mechanism: str, shares: tuple[str, ...], seconds: float
) -> dict[str, Any]:
    """The table of one model and mechanism. Raises PartFailed."""
    state = given.private / f"{model.name}-{mechanism}"
    common = [str(model.path), "--shares", ",".join(shares), "--only", only, *model.options, "--state", str(state)]
    minutes = f"{max(seconds * _SEARCH, _SHORTEST_SEARCH_S) / 60:.2f}"
    search = ["--minutes", minutes, "--trials", str(_MOST_TRIALS), "--out", str(given.private)]
    tuned = fractune(given, "tune", *common, *search, seconds=2 * seconds)[-1]
    drawn = given.out / f"matrix_{model.name}_{mechanism}"
    outputs = ["--picture", f"{drawn}.svg", "--csv", f"{drawn}.csv"]
    (table,) = (
        event
        for event in fractune(given, "matrix", *common, "--operators", *outputs, seconds=2 * seconds)
        if event["event"] == "matrix"
    )
    return {"trials": tuned["trials"], "trials_per_s": tuned["trials_per_s"], **table}


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
