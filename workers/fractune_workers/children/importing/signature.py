"""What a model takes and gives: names, types and shapes, as a bundle's manifest tells them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

Names = tuple[list[str], list[str]]
"""of the inputs and of the outputs"""


def onnx_names(data: bytes) -> Names:
    """The names in the bytes of an ONNX file, which TVM makes identifiers of (`input.1` becomes another); empty for
    other files.
    """
    import onnx
    from google.protobuf.message import DecodeError

    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        return [], []
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value.name for value in model.graph.input if value.name not in weights]
    return inputs, [value.name for value in model.graph.output]


def describe_main(mod: tvm.IRModule, weights: int, names: Names) -> dict[str, list[dict[str, Any]]]:
    """`inputs` and `outputs` of the module's `main`, whose last `weights` parameters are no inputs.

    The names are those of the file where there are as many, else TVM's for inputs and `output0` and so on for outputs.
    """
    main = mod["main"]
    params = list(main.params)[: len(main.params) - weights]
    outputs = list(_tensors(main.ret_ty))
    input_names = _fitting(names[0], [str(param.name) for param in params])
    output_names = _fitting(names[1], [f"output{index}" for index in range(len(outputs))])
    return {
        "inputs": [_describe(name, param.ty) for name, param in zip(input_names, params, strict=True)],
        "outputs": [_describe(name, output) for name, output in zip(output_names, outputs, strict=True)],
    }


def _fitting(names: Sequence[str], others: Sequence[str]) -> Sequence[str]:
    return names if len(names) == len(others) == len(set(names)) else others


def _tensors(kind: Any) -> list[Any]:
    """The types of the tensors in a (nested) tuple of them, in order."""
    if isinstance(kind, relax.TupleType):
        return [tensor for field in kind.fields for tensor in _tensors(field)]
    return [kind]


def _describe(name: str, kind: Any) -> dict[str, Any]:
    """A dimension that depends on the data is null."""
    dims = [None] * int(kind.ndim) if kind.shape is None else list(kind.shape)
    fixed = [int(dim) if isinstance(dim, int | tvm.tirx.IntImm) else None for dim in dims]
    return {"name": name, "dtype": str(kind.dtype), "shape": fixed}
