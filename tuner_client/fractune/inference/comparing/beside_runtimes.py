"""A model beside its file in other runtimes, interleaved in this process."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fractune.inference.comparing.interleaved import Times, time_interleaved
from fractune.inference.model import Model
from fractune.inference.runtimes.sessions import Session, open_session, settings_of
from fractune.inference.runtimes.variant import input_order, open_shapes
from fractune_core.agreement import QUANTIZED_ROUNDING, differences, rounding
from fractune_core.analysis.slowdown_ci import Slowdown, slowdown
from fractune_core.errors import FractuneError
from fractune_core.files.compared import OURS, Compared, Runtime, Timed
from fractune_core.names import UNTUNED_VARIANT

if TYPE_CHECKING:
    from fractune.inference.tvm_runtime.tensors import Array


@dataclass(frozen=True)
class Contenders:
    """What other runtimes run, and how all are timed."""

    onnx: bytes
    """the model's file"""
    is_quantized: bool
    exact: bool
    """else runtimes compute by their defaults, and may differ as much as a quantized model"""
    repeats: int


def time_beside_runtimes(
    model: Model, requests: Sequence[dict[str, Array]], file: Contenders, runtimes: Sequence[str]
) -> tuple[Compared, dict[str, Runtime]]:
    """Times of the model and of its file in the `runtimes` that can run it and agree with it, and these runtimes.

    The `requests` are inputs that take turns: a runtime may take longer for a shape other than that of the request
    before. All have a thread for each core of the model's share. The model runs its own code, and pads inputs that have
    none of its shapes.
    """
    wanted = list(map(model.run, requests))
    allowed = QUANTIZED_ROUNDING if file.is_quantized or not file.exact else _allowed(model, requests[0], wanted[0])
    calls: dict[str, Callable[[], Any]] = {OURS: _in_turn(model.run, requests)}
    found, refused, differ = {}, {}, {}
    for name in runtimes:
        settings = settings_of(name, exact=file.exact)
        try:
            session = _session(model, file.onnx, name, settings)
            feeds = _feeds(model, session, requests)
            outputs = map(session.run, feeds)
            differ[name] = worst = max(differences(*each)[1] for each in zip(outputs, wanted, strict=True))
        except (FractuneError, ValueError) as error:
            refused[name] = str(error)
            continue
        if worst > allowed:
            refused[name] = f"its outputs differ by {worst:.1e} of the largest value, and {allowed:.0e} is rounding"
            continue
        calls[name], found[name] = _in_turn(session.run, feeds), Runtime(session.version, settings)
    times = time_interleaved(calls, file.repeats, apart=True)
    ours = times[OURS]
    timed = {OURS: _timed(ours, None, None)}
    timed |= {name: _timed(times[name], ours, differ[name]) for name in found}
    return Compared(timed, refused), found


def _allowed(model: Model, inputs: dict[str, Array], wanted: list[Array]) -> float:
    """What counts as rounding. Where outputs are small differences of large numbers, the bundle's own variants, which
    were validated, lie further apart than rounding does elsewhere.
    """
    own = differences(model.run(inputs, UNTUNED_VARIANT), wanted)[1]
    return min(rounding(wanted, own), QUANTIZED_ROUNDING)


def _session(model: Model, onnx: bytes, name: str, settings: Mapping[str, str]) -> Session:
    shapes, threads = open_shapes(model.inputs), model.share.units
    file_name = model.bundle.manifest["model"]["name"]
    return open_session(name, onnx, file_name, threads, model.share.cpus[:threads], settings, shapes)


def _feeds(model: Model, session: Session, requests: Sequence[dict[str, Array]]) -> list[dict[str, Array]]:
    names = input_order(model.bundle.manifest, session)
    return [dict(zip(names, inputs.values(), strict=True)) for inputs in requests]


def _in_turn(run: Callable[[dict[str, Array]], Any], requests: Sequence[dict[str, Array]]) -> Callable[[], Any]:
    turns = itertools.cycle(requests)
    return lambda: run(next(turns))


def _timed(times: Times, ours: Times | None, difference: float | None) -> Timed:
    loop_s, paced_s = (statistics.median(secs) for secs in (times.loop_secs, times.paced_secs))
    if ours is None:
        return Timed(loop_s, paced_s)
    loop = slowdown(ours.loop_secs, times.loop_secs, interleaved=True)
    paced = slowdown(ours.paced_secs, times.paced_secs, interleaved=True)
    return Timed(loop_s, paced_s, _ratio(loop), _ratio(paced), difference)


def _ratio(lost: Slowdown) -> tuple[float, float, float]:
    return 1 + lost.median, 1 + lost.low, 1 + lost.high
