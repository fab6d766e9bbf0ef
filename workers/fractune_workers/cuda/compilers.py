"""CUDA source -> cubin, for an explicit architecture and without a GPU: by NVRTC, or by nvcc where that is missing.

NVRTC is preferred: one library and its headers, no host compiler, no other process. Both get TVM's own options, except
for diagnostics and fast math. Fast math is off by default, because it would break the comparison of outputs.
"""

import ctypes
import re
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol

from fractune_core.cuda import Toolkit, find_toolkits
from fractune_core.errors import FractuneError

# The two headers of NVIDIA's C++ library that all of TVM's code for NVRTC includes, as small as that code needs them.
#
# The real ones are most of what compiling a kernel takes (docs/decisions/28-gpu-kernels.md). Code that includes
# more of that library gets the real ones.

_INCLUDE = re.compile(r"^\s*#\s*include\s*<(cuda/[^>]+)>", re.MULTILINE)

_CSTDINT = """\
#pragma once
namespace cuda { namespace std {
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
} }
"""
_TYPE_TRAITS = """\
#pragma once
namespace cuda { namespace std {
struct true_type { static constexpr bool value = true; };
struct false_type { static constexpr bool value = false; };
template <class A, class B> struct is_same : false_type {};
template <class A> struct is_same<A, A> : true_type {};
template <class A, class B> inline constexpr bool is_same_v = is_same<A, B>::value;
template <class T> struct remove_cv { typedef T type; };
template <class T> struct remove_cv<const T> { typedef T type; };
template <class T> struct remove_cv<volatile T> { typedef T type; };
template <class T> struct remove_cv<const volatile T> { typedef T type; };
template <class T> struct signed_number : false_type {};
template <class T> struct unsigned_integer : false_type {};
template <class T> struct real_number : false_type {};
template <> struct signed_number<signed char> : true_type {};
template <> struct signed_number<char> : true_type {};
template <> struct signed_number<short> : true_type {};
template <> struct signed_number<int> : true_type {};
template <> struct signed_number<long> : true_type {};
template <> struct signed_number<long long> : true_type {};
template <> struct unsigned_integer<bool> : true_type {};
template <> struct unsigned_integer<unsigned char> : true_type {};
template <> struct unsigned_integer<unsigned short> : true_type {};
template <> struct unsigned_integer<unsigned int> : true_type {};
template <> struct unsigned_integer<unsigned long> : true_type {};
template <> struct unsigned_integer<unsigned long long> : true_type {};
template <> struct real_number<float> : true_type {};
template <> struct real_number<double> : true_type {};
template <class T> struct is_floating_point : real_number<typename remove_cv<T>::type> {};
template <class T> struct is_unsigned : unsigned_integer<typename remove_cv<T>::type> {};
template <class T> struct is_signed {
  typedef typename remove_cv<T>::type bare;
  static constexpr bool value = signed_number<bare>::value || real_number<bare>::value;
};
template <class T> struct is_integral {
  typedef typename remove_cv<T>::type bare;
  static constexpr bool value = signed_number<bare>::value || unsigned_integer<bare>::value;
};
template <bool, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };
template <bool, class T, class F> struct conditional { typedef T type; };
template <class T, class F> struct conditional<false, T, F> { typedef F type; };
} }
"""
_SMALL = {"cuda/std/cstdint": _CSTDINT, "cuda/std/type_traits": _TYPE_TRAITS}


def small_headers(source: str) -> Mapping[str, str]:
    """Headers by name to compile `source` with; none when it includes more of the library than they stand for."""
    return _SMALL if set(_INCLUDE.findall(source)) <= set(_SMALL) else {}


INSTALL = "pip install 'fractune[cuda]', or install a CUDA toolkit and name its folder by CUDA_HOME"

_LIST_TIMEOUT_S = 30.0
_LOG_CHARS = 300
_OPTIONS = (
    "-U__CUDA_NO_HALF_OPERATORS__",
    "-U__CUDA_NO_HALF_CONVERSIONS__",
    "-U__CUDA_NO_BFLOAT16_OPERATORS__",
    "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-U__CUDA_NO_BFLOAT162_OPERATORS__",
    "-U__CUDA_NO_BFLOAT162_CONVERSIONS__",
    "--ptxas-options=--register-usage-level=10",
)
_NVRTC_OPTIONS = ("-default-device", "--device-int128")
_NVCC_OPTIONS = ("--expt-relaxed-constexpr", "--expt-extended-lambda")
_FAST_MATH = "--use_fast_math"
_PREAMBLE = """\
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#line 1
"""
"""what TVM's code expects of <math.h>, which NVRTC does not read"""


class CompileFailed(FractuneError):
    """The compiler refused the source; the message quotes it."""


class CudaCompiler(Protocol):
    """One compiler of one toolkit."""

    @property
    def name(self) -> str:
        """With its version: `NVRTC 13.0`"""
        ...

    @property
    def archs(self) -> Sequence[int]:
        """The compute capabilities that it compiles for, ascending: 90 is `sm_90`"""
        ...

    def compile(self, source: str, arch: str, *, fast_math: bool) -> bytes:
        """The cubin of `source` for `arch` (`sm_90`). Raises CompileFailed."""
        ...


class Nvrtc:
    """NVIDIA's compiler as a library (`libnvrtc.so`) with the headers at `include`.

    Raises FractuneError when the library cannot be loaded.
    """

    def __init__(self, library: Path, include: Path) -> None:
        self._include = include
        try:
            self._nvrtc = ctypes.CDLL(str(library))
        except OSError as error:
            raise FractuneError(f"{library} cannot be loaded: {error}; {INSTALL}") from error
        self._nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p

    @cached_property
    def name(self) -> str:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return f"NVRTC {major.value}.{minor.value}"

    @cached_property
    def archs(self) -> Sequence[int]:
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", numbers)
        return sorted(numbers)

    def compile(self, source: str, arch: str, *, fast_math: bool) -> bytes:
        options = [f"--gpu-architecture={arch}", *_OPTIONS, *_NVRTC_OPTIONS]
        # CUDA 13 keeps <cuda/std/...> in a folder of its own.
        options += [f"-I{folder}" for folder in (self._include, self._include / "cccl")]
        options += [_FAST_MATH] if fast_math else []
        headers = small_headers(source)
        program, text = ctypes.c_void_p(), (_PREAMBLE + source).encode()
        in_memory = (len(headers), _strings(headers.values()), _strings(headers))
        self._call("nvrtcCreateProgram", ctypes.byref(program), text, b"kernel.cu", *in_memory)
        try:
            if self._nvrtc.nvrtcCompileProgram(program, len(options), _strings(options)) != 0:
                raise CompileFailed(_complaint(self.name, self._read("nvrtcGetProgramLog", program).decode()))
            return self._read("nvrtcGetCUBIN", program)
        finally:
            self._nvrtc.nvrtcDestroyProgram(ctypes.byref(program))

    def _read(self, what: str, program: ctypes.c_void_p) -> bytes:
        """The result of `nvrtcGet...` for the program; a text ends in a zero byte, a cubin in its own last byte."""
        size = ctypes.c_size_t()
        self._call(f"{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(what, program, buffer)
        return buffer.raw.rstrip(b"\0") if what.endswith("Log") else buffer.raw

    def _call(self, function: str, *args: object) -> None:
        code = getattr(self._nvrtc, function)(*args)
        if code != 0:
            raise CompileFailed(f"{function}: {self._nvrtc.nvrtcGetErrorString(code).decode()}")


class Nvcc:
    """NVIDIA's compiler as a program, which runs others: cicc, ptxas and a host compiler."""

    def __init__(self, program: Path) -> None:
        self._program = program

    @cached_property
    def name(self) -> str:
        version = re.search(r"release ([0-9.]+)", self._asked("--version"))
        return f"nvcc {version[1] if version else 'of unknown version'}"

    @cached_property
    def archs(self) -> Sequence[int]:
        return sorted({int(number) for number in re.findall(r"compute_([0-9]+)", self._asked("--list-gpu-arch"))})

    def compile(self, source: str, arch: str, *, fast_math: bool) -> bytes:
        with tempfile.TemporaryDirectory(prefix="fractune-nvcc-") as folder:
            path, out = Path(folder) / "kernel.cu", Path(folder) / "kernel.cubin"
            path.write_text(source)
            command = [str(self._program), "--cubin", "-O3", "-arch", arch, *_OPTIONS, *_NVCC_OPTIONS]
            command += [_FAST_MATH] if fast_math else []
            done = subprocess.run(
                [*command, "-o", str(out), str(path)], capture_output=True, text=True, errors="replace", check=False
            )
            if done.returncode != 0:
                raise CompileFailed(_complaint(self.name, (done.stderr + done.stdout).replace(f"{folder}/", "")))
            return out.read_bytes()

    def _asked(self, option: str) -> str:
        try:
            command = [str(self._program), option]
            return subprocess.run(command, capture_output=True, text=True, check=True, timeout=_LIST_TIMEOUT_S).stdout
        except (OSError, subprocess.SubprocessError) as error:
            raise FractuneError(f"{self._program} {option} failed: {error}; {INSTALL}") from error


def _strings(values: Collection[str]) -> ctypes.Array[ctypes.c_char_p]:
    """C's `const char *[]`."""
    return (ctypes.c_char_p * len(values))(*(value.encode() for value in values))


def compilers(found: Iterable[Toolkit]) -> Iterator[CudaCompiler]:
    """The compilers of the toolkits, the first choice first, each opened when it is asked for.

    Raises FractuneError for one that cannot be loaded.
    """
    kits = list(found)
    for kit in kits:
        if kit.nvrtc and kit.include:
            yield Nvrtc(kit.nvrtc, kit.include)
    for kit in kits:
        if kit.nvcc:
            yield Nvcc(kit.nvcc)


def find_compiler() -> CudaCompiler | None:
    """The compiler that builds use on this machine, None where there is none."""
    return next(compilers(find_toolkits()), None)


def _complaint(compiler: str, log: str) -> str:
    """The first error of a compiler's log in one line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    line = next(
        (each for each in lines if "error" in each or "fatal" in each), lines[0] if lines else "no reason given"
    )
    return f"{compiler}: {line[:_LOG_CHARS]}"
