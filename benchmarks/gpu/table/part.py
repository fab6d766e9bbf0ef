"""The part `first-table`: kernels of fractune beside cuBLAS and cuDNN, 20 operators in two types at three shares.

Each operator is tuned in one search, whose candidates are measured at all three shares. The tuning log has the fastest
candidate of each implementation, whatever implementations there are. These meet the peer at each share (`contest`).
Then two models meet their peers whole. An operator in one type, and a model, is one piece of the work: a run that is
cut goes on with the next piece.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.command import fractune, python
from benchmarks.gpu.part import Finding, PartFailed, Slice
from benchmarks.gpu.quarter import refusal_of
from benchmarks.gpu.table.operations import OPERATIONS, Operation
from benchmarks.gpu.table.verdicts import OURS, verdicts, wrong
from benchmarks.support.models import Model, heavy, operators_of
from fractune_core.implementations import implementation_of
from fractune_core.records import Kind, Status, TuningRecord

NAME = "first-table"
DTYPES = ("float16", "float32")
_KINDS = ("conv2d", "matmul")
_CONTEST_S = 150.0
_FIGURES = ("trials", "failures", "wall_s")
"""kept of the tuning"""
_WHOLE_S = 380.0
"""of the piece of a model: a run begins it only as its first"""
_WHOLE_SEARCH = 0.3
"""of what is left of the run; the rest is for the bundle, and for peers that compile"""


@dataclass(frozen=True)
class Table:
    """What the table is about; the rehearsal has another."""

    operations: Sequence[Operation] = OPERATIONS
    dtypes: Sequence[str] = DTYPES
    shares: Sequence[str] = ("mps:25", "mps:50", "mps:100")
    peer: str = "nvidia"
    target: str = ""
    """TVM's; empty = the GPU's"""
    search_s: float = 25.0
    piece_s: float = 120.0
    """a piece is not begun with less time left"""
    trials: int = 512
    models: Sequence[str] = ("ResNet-50", "BERT-base")


class NoTimeLeft(PartFailed):
    """For another piece."""


def run(given: Slice) -> Finding:
    return filled(given, Table(target=f"cuda:{given.gpu.arch}"))


def filled(given: Slice, table: Table) -> Finding:
    """The table as far as the time goes. Raises PartFailed where a share cannot be had."""
    for refusal in filter(None, map(refusal_of, table.shares)):
        raise PartFailed(refusal)
    pieces: dict[str, Callable[[], dict[str, Any]]] = {
        f"{operation.name} {dtype}": partial(_row, given, table, operation, dtype)
        for dtype in table.dtypes
        for operation in table.operations
    }
    pieces |= {f"{name} whole": partial(_whole, given, table, name) for name in table.models}
    rows: dict[str, Any] = {}
    faults, left = [], 0
    for name, piece in pieces.items():
        try:
            rows[name] = given.once(name, piece)
        except NoTimeLeft:
            left += 1
        except PartFailed as error:
            faults.append(f"{name}: {error}")
    faults += [
        f"{name} at {share}: {each}"
        for name, row in rows.items()
        for share, found in row["shares"].items()
        for each in wrong(found["contestants"])
    ]
    faults += [f"{left} of {len(pieces)} rows are left: give the command again"] if left else []
    return Finding(summary(rows), {"rows": rows}, tuple(faults))


def _row(given: Slice, table: Table, operation: Operation, dtype: str) -> dict[str, Any]:
    """The findings of one operator at each share, and the tuning before. Raises PartFailed."""
    if given.left_s < table.piece_s:
        raise NoTimeLeft
    folder = given.private / f"{operation.name}-{dtype}"
    folder.mkdir(exist_ok=True)
    path = operation.save(folder / "operation.onnx", dtype)
    (heaviest,) = heavy(operators_of(Model(operation.name, path), table.target), _KINDS, 1)
    state = ["--state", str(folder / "state")]
    search = ["--shares", ",".join(table.shares), "--only", heaviest.name, "--trials", str(table.trials)]
    search += ["--minutes", f"{table.search_s / 60:.2f}", "--out-dir", str(folder), *state]
    tuned = fractune(given, "tune", str(path), *search)[-1]
    log = folder / "log.jsonl"
    python(given, "-m", "fractune.cli", "log", "export", str(log), "--format", "jsonl", *state).check(
        "fractune log export"
    )
    records = [each for each in records_in(log) if each.workload_hash == heaviest.workload_hash]
    traces = {share: {name: each.trace for name, each in finalists(records, share).items()} for share in table.shares}
    if lacking := [share for share, named in traces.items() if not named]:
        raise PartFailed(f"the log has no right candidate at {', '.join(lacking)}: {tuned['failures']}")
    asked = {"operation": asdict(operation), "peer": table.peer, "traces": traces}
    asked |= {"workload_hash": heaviest.workload_hash, "workload": heaviest.workload, "target": records[0].target}
    shares = _contest(given, folder, asked, _CONTEST_S)
    return {**asdict(operation), **{name: tuned[name] for name in _FIGURES}, "shares": shares}


def _whole(given: Slice, table: Table, name: str) -> dict[str, Any]:
    """The same of a model, beside the runtimes that users have. Raises PartFailed."""
    from benchmarks.gpu.table.whole import WHOLE

    if given.left_s < _WHOLE_S:
        raise NoTimeLeft
    folder = given.private / name
    folder.mkdir(exist_ok=True)
    path = folder / "model.onnx"
    WHOLE[name](path)
    search = ["--shares", ",".join(table.shares), "--minutes", f"{_WHOLE_SEARCH * given.left_s / 60:.2f}"]
    places = ["--state", str(folder / "state"), "--out-dir", str(folder)]
    tuned = fractune(given, "tune", str(path), *search, *places)[-1]
    shares = _contest(given, folder, {"shares": table.shares, "bundle": tuned["bundle"], "model": str(path)})
    return {"source": "whole, float16", **{each: tuned[each] for each in _FIGURES}, "shares": shares}


def _contest(given: Slice, folder: Path, asked: Mapping[str, Any], seconds: float | None = None) -> dict[str, Any]:
    """By share. Prints a line for each."""
    asked_file, out = folder / "asked.json", folder / "contest.json"
    asked_file.write_text(json.dumps(asked), encoding="utf-8")
    command = ("-m", "benchmarks.gpu.table.contest", "--given", str(asked_file), "--out", str(out))
    python(given, *command, seconds=seconds).check("the contest")
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    for share, each in found.items():
        said = verdicts(each["contestants"])
        known = [verdict.ratio for verdict in said if not math.isnan(verdict.ratio)]
        each |= {"verdict": "; ".join(verdict.text for verdict in said), "ratio": max(known, default=None)}
        print(f"  {folder.name} at {share}: {each['verdict']}", flush=True)
    return found


def records_in(log: Path) -> list[TuningRecord]:
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return [TuningRecord.from_json(line["record"]) for line in lines if "record" in line]


def finalists(records: Sequence[TuningRecord], share: str) -> dict[str, TuningRecord]:
    """By name, the fastest candidate of each implementation at the share: a validated one, where there is one."""
    found: dict[str, TuningRecord] = {}
    right = [each for each in records if each.share == share and each.status is Status.OK and each.run_secs]
    for each in sorted(right, key=lambda each: (each.kind is not Kind.VALIDATION, each.median_s)):
        found.setdefault(f"{OURS} {implementation_of(each.trace)}".strip(), each)
    return found


def summary(rows: Mapping[str, Any]) -> str:
    """The median ratio to the fastest peer, at each share for each type, over the rows that can tell."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for name, row in rows.items():
        for share, found in row["shares"].items():
            ratios[f"{name.rpartition(' ')[2]} at {share}"] += [found["ratio"]] if found["ratio"] else []
    parts = [
        f"{place} {statistics.median(found):.2f} ({len(found)} rows)" if found else f"{place} cannot tell"
        for place, found in ratios.items()
    ]
    return f"our time over the peer's, medians: {'; '.join(parts)}" if parts else ""
