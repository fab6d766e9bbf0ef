"""Device code in TVM's packed bytes: source is replaced by machine code, everything else stays."""

import struct

import pytest
from hypothesis import given, strategies as st

from fractune_core.errors import FractuneError
from fractune_workers.children.building.embed_cubin import (
    INT32,
    INT64,
    POINTER,
    TENSOR_MAP,
    PackedKernel,
    embed_cubin,
    merged,
    pack_of,
)

SOURCE = 'extern "C" __global__ void main_kernel() {}'
KERNELS = b"\x01\0\0\0\0\0\0\0 whatever TVM writes of the kernels"


def number(value: int) -> bytes:
    return struct.pack("<Q", value)


def string(value: bytes) -> bytes:
    return number(len(value)) + value


def packed(modules: list[tuple[bytes, bytes]]) -> bytes:
    """A library that imports the modules (kind and content), written as TVM writes it."""
    starts = [0, *[len(modules)] * (len(modules) + 1)]
    tree = [number(len(starts)), *map(number, starts), number(len(modules)), *map(number, range(1, len(modules) + 1))]
    body = b"".join([*tree, string(b"_lib"), *(string(kind) + string(content) for kind, content in modules)])
    return number(len(body)) + body


def cuda(form: bytes, code: bytes) -> bytes:
    return string(form) + KERNELS + string(code)


def compiled(source: str) -> bytes:
    return b"\x7fELF of " + source.encode()


OTHERS = st.tuples(st.sampled_from([b"const_loader", b"relax.VMExecutable"]), st.binary(max_size=40))


@given(st.lists(OTHERS, max_size=3))
def test_only_the_source_changes(others: list[tuple[bytes, bytes]]) -> None:
    before = [*others, (b"cuda", cuda(b"cuda", SOURCE.encode())), *others]
    after = [*others, (b"cuda", cuda(b"cubin", compiled(SOURCE))), *others]
    assert embed_cubin(packed(before), SOURCE, compiled) == packed(after)


@given(st.integers(min_value=0))
def test_torn_bytes_are_refused(cut: int) -> None:
    whole = packed([(b"cuda", cuda(b"cuda", SOURCE.encode()))])
    torn = whole[8 : len(whole) - 1 - cut % (len(whole) - 9)]
    with pytest.raises(FractuneError, match="packs device code in an unknown way"):
        embed_cubin(number(len(torn)) + torn, SOURCE, compiled)


@pytest.mark.parametrize(
    "content",
    [cuda(b"ptx", SOURCE.encode()), cuda(b"cuda", b"another source"), b""],
)
def test_a_module_of_another_form_is_refused(content: bytes) -> None:
    with pytest.raises(FractuneError, match="does not begin with its format and end with its source"):
        embed_cubin(packed([(b"cuda", content)]), SOURCE, compiled)


def test_more_than_is_announced_is_refused() -> None:
    whole = packed([(b"cuda", cuda(b"cuda", SOURCE.encode()))])
    with pytest.raises(FractuneError, match="its size is wrong"):
        embed_cubin(whole + b"\0", SOURCE, compiled)
    longer = whole[8:] + b"\0"
    with pytest.raises(FractuneError, match="something follows the last module"):
        embed_cubin(number(len(longer)) + longer, SOURCE, compiled)


def test_what_the_compiler_raises_comes_through() -> None:
    def refuse(_source: str) -> bytes:
        raise ValueError("no such type")

    with pytest.raises(ValueError, match="no such type"):
        embed_cubin(packed([(b"cuda", cuda(b"cuda", SOURCE.encode()))]), SOURCE, refuse)


def bytecode() -> bytes:
    """A model's bytecode, which imports a library, written as TVM writes it."""
    tree = [number(3), *map(number, (0, 1, 1)), number(1), number(1)]
    body = b"".join([*tree, string(b"relax.VMExecutable"), string(b"bytecode"), string(b"_lib")])
    return number(len(body)) + body


@given(st.lists(st.lists(OTHERS, min_size=1, max_size=3), max_size=3))
def test_one_library_imports_what_all_of_them_import(packs: list[list[tuple[bytes, bytes]]]) -> None:
    modules = [module for pack in packs for module in pack]
    starts = [0, 1, *[len(modules) + 1] * (len(modules) + 1)]
    imports = range(1, len(modules) + 2)
    tree = [number(len(starts)), *map(number, starts), number(len(imports)), *map(number, imports)]
    contents = [string(b"relax.VMExecutable") + string(b"bytecode") + string(b"_lib")]
    body = b"".join([*tree, *contents, *(string(kind) + string(content) for kind, content in modules)])
    assert merged([bytecode(), *map(packed, packs)]) == number(len(body)) + body


def test_only_libraries_are_merged() -> None:
    with pytest.raises(FractuneError, match="the first module is not the library"):
        merged([bytecode(), bytecode()])


def test_kernels_of_other_compilers_make_a_pack_that_merges_with_tvm_s() -> None:
    kernels = {
        "one": PackedKernel(b"first code", [POINTER] * 3),
        "two": PackedKernel(b"second code", [POINTER, TENSOR_MAP, INT32, INT64]),
    }
    made = pack_of(kernels)
    whole = merged([packed([(b"cuda", cuda(b"cubin", b"code"))]), made])
    assert whole.index(string(b"code")) < whole.index(string(b"first code")) < whole.index(string(b"second code"))
    assert whole.count(string(b"cuda")) == 3
    assert made.count(string(b"one")) == 2
    handle, whole_numbers = b"\x03\x40\x01\x00", b"\x00\x20\x01\x00" + b"\x00\x40\x01\x00"
    assert number(3) + handle * 3 in made
    assert number(4) + handle * 2 + whole_numbers in made
    assert number(3) + bytes(4 * 3) + string(b"first code") in made
    assert number(4) + b"\0\0\0\0\1\0\0\0" + bytes(4 * 2) + string(b"second code") in made
