"""The calls of cuBLAS and cuDNN that the first table makes, computed by NumPy in this process's memory.

The order and the meaning of the arguments are those of cublas_api.h 13.10 and of cudnn_cnn.h 9.28.
"""

import ctypes
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.gpu.table.peers import Algorithm


def convolution(x: Any, w: Any, stride: int, pad: int) -> Any:
    """With channels first, number by number, in double precision."""
    padded = np.pad(x.astype("float64"), [(0, 0)] * 2 + [(pad, pad)] * 2)
    extents = [(size + 2 * pad - w.shape[2]) // stride + 1 for size in x.shape[2:]]
    y = np.zeros((x.shape[0], w.shape[0], *extents))
    for n, o, i, j in np.ndindex(*y.shape):
        top, left = stride * i, stride * j
        y[n, o, i, j] = (padded[n, :, top : top + w.shape[2], left : left + w.shape[3]] * w[o]).sum()
    return y


def array_at(pointer: Any, shape: tuple[int, ...], kind: int) -> Any:
    dtype: Any = {0: np.dtype("float32"), 2: np.dtype("float16")}[kind]
    memory = (ctypes.c_char * (math.prod(shape) * dtype.itemsize)).from_address(pointer.value)
    return np.frombuffer(memory, dtype).reshape(shape)


class SimulatedCublas:
    """Counts by columns, as the real one."""

    def cublasCreate_v2(self, handle: Any) -> int:
        handle._obj.value = 11
        return 0

    def cublasGetVersion_v2(self, handle: Any, version: Any) -> int:
        assert handle.value == 11
        version._obj.value = 130100
        return 0

    def cublasGemmEx(self, handle: Any, ta: int, tb: int, m: int, n: int, k: int, alpha: Any, *rest: Any) -> int:
        a, a_kind, lda, b, b_kind, ldb, beta, c, c_kind, ldc, compute, algorithm = rest
        assert (handle.value, ta, tb, alpha._obj.value, beta._obj.value) == (11, 0, 0, 1.0, 0.0)
        assert (compute, algorithm, a_kind, b_kind) == (68, -1, c_kind, c_kind)
        left, right = array_at(a, (k, lda), a_kind)[:, :m].T, array_at(b, (n, ldb), b_kind)[:, :k].T
        array_at(c, (n, ldc), c_kind)[:, :m].T[:] = left @ right
        return 0


class SimulatedCudnn:
    """Keeps descriptors by their handles. Its first algorithm failed in the search."""

    status = 0

    def __init__(self) -> None:
        self.said: dict[int, list[Any]] = {}

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name.startswith("cudnnCreate"):
            return self._create
        assert name.startswith("cudnnSet"), name
        return self._set

    def _create(self, made: Any) -> int:
        made._obj.value = 100 + len(self.said)
        self.said[made._obj.value] = []
        return 0

    def _set(self, descriptor: Any, *args: Any) -> int:
        self.said[descriptor.value].extend(args)
        return 0

    def cudnnGetVersion(self) -> int:
        return 92800

    def cudnnFindConvolutionForwardAlgorithm(self, *args: Any) -> int:
        *_, most, count, found = args
        assert most == len(found)
        count._obj.value = 2
        found[0] = Algorithm(algorithm=7, status=9)
        found[1] = Algorithm(algorithm=1, math=2, memory=64)
        return self.status

    def cudnnConvolutionForward(self, *args: Any) -> int:
        _, alpha, x, x_at, w, w_at, window, algorithm, space, size, beta, y, y_at = args
        assert (alpha._obj.value, beta._obj.value, algorithm, size.value) == (1.0, 0.0, 1, 64)
        assert space.value
        (layout, kind, *image), (layout_of_y, _, *output) = self.said[x.value], self.said[y.value]
        w_kind, w_layout, *filters = self.said[w.value]
        pad, _, stride, _, *dilation, mode, sums, math_type = self.said[window.value][:9]
        assert (layout_of_y, w_layout, w_kind, dilation, mode, sums) == (layout, layout, kind, [1, 1], 1, 0)
        assert self.said[window.value][:4] == [pad, pad, stride, stride]
        assert math_type == {0: 3, 2: 1}[kind]
        assert self.said[window.value][9:] == ([2] if kind == 2 else [])

        def laid(pointer: Any, shape: list[int]) -> Any:
            n, c, h, w = shape
            return (
                np.moveaxis(array_at(pointer, (n, h, w, c), kind), -1, 1)
                if layout
                else array_at(pointer, (n, c, h, w), kind)
            )

        laid(y_at, output)[:] = convolution(laid(x_at, image), laid(w_at, filters), stride, pad)
        return 0
