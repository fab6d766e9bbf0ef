"""A plan as what a person would run or apply: commands, a compose file, or Kubernetes deployments. Nothing is run.

Texts only, and not verified on a GPU. `SERVE` stands for the user's own server of a model.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator

from fractune_core.errors import BadRequest
from fractune_core.planning.devices import Partitioning
from fractune_core.planning.mig import BY_NAME, PROFILES
from fractune_core.planning.plans import Plan, PlannedPart


def deployment(plan: Plan, form: str) -> str:
    """The text in the form `commands`, `compose` or `kubernetes`. Raises BadRequest for another form, and where there
    is none for such parts.
    """
    writer = _FORMS.get(form)
    if writer is None:
        raise BadRequest(f"--apply {form}: write {', '.join(_FORMS)}")
    head = [
        f"# Plan for {len(plan.devices)} x {plan.device} by {plan.partitioning}. Printed, not run: look at it first."
    ]
    if plan.partitioning != Partitioning.CPU:
        head.append("# Not verified on a GPU.")
    return "\n".join([*head, *writer(plan)])


# ---- commands --------------------------------------------------------------------------------------------


def _commands(plan: Plan) -> Iterator[str]:
    yield "# SERVE stands for your own server of a model."
    if plan.partitioning == Partitioning.MPS:
        yield "nvidia-cuda-mps-control -d"
    for number, parts in enumerate(plan.devices):
        yield f"# device {number}"
        if plan.partitioning == Partitioning.MIG:
            yield from _mig_commands(number, parts)
        for part in parts:
            yield from _serve_commands(plan, number, part)


def _mig_commands(number: int, parts: tuple[PlannedPart, ...]) -> Iterator[str]:
    """As root. Instances that are there go; the larger are made first, as NVML wants it."""
    instances = sorted(
        ((BY_NAME[f"{part.units}g"], part.place) for part in parts), key=lambda of: PROFILES.index(of[0])
    )
    mig = f"nvidia-smi mig -i {number}"
    yield f"nvidia-smi -i {number} -mig 1"
    yield f"{mig} -dci"
    yield f"{mig} -dgi"
    yield f"{mig} -cgi {','.join(f'{profile.id}:{place}' for profile, place in instances)} -C"
    yield "nvidia-smi -L    # the UUIDs of the instances"


def _serve_commands(plan: Plan, number: int, part: PlannedPart) -> Iterator[str]:
    serve = f"SERVE {part.model} --batch {part.batch}"
    if plan.partitioning == Partitioning.GREEN:
        yield f"# {part.share}: a context that the serving process itself makes, for {part.processes} of its threads"
        yield f"CUDA_VISIBLE_DEVICES={number} {serve} &"
        return
    for _ in range(part.processes):
        if plan.partitioning == Partitioning.MIG:
            yield f"CUDA_VISIBLE_DEVICES='MIG-UUID of the {part.units}g at {part.place} of GPU {number}' {serve} &"
        elif plan.partitioning == Partitioning.MPS:
            percent = max(int(part.share.partition(":")[2]) // part.processes, 1)
            yield f"CUDA_VISIBLE_DEVICES={number} CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={percent} {serve} &"
        else:
            yield f"taskset -c {_cores(part)} {serve} &    # on host {number}"


def _cores(part: PlannedPart) -> str:
    last = part.place + part.length - 1
    return str(part.place) if last == part.place else f"{part.place}-{last}"


# ---- compose ---------------------------------------------------------------------------------------------


def _compose(plan: Plan) -> Iterator[str]:
    """A service for each process, pinned to its part. One file for each host with CPUs: their names differ."""
    if plan.partitioning == Partitioning.GREEN:
        raise BadRequest("--apply compose: green contexts are made inside a process; use commands")
    yield "services:"
    for number, parts in enumerate(plan.devices):
        for part in parts:
            for process in range(part.processes):
                yield f"  {_service_name(part.model, number, part.place, process)}:"
                yield f"    image: {json.dumps(f'IMAGE of {part.model}')}"
                yield f"    command: {json.dumps(['SERVE', part.model, '--batch', str(part.batch)])}"
                yield from (f"    {line}" for line in _compose_resources(plan, number, part))


def _compose_resources(plan: Plan, number: int, part: PlannedPart) -> list[str]:
    if plan.partitioning == Partitioning.CPU:
        return [f'cpuset: "{_cores(part)}"']
    device, lines = str(number), []
    if plan.partitioning == Partitioning.MIG:
        device = f"MIG-UUID of the {part.units}g at {part.place} of GPU {number}"
    else:
        percent = max(int(part.share.partition(":")[2]) // part.processes, 1)
        lines = [
            "ipc: host",
            'volumes: ["/tmp/nvidia-mps:/tmp/nvidia-mps"]',
            f'environment: {{CUDA_MPS_ACTIVE_THREAD_PERCENTAGE: "{percent}"}}',
        ]
    reservation = {"driver": "nvidia", "device_ids": [device], "capabilities": ["gpu"]}
    return [*lines, f"deploy: {json.dumps({'resources': {'reservations': {'devices': [reservation]}}})}"]


# ---- Kubernetes ------------------------------------------------------------------------------------------


def _kubernetes(plan: Plan) -> Iterator[str]:
    """A deployment for each model and kind of part. Which device it lands on is the scheduler's choice: the nodes must
    be divided as the commands say.
    """
    if plan.partitioning not in {Partitioning.MIG, Partitioning.CPU}:
        raise BadRequest(
            f"--apply kubernetes: its NVIDIA plugin has no {plan.partitioning} shares of several sizes; use commands"
        )
    kinds = Counter(
        (part.model, part.share, part.batch, part.processes, part.units) for parts in plan.devices for part in parts
    )
    for (model, share, batch, processes, units), count in sorted(kinds.items()):
        container = {
            "name": "server",
            "image": f"IMAGE of {model}",
            "args": ["SERVE", model, "--batch", str(batch), "--processes", str(processes)],
            "resources": _limits(share, units),
        }
        name = re.sub(r"[^a-z0-9]+", "-", f"{model}-{share}-b{batch}".lower()).strip("-")
        resource = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name},
            "spec": {
                "replicas": count,
                "selector": {"matchLabels": {"app": name}},
                "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}},
            },
        }
        yield "---"
        yield json.dumps(resource, indent=2)


def _limits(share: str, units: int) -> dict[str, dict[str, str]]:
    mechanism, _, size = share.partition(":")
    if mechanism == "mig":
        return {"limits": {f"nvidia.com/mig-{size}": "1"}}
    # Whole cores of its own: requests equal to limits, under the kubelet's static CPU policy.
    return {"limits": {"cpu": str(units), "memory": "LIMIT"}, "requests": {"cpu": str(units), "memory": "LIMIT"}}


def _service_name(model: str, number: int, place: int, process: int) -> str:
    return f"{re.sub(r'[^a-z0-9_.-]+', '-', model.lower()).strip('-')}-d{number}-p{place}-{process}"


_FORMS: dict[str, Callable[[Plan], Iterator[str]]] = {
    "commands": _commands,
    "compose": _compose,
    "kubernetes": _kubernetes,
}
FORMS = tuple(_FORMS)
