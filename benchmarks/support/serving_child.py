"""A process that serves one or several bundles in a closed loop, each request made when the previous one is answered.

It is confined to its cores first. It prints one line when everything is loaded and has run. For each line of seconds
that it reads, it serves that long; then it prints a line with the waiting times of the requests, and its own memory.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

_WARM_RUNS = 5


def main() -> None:
    arrangement, cores, paths = sys.argv[1], [int(core) for core in sys.argv[2].split(",")], sys.argv[3:]
    os.sched_setaffinity(0, cores)
    serve = _SERVERS[arrangement](paths, f"cpu:{len(cores)}")
    for _ in range(_WARM_RUNS):
        serve()
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(_served(serve, float(line))), flush=True)


def _served(serve: Callable[[], list[float]], span_s: float) -> dict[str, Any]:
    """Rounds of requests until so long has passed; `wall_s` is to the end of the last one."""
    serve()  # in the first one, clients have waited since the round before
    waits: list[float] = []
    began = time.perf_counter()
    while time.perf_counter() - began < span_s:
        waits += serve()
    return {"waits_s": waits, "wall_s": time.perf_counter() - began}


def _in_turn(paths: list[str], share: str) -> Callable[[], list[float]]:
    """A client for each model; the process answers one after the other, each with all its cores."""
    import fractune

    models = [fractune.load(path, share=share) for path in paths]
    requests = [model.random_inputs(seed) for seed, model in enumerate(models)]
    sent_at = [time.perf_counter()] * len(models)

    def serve() -> list[float]:
        waits = []
        for client, (model, inputs) in enumerate(zip(models, requests, strict=True)):
            model.run(inputs)
            now = time.perf_counter()
            waits.append(now - sent_at[client])
            sent_at[client] = now
        return waits

    return serve


def _fused(paths: list[str], share: str) -> Callable[[], list[float]]:
    """A client for each slot; what they ask for is run at once."""
    import fractune

    (path,) = paths
    model = fractune.load(path, share=share)
    whole = model.random_inputs()
    requests = {
        slot: {name: array[slot].copy() for name, array in whole.items()}
        for slot, name in enumerate(model.slots)
        if name is not None
    }

    def serve() -> list[float]:
        began = time.perf_counter()
        model.run_slots(requests)
        return [time.perf_counter() - began] * len(requests)

    return serve


_SERVERS = {"in_turn": _in_turn, "fused": _fused}

if __name__ == "__main__":
    main()
