"""The inputs of an ONNX file, and which of their axes are open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fractune_core.errors import BadModel, FractuneError

OpenShape = list[int | str | None]
"""by axis: a size, the name of an open axis, or None for an open axis without a name"""


def onnx_inputs(path: Path) -> dict[str, OpenShape]:
    """The inputs by name. Raises BadModel for a file that is not ONNX, FractuneError without the package `onnx`."""
    return {each.name: _shape(each) for each in _inputs(path)}


def onnx_dtypes(path: Path) -> dict[str, str]:
    """The types of the inputs by name, as NumPy's. Raises as `onnx_inputs`."""
    held = _inputs(path)
    import onnx

    types = {each.name: each.type.tensor_type.elem_type for each in held}
    return {name: str(onnx.helper.tensor_dtype_to_np_dtype(kind)) for name, kind in types.items() if kind}


def _inputs(path: Path) -> list[Any]:
    try:
        import onnx
    except ImportError as error:
        raise FractuneError(
            "--lengths reads the model's inputs by the package onnx, which is not installed; install it, or give "
            "each shape by --input"
        ) from error
    try:
        graph = onnx.load(path, load_external_data=False).graph
    except Exception as error:  # protobuf's and onnx's have no common base
        raise BadModel(
            f"{path.name}: --lengths needs an ONNX file, and this is none; give each shape by --input"
        ) from error
    weights = {weight.name for weight in graph.initializer}
    return [each for each in graph.input if each.name not in weights]


def _shape(value: Any) -> OpenShape:
    dims = value.type.tensor_type.shape.dim
    return [dim.dim_value or dim.dim_param or None for dim in dims]
