"""A model file of any known format -> one Relax module with the entry `main` and fixed shapes.

The contents decide the format: files come by upload, and their names say nothing. The size of the module, and by its
types the memory of one inference, are counted before a pass folds its constants or lowers it.
"""

import contextlib
import gc
import json
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from fractune_core.errors import BadModel, first_line
from fractune_core.files.archives import BadArchive
from fractune_core.files.fused import read_fused
from fractune_core.files.model_files import MOST_MODEL_BYTES, MOST_PARSED_BYTES, SCRIPT_REFUSED, is_script, walk
from fractune_core.model_inputs import constants_in
from fractune_workers.children.importing.limits import MOST_NODES, ComputedConstants, Limits, check_tensor
from fractune_workers.children.rewriting.expressions import element_bytes, operands_of, without_origins
from fractune_workers.children.tvm_api.scratch_tensors import LEAST_BYTES, WeightInFile, Weights, begin

_ANALYZER = tvm.sym.Analyzer()
_MOST_FIELDS = 4 * MOST_NODES
"""Tensors in the types of all values: a tuple may hold a tuple twice, which holds another twice"""
_OPEN_SIZE = "has a tensor whose size is known only when the model runs; export it with fixed shapes"


def check_sizes(mod: tvm.IRModule, limits: Limits) -> None:
    """Raises BadModel for too many operators, for a too large tensor, for too large constants, and for an inference
    that needs too much memory.
    """
    walk = _Walk(limits)
    for name, function in mod.functions.items():
        if isinstance(function, relax.Function):
            walk.function(function, f"function '{name.name_hint}'")
        elif isinstance(function, tvm.tirx.PrimFunc):
            _check_buffers(function, f"function '{name.name_hint}'", limits)


def refuse_malformed(mod: tvm.IRModule, *, imported: bool) -> None:
    """Raises BadModel for nested calls and for values without a type: their results are not counted. `imported`:
    whether an importer made the module. Then the reason is a size that depends on numbers.

    TVM looks at each type as a tree: count the parts of types before.
    """
    try:
        relax.analysis.well_formed(mod)
    except Exception as error:
        why = f"is not a well-formed IRModule: {first_line(error)}; write it with tvm.ir.save_json"
        raise BadModel(_OPEN_SIZE if imported else why) from error


def _check_buffers(function: Any, name: str, limits: Limits) -> None:
    """Check a function of loops. Its type does not show the buffers that it takes and allocates."""
    buffers: dict[Any, None] = {}

    def note(var: Any) -> None:
        if isinstance(var.ty, tvm.tirx.BufferType):
            buffers[var] = None

    tvm_ffi.structural_walk(function, (tvm.ir.Var, note))
    sizes = [_buffer_bytes(var.ty, f"buffer '{var.name}' of {name}") for var in buffers]
    limits.check_inference(sum(sizes), f"{name} has buffers of")


def _buffer_bytes(buffer: Any, what: str) -> int:
    width = element_bytes(buffer.dtype)
    size = check_tensor(_fixed(buffer.shape), width, what)
    outermost = [*buffer.shape[:1], *buffer.strides[:1]] if buffer.strides else []
    return max(size, check_tensor(_fixed(outermost), width, f"{what}, as its strides place it,"))


class _Walk:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._computed = ComputedConstants(limits)
        self._nodes = 0
        self._fields = 0
        self._constant: dict[Any, int] = {}
        """bytes of the variables that follow from constants alone, until they are counted as kept"""
        self._kept = 0
        """bytes of weights, and of computed constants that other values are computed from"""
        self._weights: set[Any] = set()
        self._needed = 0
        """bytes of an inference in the functions so far: one may call another"""

    def function(self, function: Any, name: str) -> None:
        self._name = name
        self._memory = InferenceMemory()
        for param in function.params:
            self._memory.keep(self._bytes(param.ty, f"input '{param.name}'"))
        peak, at = self._memory.peak(self._sequence(function.body))
        self._needed += peak
        what = f"up to {at} in {name}, an inference holds inputs, weights and results of"
        self._limits.check_inference(self._needed, what)

    def _sequence(self, body: Any) -> list[Any]:
        """Count the values that are computed there; return the variables of the result."""
        if not isinstance(body, relax.SeqExpr):
            self._is_constant(body)
            return list(_variables(body))
        for block in body.blocks:
            for binding in block.bindings:
                self._binding(binding.var, binding.value)
        self._is_constant(body.body)
        results = list(_variables(body.body))
        self._keep_constants(results)
        return results

    def _keep_constants(self, read: Iterable[Any]) -> None:
        """Count the constants that are in the bundle, because values that are no constants are computed from them."""
        for var in read:
            if size := self._constant.get(var, 0):
                self._constant[var] = 0
                self._keep(size, f"'{var.name}'")

    def _keep(self, size: int, what: str) -> None:
        self._kept += size
        self._limits.check_kept(self._kept, f"up to {self._name}, {what}")

    def _binding(self, var: Any, value: Any) -> None:
        if isinstance(value, relax.Function):
            self._count()
            self._sequence(value.body)
            return
        what = f"'{var.name}' ({_operator(value)})"
        size = self._bytes(var.ty, what)
        is_constant = self._is_constant(value)  # counts the operators in it, before TVM looks at it as a tree
        read = list(_variables(value))
        if isinstance(value, relax.If):
            read += self._sequence(value.true_branch) + self._sequence(value.false_branch)
        self._memory.compute(var, read, size if isinstance(value, tvm.ir.Call) else 0, what)
        if not is_constant:
            self._keep_constants(read)
        else:
            self._constant[var] = size
            if isinstance(value, tvm.ir.Call):
                self._computed.take(size, what)

    def _is_constant(self, expr: Any) -> bool:
        """Whether a value follows from constants alone; counts the operators in it."""
        if isinstance(expr, relax.Var):
            return expr in self._constant
        if isinstance(expr, relax.If):
            return False
        if isinstance(expr, tvm.ir.Constant) and expr not in self._weights:
            self._weights.add(expr)
            size = self._bytes(expr.ty, "a weight")
            self._memory.keep(size)
            self._keep(size, "a weight")
        if isinstance(expr, relax.Tuple | relax.TupleGetItem | tvm.ir.Call):
            self._count()
        constant = [self._is_constant(operand) for operand in operands_of(expr)]
        return all(constant)

    def _count(self) -> None:
        self._nodes += 1
        self._limits.check_nodes(self._nodes, f"the module, up to {self._name},")

    def _bytes(self, ty: Any, what: str) -> int:
        return sum(check_tensor(*_shape_and_element_bytes(tensor), what) for tensor in self._tensors(ty))

    def _tensors(self, ty: Any) -> Iterator[Any]:
        self._fields += 1
        if self._fields > _MOST_FIELDS:
            raise BadModel(f"its values have more than {_MOST_FIELDS:,} tensors in all; tune a part of the model")
        if isinstance(ty, relax.TupleType):
            for field in ty.fields:
                yield from self._tensors(field)
        elif isinstance(ty, relax.TensorType):
            yield ty


@dataclass(frozen=True)
class _SizedValue:
    var: Hashable
    read: Sequence[Hashable]
    size: int
    """bytes; 0 for one that only names the memory of those that it reads"""
    what: str


class InferenceMemory:
    """The values of one function, in the order of computation. Each is kept until it is last read."""

    def __init__(self) -> None:
        self._kept = 0
        self._values: list[_SizedValue] = []

    def keep(self, size: int) -> None:
        """Count an input or a weight, which is there all the time."""
        self._kept += size

    def compute(self, var: Hashable, read: Sequence[Hashable], size: int, what: str) -> None:
        """Count a value that is computed from others; `size` 0 = it refers to the others, like a tuple of them."""
        self._values.append(_SizedValue(var, read, size, what))

    def peak(self, results: Sequence[Hashable]) -> tuple[int, str]:
        """The most bytes that exist at once, and the value that is computed then. `results` are never dropped."""
        ends = self._ends(results)
        dropped = [0] * (len(self._values) + 1)
        held, peak, at = self._kept, self._kept, "its inputs and weights"
        for place, value in enumerate(self._values):
            held += value.size
            if held > peak:
                peak, at = held, value.what
            dropped[ends.get(value.var, place)] += value.size
            held -= dropped[place]
        return peak, at

    def _ends(self, results: Sequence[Hashable]) -> dict[Hashable, int]:
        """By value, at which place it is last read; a result behind all places."""
        ends: dict[Hashable, int] = dict.fromkeys(results, len(self._values))
        for place, value in reversed(list(enumerate(self._values))):
            until = place if value.size else ends.get(value.var, place)
            for var in value.read:
                ends[var] = max(until, ends.get(var, until))
        return ends


def _variables(expr: Any) -> Iterator[Any]:
    """The variables that a value is computed from."""
    if isinstance(expr, relax.Var):
        yield expr
    for operand in operands_of(expr):
        yield from _variables(operand)


def _operator(value: Any) -> str:
    return str(getattr(getattr(value, "op", None), "name", type(value).__name__))


def _shape_and_element_bytes(tensor: Any) -> tuple[list[int], int]:
    """Dimensions (none where one is not fixed), and bytes of an element."""
    dims = tensor.shape if isinstance(tensor.shape, relax.ShapeExpr) else []
    return _fixed(dims), element_bytes(tensor.dtype)


def _fixed(dims: Iterable[Any]) -> list[int]:
    """Dimensions; none where one is not fixed. A dimension may be a product of numbers."""
    simplified = [_ANALYZER.simplify(dim) for dim in dims]
    fixed = [int(dim) for dim in simplified if isinstance(dim, tvm.tirx.IntImm)]
    return fixed if len(fixed) == len(simplified) else []


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
        raise BadModel(SCRIPT_REFUSED)
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
