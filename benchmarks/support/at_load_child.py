"""The process that times a bundle beside its peer, in a loop and paced, and then at load; it is confined first."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.support.at_load import SIDES
from fractune.local import timing_process
from fractune_core.served import latencies
from fractune_core.shares import Share


def open_child(args: list[str]) -> dict[str, Callable[..., Any]]:
    """The arguments are the share and its cores, separated by commas. Raises ShareUnavailable."""
    share, cores = args
    return {**timing_process.open_child(args), "answer": partial(_answer, share, cores)}


def _answer(share: str, cores: str, path: str, bundle: str, blocks: list[list[float]]) -> dict[str, list[list[float]]]:
    """Seconds from arrival to answer of each request, by side and block. `blocks` has the arrivals in seconds."""
    from fractune.comparing.beside import peer_feed
    from fractune.comparing.interleaved import wait_for_quiet
    from fractune_runtime.loading import load
    from fractune_runtime.sessions import OnnxRuntimeSession
    from fractune_workers.confinement.cpu import check_affinities

    model = load(bundle, share=share)
    peer, inputs = OnnxRuntimeSession(Path(path), model.share.units), model.random_inputs()
    calls = {"our": partial(model.run, inputs), "peer": partial(peer.run, *peer_feed(peer, model, inputs))}
    found: dict[str, list[list[float]]] = {side: [] for side in SIDES}
    for number, arrivals_s in enumerate(blocks):
        for side in SIDES[:: -1 if number % 2 else 1]:
            wait_for_quiet()
            calls[side]()
            found[side].append(latencies(calls[side], arrivals_s))
    check_affinities(Share.parse(share), [int(core) for core in cores.split(",")])
    return found
