"""Curves and deployments that others published, in tests/assets/published: as requests for plans, and as curves."""

import csv
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fractune_core.planning.devices import BY_NAME, Partitioning, Placed, gpu_type, slices
from fractune_core.planning.one_device import Way
from fractune_core.planning.planner import planned_model
from fractune_core.planning.plans import ModelDemand, Plan, PlanRequest
from fractune_core.planning.speeds import Basis, Row

FOLDER = Path(__file__).parents[2] / "tests" / "assets" / "published"
SETS = (1, 2, 3, 4, 5, 6)
PUBLISHED_GPUS = {1: 2, 2: 3, 3: 5, 4: 7, 5: 13, 6: 16}
LATENCY_PART = 0.45
"""of a target: what a batch may take by ParvaGPU's own rule"""
SLICES = (1, 2, 3, 4, 7)

Curve = dict[int, float]
"""seconds by slices"""


@dataclass(frozen=True)
class Deployed:
    """An instance that ParvaGPU's planner placed."""

    model: str
    placed: Placed
    batch: int
    processes: int


def overlaps(placed: Sequence[Placed]) -> list[tuple[Placed, Placed]]:
    """The pairs of instances that claim a memory slice twice."""
    return [(one, other) for one, other in itertools.combinations(placed, 2) if slices(one) & slices(other)]


def parvagpu_rows() -> dict[str, tuple[Row, ...]]:
    """By network: every way that ran, the throughput of all processes of a slice together."""
    found: dict[str, list[Row]] = {}
    for line in _lines("parvagpu_a100_profiles.csv"):
        throughput = float(line["throughput_per_s"])
        if throughput > 0:  # 0: out of memory
            processes = int(line["processes"])
            found.setdefault(line["model"], []).append(
                Row(
                    int(line["mig_slices"]),
                    int(line["batch"]),
                    processes,
                    throughput * processes,
                    float(line["latency_s"]),
                    Basis.MEASURED,
                )
            )
    return {name: tuple(rows) for name, rows in found.items()}


def parvagpu_request(number: int, headroom: float = 0.0) -> PlanRequest:
    """The set of this number, by the authors' own rule for latencies and on their GPU."""
    rows = parvagpu_rows()
    models = tuple(
        ModelDemand(line["model"], rows[line["model"]], float(line["requests_per_s"]), float(line["slo_ms"]) / 1e3)
        for line in _lines("parvagpu_slos.csv")
        if int(line["set"]) == number
    )
    device = gpu_type("A100-80GB", Partitioning.MIG)
    return PlanRequest(device, models, headroom=headroom, latency_part=LATENCY_PART)


def parvagpu_deployments() -> dict[int, list[list[Deployed]]]:
    """By set: the content of each GPU."""
    found: dict[int, dict[tuple[str, str], list[Deployed]]] = {}
    for line in _lines("parvagpu_deployments.csv"):
        profile = BY_NAME[f"{line['Instance size']}g"]
        gpu = line["Num instance"], line["Num GPU"]
        found.setdefault(int(line["set"]), {}).setdefault(gpu, []).append(
            Deployed(line["Model"], (profile, int(line["Placement"])), int(line["Batch size"]), int(line["Num proc"]))
        )
    return {number: list(gpus.values()) for number, gpus in found.items()}


def parvagpu_curves(batches: Iterable[int]) -> dict[str, Curve]:
    """Seconds a batch of one process, where it ran on every slice count, by network and batch."""
    wanted = set(batches)
    found: dict[str, Curve] = {}
    for name, rows in parvagpu_rows().items():
        for row in rows:
            if row.processes == 1 and row.batch in wanted:
                found.setdefault(f"{name} b{row.batch}", {})[row.units] = row.secs
    return {name: curve for name, curve in found.items() if set(curve) == set(SLICES)}


def miso_curves() -> dict[str, Curve]:
    """Seconds an iteration of training (median), where it ran on every slice count, by workload."""
    found: dict[str, Curve] = {}
    for line in _lines("miso_mig_iterations.csv"):
        found.setdefault(line["workload"], {})[int(line["mig_slices"])] = float(line["median_s"])
    return {name: curve for name, curve in found.items() if set(curve) == set(SLICES)}


def _lines(name: str) -> list[dict[str, str]]:
    with (FOLDER / name).open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def published_plan(number: int, request: PlanRequest) -> Plan:
    """The authors' deployment for a set, as a plan with the figures of their own profiles."""
    rows = {(model.name, row.units, row.batch, row.processes): row for model in request.models for row in model.rows}
    devices = tuple(
        tuple(
            Way(rows[each.model, each.placed[0].compute, each.batch, each.processes], 1.0).planned(
                each.model, request.device.by_units[each.placed[0].compute], each.placed[1]
            )
            for each in gpu
        )
        for gpu in parvagpu_deployments()[number]
    )
    return Plan(
        device=request.device.name,
        partitioning=request.device.partitioning.value,
        unit=request.device.unit,
        units_per_device=request.device.units,
        axis=request.device.length,
        devices=devices,
        models=tuple(planned_model(model, devices) for model in request.models),
        headroom=0.0,
        stp=None,
        is_proved=False,
        solve_s=0.0,
    )
