"""Products of whole numbers in integer arithmetic, beside the direct ones in float32.

They have the same arguments, output and epilogue. Their weights have a narrow type, and lie as the processor's dot
products read them.

The sums are exact in int32. A product so deep that its sums could overflow stays in float32 (`Bounds.sums_fit`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import te

from fractune_core.tir.canonical import COLUMNS, INTEGER_SUMS, ROWS, SUMS
from fractune_workers.children.layouts.kernels.direct import Bounds, Window
from fractune_workers.children.layouts.kernels.packing import OPERANDS, group_of, pack_integers

_Array = npt.NDArray[Any]
_FLOAT, _SUM = "float32", "int32"


@dataclass(frozen=True)
class IntegerProduct:
    """An implementation of `direct.matmul` and `direct.conv2d` for whole numbers."""

    name: str
    """of the implementation"""
    data: str
    weight: str
    """types of the operands"""

    @property
    def group(self) -> int:
        """Neighbouring numbers that lie together in 32 bits."""
        return group_of(self.data)

    def fits(self, bounds: Bounds, depth: int) -> bool:
        """Whether the types hold the operands, and int32 the sums over `depth` products."""
        holds = _holds(self.data, bounds.data) and _holds(self.weight, bounds.weights)
        return holds and bounds.sums_fit(depth)

    def pack(self, weights: _Array) -> _Array:
        """Its weights of the direct kernel's (`packing.pack_integers`)."""
        return pack_integers(self.name, weights)

    def compute(self, data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        """(..., M, K) float32 and weights of `pack` -> (..., M, N/b, b) float32, as `direct.matmul`."""
        *batch, blocks, groups, lanes, group = (int(dim) for dim in weight.shape)
        rows = self._rows(data, groups * group)
        ko, ki = te.reduce_axis((0, groups), "ko"), te.reduce_axis((0, group), "ki")

        def product(*index: Any) -> Any:
            *outer, block, lane = index
            number = rows(*outer, ko * group + ki).astype(_SUM)
            return te.sum(number * weight(*outer[: len(batch)], block, ko, lane, ki).astype(_SUM), axis=[ko, ki])

        shape = (*data.shape[:-1], blocks, lanes)
        sums = te.compute(shape, product, name=INTEGER_SUMS)
        return te.compute(shape, lambda *index: sums(*index).astype(_FLOAT), name=SUMS)

    def compute_both(self, data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        """As `compute`, of the direct kernel's weights (..., N/b, K, b), which are computed. K is whole groups."""
        *outer, depth, lanes = (int(dim) for dim in weight.shape)

        def number(*index: Any) -> Any:
            *block, group, lane, which = index
            return weight(*block, group * self.group + which, lane).astype(_SUM).astype(self.weight)

        return self.compute(data, te.compute((*outer, depth // self.group, lanes, self.group), number, name=COLUMNS))

    def convolve(self, data: te.Tensor, weight: te.Tensor, window: Window) -> te.Tensor:
        """(N, C/b, H, W, b) float32 and weights of `pack` -> (N, K/b, Y, X, b) float32, as `direct.conv2d`."""
        out_blocks, in_blocks, height, width, groups, lanes, group = (int(dim) for dim in weight.shape)
        image = self._image(data, window)
        batch, _, rows, columns, _ = (int(dim) for dim in image.shape)
        extents = {"co": in_blocks, "ry": height, "rx": width, "ci": groups, "ki": group}
        axes = [te.reduce_axis((0, extent), name) for name, extent in extents.items()]
        co, ry, rx, ci, ki = axes

        def product(n: Any, k: Any, y: Any, x: Any, lane: Any) -> Any:
            number = image(n, co, *window.at(y, x, ry, rx), ci * group + ki).astype(_SUM)
            return te.sum(number * weight(k, co, ry, rx, ci, lane, ki).astype(_SUM), axis=axes)

        shape = (batch, out_blocks, *window.extents(rows, columns, (height, width)), lanes)
        sums = te.compute(shape, product, name=INTEGER_SUMS)
        return te.compute(shape, lambda *index: sums(*index).astype(_FLOAT), name=SUMS)

    def _image(self, data: te.Tensor, window: Window) -> te.Tensor:
        """The image in its type, with zeros around it."""
        top, left, bottom, right = window.padding
        batch, blocks, height, width, lanes = (int(dim) for dim in data.shape)

        def number(n: Any, c: Any, y: Any, x: Any, lane: Any) -> Any:
            whole = data(n, c, y - top, x - left, lane).astype(_SUM).astype(self.data)
            if not any(window.padding):
                return whole
            inside = tvm.tirx.all(y >= top, y < top + height, x >= left, x < left + width)
            return tvm.tirx.if_then_else(inside, whole, tvm.tirx.const(0, self.data))

        return te.compute((batch, blocks, height + top + bottom, width + left + right, lanes), number, name=ROWS)

    def _rows(self, data: te.Tensor, depth: int) -> te.Tensor:
        """The data in its type, with zeros up to `depth`."""
        given = int(data.shape[-1])

        def number(*index: Any) -> Any:
            # By int32: AVX2 has no conversion from float32 to a narrower type.
            whole = data(*index).astype(_SUM).astype(self.data)
            if depth == given:
                return whole
            return tvm.tirx.if_then_else(index[-1] < given, whole, tvm.tirx.const(0, self.data))

        return te.compute((*data.shape[:-1], depth), number, name=ROWS)


def _holds(dtype: str, bounds: tuple[int, int]) -> bool:
    limits = np.iinfo(dtype)
    return bool(limits.min <= bounds[0] and bounds[1] <= limits.max)


INTEGERS = {name: IntegerProduct(name, *types) for name, types in OPERANDS.items()}
"""by the implementation's name, the faster first"""
