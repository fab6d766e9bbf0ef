"""A bundle beside its peer: the bundle's model in ONNX Runtime. Both are timed interleaved in this process.

A quantized model runs in an exact session of ONNX Runtime too. It is the reference of the outputs: a default session
may saturate, or round data that the model does not round.

Where a model rounds, a difference in the last bit of a float32 may become a whole step, and further layers may magnify
it. So the reference shows how far right outputs may lie apart. It runs without ONNX Runtime's changes of the graph, and
on inputs that are moved by 1e-6 of themselves, which is some roundings of a float32. Outputs agree up to three times
the largest of these differences.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fractune.comparing.interleaved import Times, highest_integers, time_interleaved, time_loops, typical_inputs
from fractune_core.agreement import QUANTIZED_ROUNDING, differences, rounding
from fractune_core.analysis.slowdown_ci import Slowdown, slowdown
from fractune_core.errors import BadRequest, FractuneError
from fractune_core.files.compared import ONNX_RUNTIME, OURS, Compared, Runtime, Timed
from fractune_core.names import UNTUNED_VARIANT
from fractune_runtime.choosing import VariantChoice
from fractune_runtime.loading import load
from fractune_runtime.model import Model
from fractune_runtime.sessions import (
    OnnxRuntimeSession,
    Session,
    input_order,
    is_quantized,
    open_session,
    open_shapes,
    settings_of,
)
from fractune_runtime.tvm_runtime.tensors import TensorSpec

if TYPE_CHECKING:
    from fractune_runtime.tvm_runtime.tensors import Array


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


FEWEST_REPEATS = 6


@dataclass(frozen=True)
class Comparison:
    """A new bundle against the last one, on the same inputs."""

    slowdown: Slowdown
    """of the new bundle: 0.05 = 5 % longer, below 0 = faster; with its 95 % interval"""
    new_secs: tuple[float, ...]
    """seconds of one inference by the new bundle in a loop, all repeats, interleaved with `last_secs`"""
    last_secs: tuple[float, ...]
    paced_slowdown: Slowdown
    """as `slowdown`, of paced requests: each comes 20 ms after the previous answer"""
    new_paced_secs: tuple[float, ...]
    last_paced_secs: tuple[float, ...]
    max_abs_difference: float
    """largest difference of the outputs; infinite if only one has a number"""
    max_rel_difference: float
    """the same over the largest value of that output: another order of additions makes about 1e-6"""
    new: VariantChoice
    """the variant of the new bundle that ran, and the reason"""
    last: VariantChoice

    def __repr__(self) -> str:
        loop, paced = (
            f"{each.median * 100:+.1f} % ± {each.margin * 100:.1f} %" for each in (self.slowdown, self.paced_slowdown)
        )
        return f"Comparison(slowdown {loop}, paced {paced}, max_rel_difference {self.max_rel_difference:.1e})"

    def is_slower(self, tolerance: float = 0.0) -> bool:
        """Return True if the new bundle is slower in a loop beyond the noise, and by more than `tolerance` (0.03 = 3
        %).
        """
        return not self.slowdown.is_tie and self.slowdown.median > tolerance


def compare(
    new: str | os.PathLike[str] | Model,
    last: str | os.PathLike[str] | Model,
    *,
    share: str | None = None,
    inputs: Mapping[str, Any] | None = None,
    repeats: int = 21,
) -> Comparison:
    """Run two bundles of one model interleaved in this process: their times in a loop and paced, and the agreement of
    outputs.

    Both are loaded for `share` (by default the share of this process) and confined to it. Loaded models stay unchanged.
    `inputs` as for `Model.run`, by default random ones. Each is timed `repeats` times, 6 at least, in pairs, so that a
    slow-down of the machine for both cancels out.

    Raises BadBundle, BadRequest, ShareUnavailable, or FractuneError when TVM's runtime is not installed.
    """
    if repeats < FEWEST_REPEATS:
        raise BadRequest(f"repeats is {repeats}; it must be at least {FEWEST_REPEATS} for an interval")
    mine, theirs = (each if isinstance(each, Model) else load(Path(each), share=share) for each in (new, last))
    feed = mine.random_inputs() if inputs is None else inputs
    outputs, reference = mine.run(feed), theirs.run(feed)
    if [each.shape for each in outputs] != [each.shape for each in reference]:
        raise BadRequest(f"{mine.bundle.name} and {theirs.bundle.name} have different outputs: are they of one model?")
    absolute, relative = differences(outputs, reference)
    times = time_interleaved({"new": _call(mine, feed), "last": _call(theirs, feed)}, repeats, apart=True)
    new_times, last_times = times["new"], times["last"]
    return Comparison(
        slowdown(new_times.loop_secs, last_times.loop_secs, interleaved=True),
        tuple(new_times.loop_secs),
        tuple(last_times.loop_secs),
        slowdown(new_times.paced_secs, last_times.paced_secs, interleaved=True),
        tuple(new_times.paced_secs),
        tuple(last_times.paced_secs),
        absolute,
        relative,
        mine.choice,
        theirs.choice,
    )


def _call(model: Model, inputs: Mapping[str, Any]) -> Callable[[], Any]:
    """One inference, with its inputs already on the model's device."""
    placed = model.placed(inputs)
    return lambda: model.run_tensors(placed)


_EXACT = f"{ONNX_RUNTIME}, exact"
_MOVED, _MOVED_RUNS = 1e-6, 5
"""relative move of the inputs, and number of runs on moved inputs"""


@dataclass(frozen=True)
class Beside:
    """Times of one inference by variants of a bundle and by the peer, interleaved on the same inputs."""

    version: str
    """of the peer"""
    ours: dict[str, Times]
    """by variant"""
    theirs: Times
    """of a default session, as users have it"""
    exact: Times | None
    """of an exact session; None where the model is not quantized"""
    max_abs_difference: float
    """largest difference of the outputs of the model's chosen variant to the peer's, for a quantized model to those
    of the exact session; infinite if only one has a number"""
    max_rel_difference: float
    """the same over the largest value of that output"""
    own_rel_difference: float
    """as `max_rel_difference`, of the exact session to itself; 0 where the model is not quantized"""
    outputs_agree: bool
    """the difference is only rounding"""


def time_beside(
    path: Path, model: Model, inputs: Mapping[str, Array], variants: Sequence[str], repeats: int, *, brief: str = ""
) -> Beside:
    """Time `variants` of `model` beside the ONNX file at `path` in ONNX Runtime, which has a thread for each core of
    the share. A quantized model is timed in an exact session as well. The variant `brief` has fewer timings if it is
    slow (`time_interleaved`).

    Raises BadRequest if the bundle was not made from this file, BadModel when ONNX Runtime cannot load or run it,
    FractuneError when it is not installed.
    """
    _check_same(path, model)
    peer = OnnxRuntimeSession(path, model.share.units)
    feed, output_names = peer_feed(peer, model, inputs)
    peers = {ONNX_RUNTIME: peer}
    own = 0.0
    if is_quantized(path):
        exact = peers[_EXACT] = OnnxRuntimeSession.exact(path, model.share.units)
        own = _own_difference(path, exact, feed, output_names)
    run_peers = {name: partial(each.run, feed, output_names) for name, each in peers.items()}
    outputs, reference = model.run(inputs), run_peers[list(peers)[-1]]()
    finalists = {name: partial(model.run, inputs, name) for name in variants}
    times = time_interleaved({**finalists, **run_peers}, repeats, apart=True, brief=brief)
    absolute, relative = differences(outputs, reference)
    theirs, exactly, agree = times.pop(ONNX_RUNTIME), times.pop(_EXACT, None), relative <= rounding(outputs, own)
    return Beside(peer.version, times, theirs, exactly, absolute, relative, own, outputs_agree=agree)


def peer_feed(peer: Session, model: Model, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], list[str]]:
    """The `inputs` of `model` and its constants as the peer takes them, and the peer's names of its outputs.

    Raises BadRequest if inputs or outputs do not correspond.
    """
    numbers, given = (model.bundle.manifest.get(key, {}) for key in ("constants", "constant_shapes"))
    fed = [name for name in peer.input_names if name not in numbers]
    feed_names = _paired([spec.name for spec in model.inputs], fed, "inputs")
    shapes = {feed_names[name]: array.shape for name, array in inputs.items()}
    constants = peer.constants(numbers, {**shapes, **given})
    output_names = _paired([spec.name for spec in model.outputs], peer.output_names, "outputs")
    return {**constants, **{feed_names[name]: array for name, array in inputs.items()}}, list(output_names.values())


def accepted_inputs(path: Path, model: Model, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Inputs of the same types and shapes that ONNX Runtime takes for the file at `path`: integers that are indices lie
    within the axis that they index. Raises as `time_beside`.
    """
    import numpy as np

    _check_same(path, model)
    peer = OnnxRuntimeSession(path, model.share.units, optimized=False)

    def run(given: dict[str, Array]) -> list[Array]:
        peer.run(*peer_feed(peer, model, given))
        return [np.zeros(1)]  # an index outside is an error; a NaN of the model's own says nothing

    specs = [TensorSpec(name, str(array.dtype), array.shape) for name, array in inputs.items()]
    highs = highest_integers(specs, run)
    return typical_inputs(specs, highs) if highs else dict(inputs)


def time_peer(path: Path, threads: int, shapes: Mapping[str, Sequence[int]], repeats: int) -> tuple[str, list[float]]:
    """The version of ONNX Runtime, and seconds of one inference of the ONNX file at `path`, on random inputs. The loop
    runs `repeats` times; `shapes` are for open dimensions of the inputs.

    Raises BadModel when ONNX Runtime cannot load or run it, FractuneError when it is not installed.
    """
    peer = OnnxRuntimeSession(path, threads)
    (times,) = time_interleaved({ONNX_RUNTIME: _call_at(peer, shapes)}, repeats, apart=True).values()
    return peer.version, times.loop_secs


def time_peer_at(
    path: Path, threads: int, several: Sequence[Mapping[str, Sequence[int]]], repeats: int
) -> list[list[float]]:
    """As the seconds of `time_peer`, at each of `several` shapes, interleaved in one session."""
    peer = OnnxRuntimeSession(path, threads)
    calls = {str(number): _call_at(peer, shapes) for number, shapes in enumerate(several)}
    return list(time_loops(calls, repeats).values())


def _call_at(peer: Session, shapes: Mapping[str, Sequence[int]]) -> Callable[[], object]:
    """Runs the peer on random inputs of these shapes."""
    return partial(peer.run, peer.random_feed(shapes))


def _own_difference(
    path: Path, exact: OnnxRuntimeSession, feed: Mapping[str, Array], output_names: Sequence[str]
) -> float:
    """How far the exact session's outputs lie from others that are as right, over the largest value."""
    import numpy as np

    reference = exact.run(feed, output_names)
    others = [OnnxRuntimeSession.exact(path, 1, optimized=False).run(feed, output_names)]
    rng = np.random.default_rng(0)
    for _ in range(_MOVED_RUNS):
        moved = {name: _moved(array, rng) for name, array in feed.items()}
        others.append(exact.run(moved, output_names))
    return max(differences(each, reference)[1] for each in others)


def _moved(array: Array, rng: Any) -> Array:
    if array.dtype.kind != "f":
        return array
    up_or_down: Array = array * (1 + _MOVED * rng.choice([-1, 1], array.shape))
    return up_or_down.astype(array.dtype)


def _check_same(path: Path, model: Model) -> None:
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BadRequest(f"--model {path}: cannot be read ({error.strerror})") from error
    if digest != model.bundle.manifest["model"]["sha256"]:
        name = model.bundle.manifest["model"]["name"]
        raise BadRequest(
            f"--model {path}: not the file that {model.bundle.name} was made from ('{name}'); give that file"
        )


def _paired(ours: Sequence[str], theirs: Sequence[str], what: str) -> dict[str, str]:
    """The peer's names by ours: equal names if all are equal, else by position. Raises BadRequest."""
    if set(ours) == set(theirs):
        return {name: name for name in ours}
    if len(ours) != len(theirs):
        raise BadRequest(f"the bundle has {len(ours)} {what}, ONNX Runtime finds {len(theirs)}: nothing to compare")
    return dict(zip(ours, theirs, strict=True))
