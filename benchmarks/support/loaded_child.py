"""The process that times a loaded bundle beside its own code and the other runtimes; it is confined first."""

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fractune_core.files.compared import RUNTIMES
from fractune_core.shares import Share

LOADED, OWN = "loaded", "own"


def open_child(args: list[str]) -> dict[str, Callable[..., Any]]:
    """The arguments are the share and its cores, separated by commas."""
    from fractune_workers.confinement.cpu import CpuConfinement

    share, cores = args
    confinement = CpuConfinement(Share.parse(share), [int(core) for core in cores.split(",")])
    confinement.enter()

    def compare(bundle: str, onnx: str, runtimes: list[str], repeats: int) -> dict[str, Any]:
        """Ratios of the loaded bundle's time over each other's, in a loop and paced, with 95 % intervals."""
        import fractune
        from fractune.comparing.interleaved import time_interleaved
        from fractune_runtime.sessions import Feeder, open_session, settings_of

        loaded = fractune.load(bundle, share=share)
        inputs = loaded.random_inputs()
        calls: dict[str, Callable[[], Any]] = {LOADED: partial(loaded.run, inputs)}
        if loaded.choice.variant in RUNTIMES:
            calls[OWN] = partial(fractune.load(bundle, share=share, runtimes=False).run, inputs)
        cpus, data = loaded.share.cpus[: loaded.share.units], Path(onnx).read_bytes()
        shapes = {name: list(each.shape) for name, each in inputs.items()}
        for name in runtimes:
            session = open_session(name, data, onnx, len(cpus), cpus, settings_of(name), shapes)
            calls[name] = partial(session.run, Feeder(loaded.bundle.manifest, session)(inputs))
        times = time_interleaved(calls, repeats, apart=True)
        confinement.verify()
        return {
            "choice": loaded.choice.variant,
            "loop": {name: each.loop_secs for name, each in times.items()},
            "paced": {name: each.paced_secs for name, each in times.items()},
            "median_s": {name: statistics.median(each.loop_secs) for name, each in times.items()},
        }

    return {"compare": compare}
