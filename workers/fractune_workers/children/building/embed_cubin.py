"""The device code that TVM packs into a compiled library: source is replaced by machine code, and packs are merged.

Without a GPU, TVM leaves CUDA source in an artifact, and compiles it in the process that loads the artifact and
measures. So the packed bytes are rewritten here: the same module, in the format `cubin`. TVM writes all numbers as 8
bytes, little-endian, and a string as its length and its bytes:

    size of all that follows
    import tree      two lists of numbers: the beginning of each module's imports, and the imports
    modules          kind, and for all but `_lib` (the library that carries this) its content as a string

    content of kind `cuda`: format (`cuda` for source, `cubin`), kernels, code as a string
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from fractune_core.errors import FractuneError

_LIBRARY = b"_lib"
_CUDA = b"cuda"
_SOURCE = b"cuda"
_CUBIN = b"cubin"
_NUMBER = struct.Struct("<Q")
_KIND = struct.Struct("<i")
POINTER, INT32, INT64, TENSOR_MAP = "pointer", "int32", "int64", "tensor map"
_HANDLE = struct.pack("<BBH", 3, 64, 1)
"""of 64 bits and one lane, as all of them"""
_TYPES = {
    POINTER: _HANDLE,
    INT32: struct.pack("<BBH", 0, 32, 1),
    INT64: struct.pack("<BBH", 0, 64, 1),
    TENSOR_MAP: _HANDLE,
}
_LAUNCH = (b"blockIdx.x", b"threadIdx.x", b"tirx.use_dyn_shared_memory")


@dataclass
class _Module:
    kind: bytes
    content: bytes
    """empty for the library"""
    imports: list[int]


def embed_cubin(packed: bytes, source: str, compile_source: Callable[[str], bytes]) -> bytes:
    """`packed` with the cubin in the place of `source`, which TVM reports as the packed CUDA source.

    Raises FractuneError for bytes of another form than described above: then TVM has changed its format.
    """
    modules = _read(packed)
    for module in modules:
        if module.kind == _CUDA:
            module.content = _compiled(module.content, source.encode(), compile_source)
    return _written(modules)


@dataclass(frozen=True)
class PackedKernel:
    """A kernel of somebody else's compiler."""

    cubin: bytes
    arguments: Sequence[str]
    """of POINTER, INT32, INT64 and TENSOR_MAP"""


def pack_of(kernels: Mapping[str, PackedKernel]) -> bytes:
    """The pack of a library that imports a CUDA module for each kernel, by name. A kernel's launch takes its arguments,
    a number of blocks, one of threads, and bytes of shared memory.
    """
    modules = [
        _Module(_CUDA, _string(_CUBIN) + _described(name, each.arguments) + _string(each.cubin), [])
        for name, each in kernels.items()
    ]
    return _written([_Module(_LIBRARY, b"", list(range(1, len(modules) + 1))), *modules])


def _described(kernel: str, arguments: Sequence[str]) -> bytes:
    """One kernel: its name twice, its arguments' types, what its launch takes, and by argument 1 for a tensor map.

    The host gives a tensor map by its address, and the launch copies it.
    """
    names = _NUMBER.pack(1) + _string(kernel.encode()) * 2
    types = _NUMBER.pack(len(arguments)) + b"".join(_TYPES[each] for each in arguments)
    launch = _NUMBER.pack(len(_LAUNCH)) + b"".join(map(_string, _LAUNCH))
    kinds = b"".join(_KIND.pack(each == TENSOR_MAP) for each in arguments)
    return names + types + launch + _NUMBER.pack(len(arguments)) + kinds


def merged(packs: Sequence[bytes]) -> bytes:
    """The modules of all packs in one, for one library that has the host code of all. Its root is that of the first.

    Raises FractuneError for bytes of another form than described above.
    """
    first, *others = map(_read, packs)
    library = next(module for module in first if module.kind == _LIBRARY)
    for modules in others:
        at = len(first) - 1  # the library, the root of the other packs, is there already
        if modules[0].kind != _LIBRARY:
            raise _unknown("the first module is not the library")
        library.imports += [each + at for each in modules[0].imports]
        first += [_Module(each.kind, each.content, [at + to for to in each.imports]) for each in modules[1:]]
    return _written(first)


def _read(packed: bytes) -> list[_Module]:
    reader = _Reader(packed)
    size = reader.number()
    if size != len(packed) - _NUMBER.size:
        raise _unknown("its size is wrong")
    starts, imports = reader.numbers(), reader.numbers()
    modules = []
    for start, end in pairwise(starts):
        kind = reader.string()
        modules.append(_Module(kind, b"" if kind == _LIBRARY else reader.string(), imports[start:end]))
    if not reader.at_end:
        raise _unknown("something follows the last module")
    return modules


def _written(modules: Sequence[_Module]) -> bytes:
    starts = list(accumulate((len(each.imports) for each in modules), initial=0))
    out = _list(starts) + _list([to for each in modules for to in each.imports])
    for each in modules:
        out += _string(each.kind) + (b"" if each.kind == _LIBRARY else _string(each.content))
    return _NUMBER.pack(len(out)) + out


def _compiled(content: bytes, source: bytes, compile_source: Callable[[str], bytes]) -> bytes:
    """A module's content with machine code. The kernels between format and code stay as they are."""
    head, tail = _string(_SOURCE), _string(source)
    if not content.startswith(head) or not content.endswith(tail):
        raise _unknown("a CUDA module does not begin with its format and end with its source")
    kernels = content[len(head) : -len(tail)]
    return _string(_CUBIN) + kernels + _string(compile_source(source.decode()))


@dataclass
class _Reader:
    data: bytes
    at: int = 0

    @property
    def at_end(self) -> bool:
        return self.at == len(self.data)

    def take(self, count: int) -> bytes:
        taken = self.data[self.at : self.at + count]
        if len(taken) != count:
            raise _unknown("it ends too early")
        self.at += count
        return taken

    def number(self) -> int:
        value: int = _NUMBER.unpack(self.take(_NUMBER.size))[0]
        return value

    def numbers(self) -> list[int]:
        return [self.number() for _ in range(self.number())]

    def string(self) -> bytes:
        return self.take(self.number())


def _string(value: bytes) -> bytes:
    return _NUMBER.pack(len(value)) + value


def _list(values: list[int]) -> bytes:
    return b"".join(_NUMBER.pack(value) for value in (len(values), *values))


def _unknown(what: str) -> FractuneError:
    return FractuneError(f"this TVM packs device code in an unknown way: {what}; reinstall 'fractune[worker]'")
