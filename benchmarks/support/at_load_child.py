"""The process that times a bundle beside other runtimes, in a loop, paced and at load; it is confined first."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fractune.local import timing_process
from fractune_core.files.compared import ONNX_RUNTIME, OURS
from fractune_core.served import latencies
from fractune_core.shares import Share


def open_child(args: list[str]) -> dict[str, Callable[..., Any]]:
    """The arguments are the share and its cores, separated by commas. Raises ShareUnavailable."""
    share, cores = args
    return {**timing_process.open_child(args), "answer": partial(_answer, share, cores)}


def _answer(
    share: str, cores: str, path: str, bundle: str, runtimes: list[str], blocks: list[list[float]]
) -> dict[str, list[list[float]]]:
    """Seconds from arrival to answer of each request, by side and block. `blocks` has the arrivals in seconds. ONNX
    Runtime has its own defaults, as programs have it.
    """
    from fractune.comparing.beside import accepted_inputs
    from fractune.comparing.interleaved import wait_for_quiet
    from fractune_runtime.loading import load
    from fractune_runtime.sessions import Feeder, open_session, settings_of
    from fractune_workers.confinement.cpu import check_affinities

    model = load(bundle, share=share, runtimes=False)
    inputs = accepted_inputs(Path(path), model, model.random_inputs())
    cpus, shapes = model.share.cpus[: model.share.units], {name: list(each.shape) for name, each in inputs.items()}
    calls: dict[str, Callable[[], Any]] = {OURS: partial(model.run, inputs)}
    for name in runtimes:
        settings = {} if name == ONNX_RUNTIME else settings_of(name)
        session = open_session(name, Path(path).read_bytes(), path, len(cpus), cpus, settings, shapes)
        calls[name] = partial(session.run, Feeder(model.bundle.manifest, session)(inputs))
    found: dict[str, list[list[float]]] = {side: [] for side in calls}
    for number, arrivals_s in enumerate(blocks):
        for side in list(calls)[:: -1 if number % 2 else 1]:
            wait_for_quiet()
            calls[side]()
            found[side].append(latencies(calls[side], arrivals_s))
    check_affinities(Share.parse(share), [int(core) for core in cores.split(",")])
    return found
