"""A model file of any known format -> one Relax module with the entry `main` and fixed shapes.

The contents decide the format: files come by upload, and their names say nothing.
"""

import contextlib
import gc
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import tvm
from tvm import relax

from fractune_core.errors import BadModel
from fractune_core.files.archives import BadArchive
from fractune_core.files.fused import read_fused
from fractune_core.files.onnx_file import MOST_MODEL_BYTES, MOST_PARSED_BYTES, walk
from fractune_core.files.scripts import REFUSAL, is_script
from fractune_core.model_inputs import constants_in
from fractune_workers.children.importing.limits import Limits
from fractune_workers.children.importing.relax_sizes import check_sizes, refuse_malformed
from fractune_workers.children.rewriting.expressions import without_origins
from fractune_workers.children.tvm_api.scratch_tensors import LEAST_BYTES, WeightInFile, Weights, begin

APART_FROM_BYTES = 2**30
"""of an ONNX file, whose weights protobuf does not read then"""
_OUTLINED_FROM_BYTES = 2**24
"""of an ONNX file that is not read as a whole: protobuf has a copy of each weight already"""

_ZIP = b"PK\x03\x04"
_LFS_POINTER = "version https://git-lfs"
_FORMATS = "ONNX, a TVM IRModule as JSON, or a torch.export program (.pt2)"

Shapes = Mapping[str, Sequence[int]]
"""Input name -> dimensions, as the user fixed them; constants among them are `NAME=const:NUMBERS`"""


@dataclass(frozen=True)
class Variants:
    """The contents of a model file: one model, or several variants of one."""

    names: tuple[str, ...]
    modules: tuple[tvm.IRModule, ...]
    files: tuple[bytes, ...]
    slots: tuple[str | None, ...] = ()
    """of a fused model: the variant's name by slot, None for an empty one"""

    @property
    def places(self) -> list[int]:
        """By slot, the number of the variant that it computes: an empty one the first."""
        return [0 if name is None else self.names.index(name) for name in self.slots]


@dataclass(frozen=True)
class Contents:
    """A model file in memory; of an ONNX file that is not small without its large weights."""

    data: bytes
    size: int
    """bytes of the file"""
    weights: Weights = field(default_factory=dict)
    """by name, those that are not in `data`"""


def load_variants(path: Path, inputs: Shapes | None = None, *, recurrences: bool = True) -> Variants:
    """As `load_model`; for a fused model all its variants, with the same input shapes."""
    shapes = dict(inputs or {})
    with named(path.name):
        held = _read(path)
        fused = read_fused(held.data) if held.data.startswith(_ZIP) else None
        if fused is None:
            only = load_fixed(held.data, shapes, Limits(held.size), recurrences=recurrences, apart=held.weights)
            if held.size >= _OUTLINED_FROM_BYTES:
                gc.collect()  # the importer leaves cycles that hold all weights
            return Variants((path.name,), (only,), (held.data,))
        limits = Limits(held.size, len(fused.names))
        modules = []
        for name, payload in zip(fused.names, fused.payloads, strict=True):
            with named(f"variant '{name}'"):
                modules.append(load_fixed(payload, shapes, limits, recurrences=recurrences))
    return Variants(fused.names, tuple(modules), fused.payloads, tuple(fused.slot_names))


def load_model(path: Path, inputs: Shapes | None = None, *, recurrences: bool = True) -> tvm.IRModule:
    """Read the model file at `path` and fix its input shapes to `inputs` where the file leaves them open.

    `recurrences`: whether unrolled ones are rolled up; a GPU has no kernel for them. Raises BadModel, naming the file,
    for anything that cannot become a Relax module with fixed shapes.
    """
    with named(path.name):
        held = _read(path)
        limits = Limits(held.size)
        return load_fixed(held.data, dict(inputs or {}), limits, recurrences=recurrences, apart=held.weights)


@contextlib.contextmanager
def named(name: str) -> Iterator[None]:
    """Within the block, errors begin with `name`."""
    try:
        yield
    except BadModel as error:
        raise BadModel(f"{name}: {error}") from error
    except BadArchive as error:
        raise BadModel(f"{name}: is an archive that cannot be read: {error}; copy or export it again") from error


def load_fixed(
    data: bytes, shapes: Shapes, limits: Limits, *, recurrences: bool = True, apart: Weights = MappingProxyType({})
) -> tvm.IRModule:
    """The model in `data`, with shapes for what it leaves open. Weights `apart` are not in the data."""
    mod = _load(data, shapes, limits, recurrences=recurrences, apart=apart)
    _check_fixed(mod)
    check_sizes(mod, limits)
    refuse_malformed(mod, imported=_as_text(data) is None)
    return mod


def _read(path: Path) -> Contents:
    """The file. Raises BadModel."""
    try:
        size = path.stat().st_size
        scratch = begin(large=size >= APART_FROM_BYTES)
        if (scratch or size >= _OUTLINED_FROM_BYTES) and size <= MOST_MODEL_BYTES:
            # What cannot be walked over is read as a whole, if it can be, and refused by other words.
            with contextlib.suppress(*(() if scratch else (BadModel,))), walk(path) as found:
                if found is not None:
                    data, places = found.apart(LEAST_BYTES)
                    weights = {name: WeightInFile(path, *place, scratch) for name, place in places.items()}
                    return Contents(data, size, weights)
        if size > MOST_PARSED_BYTES:
            raise BadModel("larger than 2 GiB, which only an ONNX file may be; split the model")
        data = path.read_bytes()
    except OSError as error:
        raise BadModel(f"cannot be read: {error.strerror}; check the path") from error
    if not data:
        raise BadModel("the file is empty; copy or export it again")
    return Contents(data, size)


def is_onnx(data: bytes) -> bool:
    """Whether the file is read as an ONNX model."""
    return not data.startswith(_ZIP) and _as_text(data) is None


def _load(data: bytes, shapes: Shapes, limits: Limits, *, recurrences: bool, apart: Weights) -> tvm.IRModule:
    if is_script(data):
        raise BadModel(REFUSAL)
    if data.startswith(_ZIP):
        if read_fused(data) is not None:
            raise BadModel("is a fused model; name one of its variants' own files")
        if constants := constants_in(shapes):
            raise BadModel(f"input {_quoted(constants)}: only an input of an ONNX model can be made a constant")
        from fractune_workers.children.importing.torch_program import load_torch

        return load_torch(data, shapes)
    text = _as_text(data)
    if text is None:
        from fractune_workers.children.importing.onnx_models.onnx_model import load_onnx

        return load_onnx(data, shapes, limits, recurrences=recurrences, apart=apart)
    return _load_text(text, shapes)


def _load_text(text: str, shapes: Shapes) -> tvm.IRModule:
    if text.startswith(_LFS_POINTER):
        raise BadModel("is only a Git LFS pointer; fetch the file itself with `git lfs pull`")
    if not text.lstrip().startswith("{"):
        raise BadModel(f"is a text file, and not an IRModule; expected {_FORMATS}")
    from fractune_workers.children.importing.ir_module import load_json

    mod = without_origins(load_json(text))
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


def _quoted(shapes: Iterable[str]) -> str:
    return json.dumps(min(shapes))
