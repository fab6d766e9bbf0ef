"""Running the parts one after the other: the time of each, the results that exist already, and the outcome."""

from __future__ import annotations

import json
import shutil
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.part import Finding, Part, PartFailed, Slice
from benchmarks.gpu.tidy import keep_logs, mark_time
from benchmarks.support.machine import facts, write_json
from fractune_workers.gpu.nvml import Gpu


@dataclass(frozen=True)
class Plan:
    """The parts to run, their time, and the folder of results."""

    parts: Sequence[Part]
    again: bool
    """run also what has a result already: the user named it"""
    total_s: float | None
    """for all parts together; None = each may take as long as its work takes"""
    out: Path


def run_plan(plan: Plan, gpu: Gpu, private: Path) -> int:
    """Run the parts; 0 when each did all of its work, 1 otherwise. A line for each part at the end."""
    plan.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    waiting = [part for part in plan.parts if plan.again or not result_of(plan.out, part)]
    for part in (each for each in plan.parts if each not in waiting):
        print(f"== {part.name}: skipped, {result_file(plan.out, part)} is there (run it again by --part {part.name})")
    failed: dict[str, str] = {}
    while waiting:
        part = waiting[0]
        left_s = None if plan.total_s is None else began + plan.total_s - time.monotonic()
        budget_s = time_for(waiting, left_s)
        waiting = waiting[1:]
        fault = _run(part, budget_s, plan.out, gpu, private)
        if fault:
            failed[part.name] = fault
    print()
    for part in plan.parts:
        found = result_of(plan.out, part)
        print(f"{part.name}: FAILED: {failed[part.name]}" if part.name in failed else f"{part.name}: {found['line']}")
    return 1 if failed else 0


def time_for(waiting: Sequence[Part], left_s: float | None) -> float:
    """Seconds for the first of the remaining parts: its need, or its portion of the remaining time."""
    full_s = waiting[0].full_s
    if left_s is None:
        return full_s
    return max(0.0, min(full_s, left_s * full_s / sum(part.full_s for part in waiting)))


def result_file(out: Path, part: Part) -> Path:
    return out / f"{part.name}.json"


def failure_file(out: Path, part: Part) -> Path:
    """The findings of a part that did not do all of its work: it is run again the next time."""
    return out / f"{part.name}.failed.json"


def _pieces(out: Path, part: Part) -> Path:
    """Where a part that is not done keeps the pieces of it that are."""
    return out / "pieces" / part.name


def result_of(out: Path, part: Part) -> dict[str, Any]:
    """The results of an earlier run; empty where there is nothing, or nothing that can be read."""
    try:
        found = json.loads(result_file(out, part).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and "line" in found else {}


def _run(part: Part, budget_s: float, out: Path, gpu: Gpu, private: Path) -> str:
    """Run one part and write its findings; why it failed, empty when it did not."""
    less = "" if budget_s >= part.full_s else f" of the {part.full_s:.0f} s for all of its work: it does less"
    print(f"\n== {part.name}: {part.question} ({budget_s:.0f} s{less})", flush=True)
    began, since = time.monotonic(), mark_time(private)
    given = Slice(budget_s, began + budget_s, gpu, out, private, _pieces(out, part))
    try:
        found = part.run(given)
    except PartFailed as error:
        found = Finding("", {}, (str(error),))
    except Exception as error:  # noqa: BLE001  a mistake in one part must not cost the others
        traceback.print_exc()
        found = Finding("", {}, (f"{type(error).__name__}: {error}",))
    finally:  # also of a stopped part: its output is all that is left of it
        keep_logs(private, out / "logs" / part.name, since)
    fault = "; ".join(found.faults)
    data = {
        "part": part.name,
        "machine": facts(),
        "gpu": asdict(gpu),
        "budget_s": budget_s,
        "full_s": part.full_s,
        "took_s": time.monotonic() - began,
        **found.data,
        "faults": list(found.faults),
        "line": found.line,
    }
    for path in (result_file(out, part), failure_file(out, part)):
        path.unlink(missing_ok=True)
    path = failure_file(out, part) if fault else result_file(out, part)
    write_json(path, data)
    if not fault:
        shutil.rmtree(_pieces(out, part), ignore_errors=True)
    print(f"  {found.line or fault}\n  written to {path}", flush=True)
    return f"{found.line}; {fault}" if fault and found.line else fault
