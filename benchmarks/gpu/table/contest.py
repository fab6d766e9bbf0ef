"""The kernels of one operator beside a peer at a share: outputs first, then times, interleaved in one process.

The confined process is this module too. It has a pack in the place of TVM's compiler. A contestant whose output differs
from NumPy's by more than a validation allows is `wrong`, and is not timed. All are timed in the same way: some calls
are launched, then awaited, by the wall clock.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.gpu.day import REPOSITORY
from benchmarks.gpu.table.operations import Operation
from benchmarks.gpu.table.peers import PEERS, Contestant, PeerMissing, Task
from fractune_core.codec.plain_json import from_json
from fractune_core.errors import FractuneError, first_line
from fractune_core.files.bundles import Bundle
from fractune_core.names import UNTUNED_VARIANT
from fractune_core.shares import Share
from fractune_workers.child import Child
from fractune_workers.child.process import Start
from fractune_workers.confinement import confinement_for
from fractune_workers.confinement.base import Confinement
from fractune_workers.confinement.cpu import CpuConfinement

if TYPE_CHECKING:
    from fractune_workers.children.measuring.setup import MeasuringSetup
    from fractune_workers.children.tvm_api.processor import Processor

RIGHT, WRONG, MISSING, FAILED = "right", "wrong", "missing", "failed"
CHOOSING, REPORTED = 5, 9
"""Rounds of a timing: the first choose the fastest contestant, the others are reported"""
_TURN_S = 0.02
_FIRST_CALLS = 3
_BURST = 32
"""launches that no GPU's queue makes wait: their time is that of the host"""
_SEED = 0


@contextlib.contextmanager
def confined(share: Share, packed: Path) -> Iterator[Child]:
    """A process of this module at the share; `packed` is the folder of a pack. Raises ShareUnavailable."""
    cores = CpuConfinement(share).cores if share.device_kind == "cpu" else []
    confinement = confinement_for(share, cores)
    confinement.probe()
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]))
    env = {**confinement.environment(), "PYTHONPATH": path}
    arguments = [str(share), ",".join(map(str, cores)), str(packed)]
    child = Child(__spec__.name, arguments, env, before_kill=confinement.before_kill, start=Start(cores))
    try:
        yield child
    finally:
        child.stop()
        confinement.leave()


def open_child(args: list[str]) -> dict[str, Callable[..., Any]]:
    """The arguments are the share, the cores of a CPU share, and the folder of a pack. Raises ShareUnavailable."""
    share, cores = Share.parse(args[0]), [int(core) for core in args[1].split(",") if core]
    confinement = confinement_for(share, cores)
    confinement.enter()
    from fractune_workers.children.measuring.child import setup_of

    hold = partial(_hold, confinement, setup_of(share, confinement, Path(args[2])))
    return {"hold": partial(hold, _on_operation), "hold_whole": partial(hold, _whole_contestants)}


def _hold(
    confinement: Confinement, setup: MeasuringSetup, held: Callable[..., dict[str, Any]], **given: Any
) -> dict[str, Any]:
    setup.get_ready()
    granted = confinement.verify().to_json()
    with setup.processor.engaged():
        return {"granted": granted, "contestants": held(setup.processor, **given)}


def _whole_contestants(processor: Processor, share: str, bundle: str, model: str) -> dict[str, Any]:
    from benchmarks.gpu.table.whole import MODEL_PEERS
    from fractune_core.agreement import rounding
    from fractune_runtime.tvm_runtime.drawing import random_inputs
    from fractune_runtime.tvm_runtime.tensors import specs_of
    from fractune_workers.children.measuring.model_timing import backend_on

    opened = Bundle(Path(bundle))
    backend, specs = backend_on(processor, opened), specs_of(opened.manifest["inputs"])
    inputs = random_inputs(specs, _SEED)
    arguments = backend.placed(backend.arguments(specs, inputs))
    own, untuned = (partial(backend.run, backend.load_variant(name), arguments) for name in (share, UNTUNED_VARIANT))
    expected = list(map(backend.array, untuned()))
    contestants = {"fractune": Contestant(own, lambda: backend.array(own()[0]))}
    found: dict[str, Any] = {}
    for name, opener in MODEL_PEERS.items():
        _join(contestants, found, name, partial(opener, Path(model), inputs))
    judged = judged_and_timed(contestants, expected[0], rounding(expected), processor.sync)
    for each in judged.values():
        each["launch_s"] = 0.0  # an inference is awaited: all of its time counts
    return found | judged


def _on_operation(processor: Processor, operation: dict[str, Any], **given: Any) -> dict[str, Any]:
    return _contestants(processor, from_json(Operation, operation), **given)


def _contestants(
    processor: Processor, operation: Operation, described: list[Any], codes: Mapping[str, str], peer: str
) -> dict[str, Any]:
    from fractune_workers.children.measuring.quantized_outputs import allowed
    from fractune_workers.children.tvm_api.arrays import random_args
    from fractune_workers.children.tvm_api.artifacts import load_objects

    x, w, _ = random_args(described, _SEED, processor)
    x_array, w_array = processor.read(x), processor.read(w)
    is_last = operation.is_channels_last([shape for _, _, shape, *_ in described])
    expected = operation.result(x_array, w_array, channels_last=is_last)
    dtype = described[-1][1]

    def blank() -> Any:
        return processor.tensor(np.full(expected.shape, np.nan, dtype))

    found: dict[str, Any] = {}
    contestants: dict[str, Contestant] = {}
    for name, path in codes.items():
        y = blank()
        library = load_objects([Path(path).read_bytes()])
        contestants[name] = Contestant(partial(library["main"], x, w, y), partial(processor.read, y))
    task = Task(operation, dtype, is_last, x, w, blank(), processor)
    _join(contestants, found, peer, partial(PEERS[peer], task))
    return found | judged_and_timed(contestants, expected, allowed(described), processor.sync)


def _join(
    contestants: dict[str, Contestant], found: dict[str, Any], name: str, opened: Callable[[], Contestant]
) -> None:
    """Add a peer to the contestants, or to `found` with the reason why it is none."""
    try:
        contestants[name] = opened()
    except PeerMissing as error:
        found[name] = {"status": MISSING, "cause": str(error)}
    except Exception as error:  # noqa: BLE001  a peer that fails must not cost the others
        found[name] = _failed(error)


def _failed(error: Exception) -> dict[str, Any]:
    return {"status": FAILED, "cause": f"{type(error).__name__}: {first_line(error)}"}


def judged_and_timed(
    contestants: Mapping[str, Contestant], expected: Any, most: float, sync: Callable[[], None]
) -> dict[str, Any]:
    """Of each contestant its status and largest difference; of the right ones also the times (`interleaved`)."""
    found = {name: {**_judged(each, expected, most, sync), "by": each.by} for name, each in contestants.items()}
    right = {name: contestants[name].call for name, each in found.items() if each["status"] == RIGHT}
    for name, times in interleaved(right, sync).items():
        found[name] |= times
    return found


def _judged(contestant: Contestant, expected: Any, most: float, sync: Callable[[], None]) -> dict[str, Any]:
    from fractune_workers.children.tvm_api.arrays import difference

    try:
        contestant.call()
        sync()
        output = contestant.output()
    except FractuneError:
        raise  # the device is lost
    except Exception as error:  # noqa: BLE001  a contestant that fails must not cost the others
        return _failed(error)
    off = difference(output, expected) if output.shape == expected.shape else math.inf
    return {"status": RIGHT if off <= most else WRONG, "max_error": off, "allowed": most}


def interleaved(calls: Mapping[str, Callable[[], object]], sync: Callable[[], None]) -> dict[str, Any]:
    """By name: `choosing_secs` and `run_secs` of one call, and `launch_s`, the host's time for a launch.

    A turn has as many calls as take 20 ms. The turns alternate, every round in the other order.
    """
    counts = {name: _calls_for(_turn(call, sync, _FIRST_CALLS)[0]) for name, call in calls.items()}
    turns: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for number in range(CHOOSING + REPORTED):
        for name in list(calls)[:: -1 if number % 2 else 1]:
            turns[name].append(_turn(calls[name], sync, counts[name]))
    return {
        name: {
            "choosing_secs": [secs for secs, _ in found[:CHOOSING]],
            "run_secs": [secs for secs, _ in found[CHOOSING:]],
            "launch_s": min(launch_s for _, launch_s in found),
        }
        for name, found in turns.items()
    }


def _calls_for(secs: float) -> int:
    return max(1, math.ceil(_TURN_S / max(secs, 1e-6)))


def _turn(call: Callable[[], object], sync: Callable[[], None], count: int) -> tuple[float, float]:
    """Seconds of one call, and of launching one."""
    burst, launched_s = min(count, _BURST), 0.0
    sync()
    began = time.perf_counter()
    for number in range(count):
        call()
        if number + 1 == burst:
            launched_s = time.perf_counter() - began
    sync()
    return (time.perf_counter() - began) / count, launched_s / burst
