"""NVIDIA's libraries as peers of one operator: cuBLAS and cuDNN, through PyTorch, else by their own C interfaces.

They launch on the default stream, which is the confined one under MPS. No TF32: float32 stays float32. Without PyTorch
cuBLAS chooses its algorithm itself (`cublasGemmEx`), and cuDNN times its own (`cudnnFindConvolutionForwardAlgorithm`).
The orders of arguments are those of the headers of cuBLAS 13.10 and cuDNN 9.28. No GPU has run these calls yet.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from ctypes import byref, c_float, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.gpu.table.operations import Operation
from fractune_core.cuda import toolkit_roots
from fractune_workers.children.tvm_api.keep_out import let_torch_in

if TYPE_CHECKING:
    from fractune_workers.children.tvm_api.processor import Processor

CUDA = "cuda"
"""what PyTorch and ONNX Runtime call a GPU"""
_TYPES = {"float32": 0, "float16": 2}
"""the numbers of cudaDataType and, by chance, of cudnnDataType_t"""
_NO_TRANSPOSE, _COMPUTE_32F, _GEMM_DEFAULT = 0, 68, -1
_CROSS_CORRELATION, _SUMS_IN_FLOAT = 1, 0
_MATH = {"float32": 3, "float16": 1}
"""CUDNN_FMA_MATH, else it may use TF32; CUDNN_TENSOR_OP_MATH"""
_MOST_ALGORITHMS = 10
_FIRST_CHANNELS_LAST, _BACK = (0, 3, 1, 2), (0, 2, 3, 1)


class PeerMissing(Exception):
    """A peer cannot take part; the message says why."""


@dataclass(frozen=True)
class Contestant:
    call: Callable[[], object]
    """launches, and does not wait"""
    output: Callable[[], Any]
    """the result of the last call as an array, once it has ended"""
    by: str = ""
    """the software that runs it, with its version"""


@dataclass(frozen=True)
class Task:
    """One operator on tensors of TVM; `y` is the peer's own."""

    operation: Operation
    dtype: str
    channels_last: bool
    x: Any
    w: Any
    y: Any
    processor: Processor
    """that these tensors are on"""

    def output(self) -> Any:
        """`y` as an array, once all that was launched has ended."""
        return self.processor.read(self.y)

    def empty(self, count: int) -> Any:
        """So many bytes on the device."""
        return self.processor.tensor(np.empty(count, np.int8))


def nvidia(task: Task) -> Contestant:
    """Raises PeerMissing."""
    reasons = []
    for peer in (by_torch, by_library):
        try:
            return peer(task)
        except PeerMissing as error:
            reasons.append(str(error))
    raise PeerMissing("; ".join(reasons))


def simulated(task: Task) -> Contestant:
    """NumPy in the place of a library, for the rehearsal."""
    x, w = map(task.processor.read, (task.x, task.w))
    result = partial(task.operation.result, x, w, channels_last=task.channels_last)
    return Contestant(
        lambda: task.processor.write(task.y, result().astype(task.dtype)), task.output, "simulated by NumPy"
    )


PEERS: dict[str, Callable[[Task], Contestant]] = {"nvidia": nvidia, "simulated": simulated}


def imported_torch(device: str) -> Any:
    """PyTorch for inference, without TF32, and cuDNN's algorithms timed. Raises PeerMissing, also for a GPU that it
    does not see.
    """
    let_torch_in()
    try:
        import torch
    except ImportError as error:
        raise PeerMissing("PyTorch is not installed") from error
    if device == CUDA and not torch.cuda.is_available():
        raise PeerMissing(f"PyTorch {torch.__version__} sees no GPU")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    torch.set_grad_enabled(False)
    return torch


def by_torch(task: Task, device: str = CUDA) -> Contestant:
    """Of tensors on the `device`, which is a processor (`cpu`) in a test. Raises PeerMissing."""
    torch = imported_torch(device)
    x, w, y = (torch.from_dlpack(each) for each in (task.x, task.w, task.y))
    by, operation = f"PyTorch {torch.__version__}", task.operation
    if operation.is_product:
        return Contestant(partial(torch.mm, x, w, out=y), lambda: y.cpu().numpy(), by)
    if task.channels_last:
        x, w = x.permute(_FIRST_CHANNELS_LAST), w.permute(_FIRST_CHANNELS_LAST)
    made: list[Any] = [None]

    def call() -> None:
        made[0] = torch.nn.functional.conv2d(x, w, stride=operation.stride, padding=operation.padding)

    def output() -> Any:
        array = made[0].cpu().numpy()
        return array.transpose(_BACK) if task.channels_last else array

    return Contestant(call, output, f"{by}, cuDNN {torch.backends.cudnn.version()}")


def by_library(task: Task) -> Contestant:
    if task.operation.is_product:
        return cublas(task, _loaded("libcublasLt.so.13", "libcublas.so.13"))
    return cudnn(task, _loaded("libcublasLt.so.13", "libcublas.so.13", "libcudnn.so.9"))


def cublas(task: Task, library: Any) -> Contestant:
    """cuBLAS counts by columns: it is given the transposed product, w' x', whose rows are the columns of y."""
    handle, version, kind = _made(library, "cublasCreate_v2"), c_int(), _TYPES[task.dtype]
    _function(library, "cublasGetVersion_v2")(handle, byref(version))
    rows, terms = task.operation.x
    columns = task.operation.w[1]
    one, zero = c_float(1.0), c_float(0.0)
    call = partial(
        _function(library, "cublasGemmEx"),
        *(handle, _NO_TRANSPOSE, _NO_TRANSPOSE, columns, rows, terms, byref(one)),
        *(_pointer(task.w), kind, columns, _pointer(task.x), kind, terms, byref(zero)),
        *(_pointer(task.y), kind, columns, _COMPUTE_32F, _GEMM_DEFAULT),
    )
    return Contestant(call, task.output, f"cuBLAS {version.value}")


class Algorithm(ctypes.Structure):
    """cudnnConvolutionFwdAlgoPerf_t."""

    _fields_ = (
        *(("algorithm", c_int), ("status", c_int), ("time_ms", c_float), ("memory", c_size_t)),
        *(("determinism", c_int), ("math", c_int), ("reserved", c_int * 3)),
    )


def cudnn(task: Task, library: Any) -> Contestant:
    handle, operation, kind = _made(library, "cudnnCreate"), task.operation, _TYPES[task.dtype]
    layout = int(task.channels_last)
    x, y = (_made(library, "cudnnCreateTensorDescriptor") for _ in range(2))
    for descriptor, shape in ((x, operation.x), (y, operation.y)):
        _function(library, "cudnnSetTensor4dDescriptor")(descriptor, layout, kind, *shape)
    w = _made(library, "cudnnCreateFilterDescriptor")
    _function(library, "cudnnSetFilter4dDescriptor")(w, kind, layout, *operation.w)
    window = _made(library, "cudnnCreateConvolutionDescriptor")
    around = (*[operation.padding] * 2, *[operation.stride] * 2, 1, 1)
    _function(library, "cudnnSetConvolution2dDescriptor")(window, *around, _CROSS_CORRELATION, _SUMS_IN_FLOAT)
    _function(library, "cudnnSetConvolutionMathType")(window, _MATH[task.dtype])
    count, found = c_int(), (Algorithm * _MOST_ALGORITHMS)()
    find = _function(library, "cudnnFindConvolutionForwardAlgorithm")
    find(handle, x, w, window, y, _MOST_ALGORITHMS, byref(count), found)
    best = next((each for each in found[: count.value] if not each.status), None)
    if best is None:
        raise PeerMissing("cuDNN has no algorithm for this convolution")
    if task.dtype == "float16":
        _function(library, "cudnnSetConvolutionMathType")(window, best.math)
    space = task.empty(max(1, best.memory))
    one, zero = c_float(1.0), c_float(0.0)
    convolve = partial(
        _function(library, "cudnnConvolutionForward"),
        *(handle, byref(one), x, _pointer(task.x), w, _pointer(task.w), window, best.algorithm),
        *(_pointer(space), c_size_t(best.memory), byref(zero), y, _pointer(task.y)),
    )

    def call(_held: object = space) -> None:  # the work space lives as long as the contestant
        convolve()

    return Contestant(call, task.output, f"cuDNN {library.cudnnGetVersion()}, legacy interface")


def _function(library: Any, name: str) -> Callable[..., None]:
    """A function of the library that raises PeerMissing for its status."""
    function = getattr(library, name)

    def call(*args: Any) -> None:
        if status := function(*args):
            raise PeerMissing(f"{name} ended with status {status}")

    return call


def _made(library: Any, name: str) -> c_void_p:
    made = c_void_p()
    _function(library, name)(byref(made))
    return made


def _pointer(tensor: Any) -> c_void_p:
    return c_void_p(tensor.data_ptr())


def _loaded(*names: str) -> Any:
    """The last of the libraries, after those that it needs: from the loader's folders, or from NVIDIA's wheels."""
    for name in names:
        folders = [root / "lib" for root in toolkit_roots()]
        folders += [each for entry in sys.path for each in Path(entry or ".").glob("nvidia/*/lib")]
        for path in (name, *(str(folder / name) for folder in folders if (folder / name).exists())):
            try:
                library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
                break
            except OSError:
                continue
        else:
            raise PeerMissing(f"{name} is not installed")
    return library
