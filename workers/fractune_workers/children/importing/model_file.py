"""A model file of any known format -> one Relax module whose entry is `main` and whose shapes are all fixed.

What a file is, its contents decide: files come by upload, under names that say nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import tvm
from tvm import relax

from fractune_core.errors import BadModel

MAX_MODEL_BYTES = 2**31
"""Protobuf parses no more; the other formats have no reason to be larger"""

_ZIP = b"PK\x03\x04"
_LFS_POINTER = "version https://git-lfs"
_FORMATS = "ONNX, a TVM IRModule as JSON or TVMScript text, or a torch.export program (.pt2)"

Shapes = Mapping[str, Sequence[int]]
"""Input name -> dimensions, as the user fixed them"""


def load_model(path: Path, inputs: Shapes | None = None) -> tvm.IRModule:
    """Read the model file at `path` and fix its input shapes to `inputs` where the file leaves them open.

    Raises BadModel, naming the file, for anything that cannot become a Relax module with fixed shapes.
    """
    shapes = dict(inputs or {})
    try:
        mod = _load(_read(path), shapes)
        _check_fixed(mod)
    except BadModel as error:
        raise BadModel(f"{path.name}: {error}") from error
    return mod


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_MODEL_BYTES:
            raise BadModel(f"larger than {MAX_MODEL_BYTES // 2**30} GiB; split the model")
        data = path.read_bytes()
    except OSError as error:
        raise BadModel(f"cannot be read: {error.strerror}; check the path") from error
    if not data:
        raise BadModel("the file is empty; copy or export it again")
    return data


def _load(data: bytes, shapes: Shapes) -> tvm.IRModule:
    if data.startswith(_ZIP):
        from fractune_workers.children.importing.torch_program import load_torch

        return load_torch(data, shapes)
    text = _as_text(data)
    if text is None:
        from fractune_workers.children.importing.onnx_model import load_onnx

        return load_onnx(data, shapes)
    return _load_text(text, shapes)


def _load_text(text: str, shapes: Shapes) -> tvm.IRModule:
    if text.startswith(_LFS_POINTER):
        raise BadModel("is only a Git LFS pointer; fetch the file itself with `git lfs pull`")
    from fractune_workers.children.importing.ir_module import load_json, load_script

    if text.lstrip().startswith("{"):
        mod = load_json(text)
    elif "ir_module" in text:
        mod = load_script(text)
    else:
        raise BadModel(f"is a text file, and no TVMScript module; expected {_FORMATS}")
    if shapes:
        raise BadModel(f"input {_quoted(shapes)}: an IRModule has its shapes already; leave out --input")
    return mod


def _as_text(data: bytes) -> str | None:
    """The file as text; None for a binary one: not UTF-8, or with control characters, as in ONNX."""
    if any(byte < 32 and byte not in b"\t\n\r\f" for byte in data[:4096]):
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _check_fixed(mod: tvm.IRModule) -> None:
    """Every parameter of `main` is a tensor of fixed shape, else neither search nor measurement can begin."""
    if "main" not in [var.name_hint for var in mod.functions] or not isinstance(mod["main"], relax.Function):
        raise BadModel("the module has no Relax function named 'main'; name the entry function 'main'")
    for param in mod["main"].params:
        shape = getattr(param.ty, "shape", None)
        if not isinstance(shape, relax.ShapeExpr):
            raise BadModel(f"input '{param.name}' has no known shape: {param.ty}; give it one")
        if not all(isinstance(dim, tvm.tirx.IntImm) for dim in shape):
            raise BadModel(f"input '{param.name}' has open dimensions: {param.ty}; fix its shape")


def _quoted(shapes: Shapes) -> str:
    return json.dumps(min(shapes))
