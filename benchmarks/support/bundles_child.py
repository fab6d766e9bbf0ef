"""The child that times compiled models of several bundles at one share: confined first, then TVM."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fractune_core.files.bundles import Bundle
from fractune_core.shares import Share
from fractune_workers.confinement import confinement_for

_TURN_S = 0.05
"""One turn calls the model until this long has passed"""
_SLOW_S, _FEWEST_REPEATS = 1.0, 3
"""A finalist with such a long first timing gets the fewest timings: more add nothing for hardly tuned code"""


def time_in_turn(finalists: list[list[str]], turns: int) -> list[list[float]]:
    """Seconds of one inference of each (bundle, variant), `turns` times, every round in the other order.

    A slow one is timed in the first rounds only.
    """
    evaluators = [_evaluator(Path(path), variant) for path, variant in finalists]
    wanted = [_FEWEST_REPEATS if _secs(evaluate) > _SLOW_S else turns for evaluate in evaluators]
    run_secs: list[list[float]] = [[] for _ in evaluators]
    for turn in range(turns):
        places = [place for place, count in enumerate(wanted) if turn < count]
        for place in reversed(places) if turn % 2 else places:
            run_secs[place].append(evaluators[place]())
    return run_secs


def _secs(call: Callable[[], float]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _evaluator(path: Path, variant: str) -> Callable[[], float]:
    """A function that takes one turn."""
    from fractune_runtime.cpu import OnCpu
    from fractune_runtime.runner import secs_of_one
    from fractune_runtime.tvm_runtime.drawing import random_inputs
    from fractune_runtime.tvm_runtime.tensors import specs_of

    bundle = Bundle(path)
    backend, specs = OnCpu(bundle, None), specs_of(bundle.manifest["inputs"])
    arguments = backend.arguments(specs, random_inputs(specs))
    return partial(secs_of_one, partial(backend.run, backend.load_variant(variant), arguments), _TURN_S)


def open_child(args: list[str]) -> dict[str, Callable[..., Any]]:
    """The arguments are the share and its cores, separated by commas. Raises ShareUnavailable."""
    share, cores = args
    confinement = confinement_for(Share.parse(share), [int(core) for core in cores.split(",")])
    confinement.enter()
    return {"time": time_in_turn}
