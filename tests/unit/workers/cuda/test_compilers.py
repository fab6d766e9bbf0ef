"""CUDA source to cubins, for real where this machine has a compiler; no GPU is needed for that."""

from pathlib import Path

import pytest

from fractune_core.cuda import Toolkit, find_toolkits
from fractune_core.errors import FractuneError
from fractune_workers.cuda.compilers import CompileFailed, CudaCompiler, Nvcc, Nvrtc, compilers, small_headers
from tests.support.hardware.cubins import cubin_arch

HEADERS = """
#ifdef __CUDACC_RTC__
#include <cuda/std/cstdint>
#include <cuda/std/type_traits>
using cuda::std::uint64_t;
namespace std { using namespace cuda::std; }
#else
#include <cstdint>
#include <type_traits>
#endif
"""
KERNEL = (
    f"{HEADERS}#include <cuda_fp16.h>"
    """
extern "C" __global__ void main_kernel(float* x, half* h) {
  x[threadIdx.x] = expf(x[threadIdx.x]) / x[0] + __half2float(h[0] * h[1]) + INFINITY;
}
"""
)


def found() -> list[CudaCompiler]:
    return [*compilers(find_toolkits())]


@pytest.fixture(scope="module", params=["nvrtc", "nvcc"])
def compiler(request: pytest.FixtureRequest) -> CudaCompiler:
    kind = Nvrtc if request.param == "nvrtc" else Nvcc
    here = [each for each in found() if isinstance(each, kind)]
    if not here:
        pytest.skip(f"no {request.param} on this machine; pip install 'fractune[cuda]' has NVRTC")
    return here[0]


@pytest.fixture(scope="module")
def exact(compiler: CudaCompiler) -> bytes:
    """The kernel for sm_90, without fast math."""
    return compiler.compile(KERNEL, "sm_90", fast_math=False)


def test_a_cubin_is_for_the_architecture_asked_for(exact: bytes) -> None:
    assert cubin_arch(exact) == "sm_90"


@pytest.mark.parametrize("arch", ["sm_80", "sm_100f"])
def test_each_architecture_has_its_own(compiler: CudaCompiler, arch: str) -> None:
    kernel = 'extern "C" __global__ void main_kernel(float* x) { x[threadIdx.x] = 1; }'
    assert cubin_arch(compiler.compile(kernel, arch, fast_math=False)) == arch.rstrip("af")


def test_fast_math_is_other_code_and_only_when_asked_for(compiler: CudaCompiler, exact: bytes) -> None:
    assert compiler.compile(KERNEL, "sm_90", fast_math=False) == exact
    assert compiler.compile(KERNEL, "sm_90", fast_math=True) != exact


def test_what_is_wrong_with_the_source_is_said_in_one_line(compiler: CudaCompiler) -> None:
    with pytest.raises(CompileFailed) as caught:
        compiler.compile('extern "C" __global__ void main_kernel() {\n  nonsense = 1;\n}\n', "sm_90", fast_math=False)
    told = str(caught.value)
    assert told.startswith(compiler.name)
    assert 'identifier "nonsense" is undefined' in told
    assert "(2)" in told
    assert "\n" not in told


def test_the_assembler_refuses_more_shared_memory_than_there_is(compiler: CudaCompiler) -> None:
    body = "__shared__ int s[20000]; s[x[0]] = 1; __syncthreads(); x[1] = s[x[2]];"
    source = f'extern "C" __global__ void k(int* x) {{ {body} }}'
    with pytest.raises(CompileFailed, match="too much shared data"):
        compiler.compile(source, "sm_90", fast_math=False)


def test_the_small_headers_say_what_the_real_ones_say(compiler: CudaCompiler) -> None:
    """nvcc reads the C++ library of the host, NVRTC ours: the same must hold in both."""
    claims = [
        "sizeof(uint64_t) == 8 && uint64_t(-1) > 0",
        "std::is_same_v<int, int> && !std::is_same_v<int, const int> && std::is_same<long, long>::value",
        "std::is_integral<const unsigned char>::value && std::is_integral<bool>::value",
        "!std::is_integral<float>::value && !std::is_integral<half>::value && !std::is_integral<int*>::value",
        "std::is_floating_point<const volatile double>::value && !std::is_floating_point<half>::value",
        "std::is_signed<short>::value && std::is_signed<float>::value && !std::is_signed<unsigned>::value",
        "std::is_unsigned<bool>::value && !std::is_unsigned<double>::value && !std::is_unsigned<half>::value",
        "std::is_same_v<std::conditional<(sizeof(int) > 2), int, half>::type, int>",
        "std::is_same_v<std::conditional<(sizeof(int) > 8), int, half>::type, half>",
        "std::is_same_v<std::enable_if<true, half>::type, half>",
    ]
    asserted = "".join(f'static_assert({claim}, "{claim}");' for claim in claims)
    kernel = f'{HEADERS}#include <cuda_fp16.h>\n{asserted}\nextern "C" __global__ void main_kernel() {{}}'
    assert cubin_arch(compiler.compile(kernel, "sm_90", fast_math=False)) == "sm_90"


def test_code_that_wants_more_of_the_library_gets_the_real_headers() -> None:
    assert set(small_headers(HEADERS)) == {"cuda/std/cstdint", "cuda/std/type_traits"}
    assert small_headers(HEADERS + "#include <cuda/barrier>\n") == {}


def test_tensor_cores_and_half_precision_compile(compiler: CudaCompiler) -> None:
    kernel = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <mma.h>
extern "C" __global__ void main_kernel(half* a, half* b, float* c) {
  nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 16, half, nvcuda::wmma::row_major> left;
  nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, 16, 16, 16, half, nvcuda::wmma::col_major> right;
  nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> sum;
  nvcuda::wmma::fill_fragment(sum, 0.0f);
  nvcuda::wmma::load_matrix_sync(left, a, 16);
  nvcuda::wmma::load_matrix_sync(right, b, 16);
  nvcuda::wmma::mma_sync(sum, left, right, sum);
  nvcuda::wmma::store_matrix_sync(c, sum, 16, nvcuda::wmma::mem_row_major);
}
"""
    assert cubin_arch(compiler.compile(HEADERS + kernel, "sm_90", fast_math=False)) == "sm_90"


def test_it_knows_its_version_and_its_architectures(compiler: CudaCompiler) -> None:
    assert compiler.name.split()[0] in {"NVRTC", "nvcc"}
    assert float(compiler.name.split()[1]) >= 12
    assert 90 in compiler.archs
    assert list(compiler.archs) == sorted(set(compiler.archs))


def test_nvrtc_comes_before_nvcc(tmp_path: Path) -> None:
    kits = [Toolkit(nvcc=tmp_path / "nvcc"), *(kit for kit in find_toolkits() if kit.nvrtc and kit.include)]
    if len(kits) == 1:
        pytest.skip("no NVRTC on this machine; pip install 'fractune[cuda]' has it")
    assert isinstance(next(compilers(kits)), Nvrtc)


def test_nvrtc_without_its_headers_is_no_compiler(tmp_path: Path) -> None:
    assert [*compilers([Toolkit(nvrtc=tmp_path / "libnvrtc.so.13")])] == []


def test_a_torn_library_is_refused_by_its_path(tmp_path: Path) -> None:
    library = tmp_path / "libnvrtc.so.13"
    library.write_bytes(b"\x7fELF")
    with pytest.raises(FractuneError, match=r"libnvrtc\.so\.13 cannot be loaded: .*fractune\[cuda\]"):
        Nvrtc(library, tmp_path)


def test_an_nvcc_that_fails_is_named(tmp_path: Path) -> None:
    program = tmp_path / "nvcc"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(FractuneError, match=rf"{program} --version failed"):
        _ = Nvcc(program).name


def test_the_first_error_of_nvcc_is_what_is_told(tmp_path: Path) -> None:
    program = tmp_path / "nvcc"
    program.write_text(
        "#!/bin/sh\n"
        "if [ $1 = --version ]; then echo 'release 13.0, V13.0.88'; exit; fi\n"
        "echo 'kernel.cu(1): warning #1: odd' >&2; echo 'gcc: fatal: no such program' >&2; exit 1\n"
    )
    program.chmod(0o755)
    with pytest.raises(CompileFailed) as caught:
        Nvcc(program).compile("", "sm_90", fast_math=False)
    assert str(caught.value) == "nvcc 13.0: gcc: fatal: no such program"


def test_no_compile_leaves_anything_behind(
    compiler: CudaCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    compiler.compile(KERNEL, "sm_90", fast_math=False)
    assert [*tmp_path.iterdir()] == []
