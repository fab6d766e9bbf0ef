"""A process at a share that serves texts of many lengths: by fractune's bundle, ONNX Runtime or OpenVINO.

The runtimes take the ONNX file with its open dimensions, a thread for each core of the share, and do not spin.
"""

from collections.abc import Callable, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import fractune
from fractune.comparing.interleaved import serve
from fractune_core.files.compared import ONNX_RUNTIME, OPENVINO
from fractune_core.shares import Share
from fractune_runtime.sessions import OnnxRuntimeSession, OpenVinoSession, settings_of
from fractune_workers.confinement.cpu import CpuConfinement

Array = npt.NDArray[Any]
OURS, COMPETED, ONNX = "fractune", "fractune as loaded", ONNX_RUNTIME
"""the bundle's own code; what `fractune.load` runs after a competition; and other runtimes alone"""
_WORDS = 1000
_Run = Callable[[Mapping[str, Array]], Any]


def open_child(args: list[str]) -> dict[str, Callable[..., Any]]:
    """The arguments are the share, its cores with commas between them, the contender, the bundle and the ONNX file."""
    share, cores, way, bundle, onnx = args
    confinement = CpuConfinement(Share.parse(share), [int(core) for core in cores.split(",")])
    confinement.enter()
    run = _runner(way, bundle, onnx, share, len(confinement.cores))

    def serve_lengths(lengths: list[int], arrivals_s: list[float | None]) -> dict[str, Any]:
        """Answer a request of each length at those times."""
        requests = cycle([_request(length) for length in lengths])
        found = serve([lambda: run(next(requests))], arrivals_s)
        confinement.verify()
        return found

    def outputs(length: int) -> list[list[float]]:
        """The first numbers of each output, to compare contenders."""
        return [np.ravel(np.asarray(each))[:200].tolist() for each in run(_request(length))]

    for length in (1, 40, 100, 200, 256):
        run(_request(length))
    return {"serve": serve_lengths, "outputs": outputs}


def _request(length: int) -> dict[str, Array]:
    rng = np.random.default_rng(length)
    ids = rng.integers(1, _WORDS, (1, length))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


def _runner(way: str, bundle: str, onnx: str, share: str, threads: int) -> _Run:
    if way in {OURS, COMPETED}:
        return fractune.load(bundle, share=share, runtimes=way == COMPETED).run
    if way == ONNX:
        return OnnxRuntimeSession(Path(onnx), threads, settings_of(ONNX, exact=False)).run
    return OpenVinoSession(Path(onnx), threads, settings_of(OPENVINO)).run  # exact, as the others compute
