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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fractune.inference.comparing.interleaved import Times, time_interleaved, time_loops
from fractune.inference.comparing.typical_inputs import highest_integers, typical_inputs
from fractune.inference.model import Model
from fractune.inference.runtimes.sessions import OnnxRuntimeSession, Session, is_quantized
from fractune.inference.tvm_runtime.tensors import TensorSpec
from fractune_core.agreement import differences, rounding
from fractune_core.errors import BadRequest
from fractune_core.files.compared import ONNX_RUNTIME

if TYPE_CHECKING:
    from fractune.inference.tvm_runtime.tensors import Array

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
