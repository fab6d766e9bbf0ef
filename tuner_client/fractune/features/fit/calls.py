"""A model as calls of one inference, for the processes that time it and that serve it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fractune_core.errors import BadRequest
from fractune_core.model_inputs import constants_in, shapes_in

Call = Callable[[], Any]


def bundle_calls(path: str, threads: Sequence[int]) -> list[tuple[int, Call]]:
    """A call for each of `threads`, and the number of threads that it runs on: a tiny model takes one in any case."""
    from fractune.inference.loading import load

    models = [load(path, share=f"cpu:{count}") for count in threads]
    return [(model.threads, partial(model.run, model.random_inputs())) for model in models]


def onnx_calls(path: str, threads: Sequence[int], shapes: dict[str, list[int]]) -> tuple[str, list[Call]]:
    """The version of ONNX Runtime, and a call for each of `threads`, which do not spin.

    Raises BadRequest for an unknown input.
    """
    from fractune.inference.comparing.onnxruntime_model import OnnxRuntimeModel
    from fractune.inference.tvm_runtime.tensors import random_inputs

    models = [OnnxRuntimeModel(Path(path), count, spinning=False) for count in threads]
    first = models[0]
    for name in shapes:
        if name not in first.input_names:
            raise BadRequest(f"--input '{name}': no such input; the inputs are {', '.join(first.input_names)}")
    fixed = shapes_in(shapes)
    constants = first.constants(constants_in(shapes), fixed)
    feed = {**random_inputs(first.input_specs(fixed, constants)), **constants}
    return first.version, [partial(model.run, feed, model.output_names) for model in models]


def openvino_calls(
    path: str, threads: Sequence[int], shapes: dict[str, list[int]], streams: int = 1
) -> tuple[str, list[Call]]:
    """The version of OpenVINO, and calls for each of `threads`, as many as there are streams."""
    from fractune.inference.comparing.openvino_model import OpenVinoModel

    given = shapes_in(shapes), constants_in(shapes)
    models = [OpenVinoModel(Path(path), count, streams, *given) for count in threads]
    return models[0].version, [call for model in models for call in model.calls()]
