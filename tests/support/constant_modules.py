"""IRModules as JSON with one constant, whose payload may be another than its header says."""

import base64
import json
import struct
from typing import Any

import numpy as np
import tvm
from tvm import relax

SHAPE = (4, 8)
NUMBERS = np.arange(32, dtype="float32").reshape(SHAPE)
FLOAT32 = (2, 32, 1)
CPU = (1, 0)


def tensor(
    shape: tuple[int, ...] = SHAPE,
    data: bytes = NUMBERS.tobytes(),
    *,
    dtype: tuple[int, int, int] = FLOAT32,
    stated: int | None = None,
    rank: int | None = None,
    device: tuple[int, int] = CPU,
    magic: int = 0xDD5E40F096B4A13F,
) -> str:
    """A tensor as TVM writes it, in base64; `stated`: the bytes that the header says."""
    header = struct.pack("<QQiiiBBH", magic, 0, *device, len(shape) if rank is None else rank, *dtype)
    sizes = struct.pack(f"<{len(shape) + 1}q", *shape, len(data) if stated is None else stated)
    return base64.b64encode(header + sizes + data).decode()


def module(payload: Any) -> dict[str, Any]:
    """An IRModule that adds a constant, of another payload than it was made with."""
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(SHAPE, "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.add(x, relax.const(NUMBERS))))
    graph: dict[str, Any] = json.loads(tvm.ir.save_json(builder.get()))
    (node,) = (node for node in graph["nodes"] if node["type"] == "ffi.Tensor")
    node["data"] = payload
    return graph
