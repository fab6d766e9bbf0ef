"""The process that times a model in its peer, alone or beside a bundle; it is confined first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fractune_core.shares import Share


def open_child(args: list[str]) -> dict[str, Callable[..., Any]]:
    """The arguments are the share and its cores, separated by commas. Raises ShareUnavailable."""
    from fractune_workers.confinement.cpu import CpuConfinement

    share, cores = args
    confinement = CpuConfinement(Share.parse(share), [int(core) for core in cores.split(",")])
    confinement.enter()

    def time_peer(path: str, shapes: dict[str, list[int]], repeats: int) -> dict[str, Any]:
        from fractune.inference.comparing import beside

        version, run_secs = beside.time_peer(Path(path), len(confinement.cores), shapes, repeats)
        confinement.verify()  # the threads of both are there now
        return {"version": version, "run_secs": run_secs}

    def time_peer_at(path: str, several: list[dict[str, list[int]]], repeats: int) -> list[list[float]]:
        from fractune.inference.comparing import beside

        found = beside.time_peer_at(Path(path), len(confinement.cores), several, repeats)
        confinement.verify()
        return found

    def time_beside(path: str, bundle: str, repeats: int) -> dict[str, Any]:
        from fractune.inference.comparing import beside
        from fractune.inference.loading import load

        model = load(bundle, share=share)
        variant = model.choice.variant
        timed = beside.time_beside(Path(path), model, model.random_inputs(), [variant], repeats)
        confinement.verify()
        return {"variant": variant, **asdict(timed)}

    return {"time_peer": time_peer, "time_peer_at": time_peer_at, "time_beside": time_beside}
