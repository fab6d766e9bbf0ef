"""A bundle beside its peer: the bundle's model in ONNX Runtime. Both are timed interleaved in this process.

A quantized model runs in an exact session of ONNX Runtime too. It is the reference of the outputs: a default session
may saturate, or round data that the model does not round.

Where outputs do not lie close together, exact sessions show how far right outputs may lie apart. They run with and
without ONNX Runtime's changes of the graph, and with inputs and weights that are moved by some roundings.
"""

import contextlib
import hashlib
import itertools
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fractune.comparing.interleaved import Times, time_interleaved, time_loops
from fractune_core.agreement import Precision, differences, is_half, judge, nothing_shown
from fractune_core.analysis.slowdown_ci import Slowdown, slowdown
from fractune_core.errors import BadModel, BadRequest, FractuneError, first_line
from fractune_core.files.compared import ONNX_RUNTIME, OURS, Compared, Runtime, Timed
from fractune_runtime import sessions
from fractune_runtime.choosing import VariantChoice
from fractune_runtime.loading import load
from fractune_runtime.model import Model
from fractune_runtime.right_outputs import Deadline, moved_outputs
from fractune_runtime.sessions import Feeder, OnnxRuntimeSession, Session, is_quantized, open_session, open_shapes
from fractune_runtime.tvm_runtime.drawing import changed, typical_inputs
from fractune_runtime.tvm_runtime.tensors import Array, TensorSpec


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
    none of its shapes. For one request ONNX Runtime is timed by its own defaults too, where these differ.
    """
    wanted = list(map(model.run, requests))
    right = [_Right(file.onnx, model, request) for request in requests]
    calls: dict[str, Callable[[], Any]] = {OURS: _in_turn(model.run, requests)}
    found, refused, differ, feeds_of = {}, {}, {}, {}
    for name in runtimes:
        settings = sessions.settings_of(name, exact=file.exact)
        try:
            session = _session(model, file.onnx, name, settings)
            feeds = feeds_of[name] = list(map(Feeder(model.bundle.manifest, session), requests))
            outputs = list(map(session.run, feeds))
            differ[name] = worst = max(differences(*each)[1] for each in zip(outputs, wanted, strict=True))
            precision = Precision(is_half(wanted[0]), file.is_quantized or not file.exact)
            agree = all(judge(*each, precision).agrees for each in zip(outputs, wanted, right, strict=True))
        except (FractuneError, ValueError) as error:
            refused[name] = str(error)
            continue
        if not agree:
            refused[name] = f"its outputs differ by {worst:.1e} of the largest value, and rounding does not explain it"
            continue
        calls[name], found[name] = _in_turn(session.run, feeds), Runtime(session.version, settings)
    if ONNX_RUNTIME in found and len(requests) == 1 and (model.share.units > 1 or file.is_quantized):
        calls[_PEER] = _in_turn(_session(model, file.onnx, ONNX_RUNTIME, {}).run, feeds_of[ONNX_RUNTIME])
    times = time_interleaved(calls, file.repeats, apart=True)
    ours = times[OURS]
    timed = {OURS: _timed(ours, None, None)}
    timed |= {name: _timed(times[name], ours, differ[name]) for name in found}
    by_default = _timed(times[_PEER], ours, None) if _PEER in times else None
    unproved = nothing_shown_of(model.run, requests[0])
    return Compared(timed, refused, by_default=by_default, unproved=unproved), found


def nothing_shown_of(run: Callable[[dict[str, Array]], Sequence[Array]], inputs: Mapping[str, Array]) -> str:
    """As `nothing_shown`, of a run on these inputs and one on changed inputs, which it may refuse."""
    runs, given, other = [], dict(inputs), changed(inputs)
    same = all(array.tobytes() == other[name].tobytes() for name, array in given.items())
    for each in (given,) if same else (given, other):
        with contextlib.suppress(FractuneError):
            runs.append([output.copy() for output in run(each)])
    return nothing_shown(runs)


class _Right:
    """Outputs of one request that are as right as one another, computed by the first call.

    Exact sessions give them: one without changes of the graph, one with them, and those of moved models on moved
    inputs. One more rounds no data where the model allows it: a bundle need not. A call raises BadModel, or
    FractuneError if ONNX Runtime or `onnx` is missing.
    """

    def __init__(self, onnx: bytes, model: Model, inputs: Mapping[str, Array]) -> None:
        self._onnx, self._model, self._inputs = onnx, model, inputs
        self.found: list[list[Array]] = []

    def __call__(self) -> list[list[Array]]:
        self.found = self.found or self._computed()
        return self.found

    @property
    def apart(self) -> float:
        """The largest difference between them, over the largest value; 0 where they were not needed."""
        return max((differences(each, self.found[0])[1] for each in self.found), default=0.0)

    def _computed(self) -> list[list[Array]]:
        threads = self._model.share.units
        plain = OnnxRuntimeSession.exact(self._onnx, threads, optimized=False)
        feed = Feeder(self._model.bundle.manifest, plain)(self._inputs)
        others = (OnnxRuntimeSession.exact(self._onnx, threads, rounds=rounds) for rounds in (True, False))
        outputs = [each.run(feed) for each in (plain, *others)]

        def open_run(moved: bytes) -> Callable[[Mapping[str, Array]], list[Array]]:
            return OnnxRuntimeSession.exact(moved, threads, optimized=False).run

        constants = self._model.bundle.manifest.get("constants", {})
        kept = {name: array for name, array in feed.items() if name in constants}
        precision, deadline = Precision(is_half(outputs[0])), Deadline(_JUDGING_S)
        return outputs + moved_outputs(self._onnx, feed, precision, open_run, deadline, kept)


def _session(model: Model, onnx: bytes, name: str, settings: Mapping[str, str]) -> Session:
    shapes, threads = open_shapes(model.inputs), model.share.units
    file_name = model.bundle.manifest["model"]["name"]
    return open_session(name, onnx, file_name, threads, model.share.cpus[:threads], settings, shapes)


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
    unproved: str = ""
    """what the outputs are if an agreement says nothing of them: NaN, or the same on other inputs too"""

    def __repr__(self) -> str:
        loop, paced = (
            f"{each.median * 100:+.1f} % ± {each.margin * 100:.1f} %" for each in (self.slowdown, self.paced_slowdown)
        )
        differ = f"the outputs are {self.unproved}" if self.unproved else f"{self.max_rel_difference:.1e}"
        return f"Comparison(slowdown {loop}, paced {paced}, max_rel_difference {differ})"

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
        nothing_shown_of(theirs.run, feed),
    )


def _call(model: Model, inputs: Mapping[str, Any]) -> Callable[[], Any]:
    """One inference, with its inputs already on the model's device."""
    placed = model.placed(inputs)
    return lambda: model.run_tensors(placed)


_PEER, _EXACT = "the peer", "the peer, exact"
"""beside the names of variants; a variant has the peer's name where the peer serves the bundle"""
_JUDGING_S = 60.0
"""after which no further run begins that shows how far right outputs lie apart"""


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
    """as `max_rel_difference`, between outputs that are as right as one another; 0 where outputs lie close together, so
    that these were not computed"""
    outputs_agree: bool
    """the difference is only rounding"""
    unproved: str
    """what the outputs are if an agreement says nothing of them (`nothing_shown`)"""


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
    feed_of = Feeder(model.bundle.manifest, peer)
    feed = feed_of(inputs)
    peers = {_PEER: peer}
    quantized = is_quantized(path)
    if quantized:
        peers[_EXACT] = OnnxRuntimeSession.exact(path, model.share.units)
    run_peers = {name: partial(each.run, feed) for name, each in peers.items()}
    outputs, reference = model.run(inputs), run_peers[list(peers)[-1]]()
    right, close = _Right(path.read_bytes(), model, inputs), Precision(is_half(outputs))
    agree = judge(outputs, reference, right, replace(close, quantized=quantized, step=close.rounding)).agrees
    finalists = {name: partial(model.run, inputs, name) for name in variants}
    times = time_interleaved({**finalists, **run_peers}, repeats, apart=True, brief=brief)
    absolute, relative = differences(outputs, reference)
    theirs, exactly = times.pop(_PEER), times.pop(_EXACT, None)
    unproved = nothing_shown_of(lambda given: peer.run(feed_of(given)), inputs)
    return Beside(peer.version, times, theirs, exactly, absolute, relative, right.apart, agree, unproved)


def accepted_inputs(path: Path, model: Model, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Inputs of the same types and shapes that ONNX Runtime takes for the file at `path`. Integers that are indices lie
    within the axis that they index. Numbers such as thresholds are those with which the outputs say something. Raises
    BadRequest if it takes no inputs that are drawn, else as `time_beside`.
    """
    _check_same(path, model)
    peer = OnnxRuntimeSession(path, model.share.units, optimized=False)
    feed_of = Feeder(model.bundle.manifest, peer)
    specs = [TensorSpec(name, str(array.dtype), array.shape) for name, array in inputs.items()]
    made = typical_inputs(specs, peer.accepted_ranges(specs, feed_of))
    try:
        peer.run(feed_of(made))
    except BadModel as error:
        raise BadRequest(
            f"{first_line(error)}, on random inputs: give inputs of your own by 'fractune run BUNDLE --inputs FILE.npz "
            f"--compare {ONNX_RUNTIME} --model {path.name}'"
        ) from error
    return made


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
