"""What a model may grow to on its way in, counted before anything is expanded.

A file of a kilobyte can describe a billion nodes (functions that call each other twice) or a tensor of a terabyte
(`Expand`). Nothing is inlined, evaluated or lowered before its size is known to be within these limits.
"""

from __future__ import annotations

from dataclasses import dataclass

from fractune_core.errors import BadModel

MOST_NODES = 30_000
"""Of a model once its functions are inlined, and of operators in Relax"""
MOST_TENSOR_BYTES = 2**31
"""Of one tensor, as of a model file"""
MOST_DIMENSIONS = 32
"""Of one tensor: NumPy's own limit was this for most of its life"""
_COMPUTED_BYTES = 2**29
_COMPUTED_PER_FILE_BYTE = 16
"""A file of quantized weights becomes four times as much, in a chain of several constants"""


def check_nodes(count: int, what: str) -> None:
    """Raises BadModel when `what` has more nodes than a model may have."""
    if count > MOST_NODES:
        raise BadModel(f"{what} has {count:,} nodes, and {MOST_NODES:,} is the limit; tune a part of the model")


def check_tensor(shape: list[int], element_bytes: int, what: str) -> int:
    """Bytes of a tensor of that shape. Raises BadModel when it is too large."""
    size = element_bytes
    for dim in shape:
        size *= dim
    if len(shape) > MOST_DIMENSIONS:
        raise BadModel(f"{what} is a tensor of {len(shape)} dimensions, and {MOST_DIMENSIONS} is the limit")
    if size > MOST_TENSOR_BYTES:
        raise BadModel(
            f"{what} is a tensor of shape {shape}, {size:,} bytes, and {MOST_TENSOR_BYTES:,} is the limit; "
            "use smaller shapes"
        )
    return size


@dataclass
class ComputedConstants:
    """How many bytes of constants a model may still compute: half a gigabyte, and more for a larger file."""

    file_bytes: int
    taken_bytes: int = 0

    @property
    def limit_bytes(self) -> int:
        return _COMPUTED_BYTES + _COMPUTED_PER_FILE_BYTE * self.file_bytes

    def take(self, size: int, what: str) -> None:
        """Count a constant before it is computed. Raises BadModel when all of them together are too large."""
        self.taken_bytes += size
        if self.taken_bytes > self.limit_bytes:
            raise BadModel(
                f"{what} is computed from constants alone, which makes {self.taken_bytes:,} bytes of such constants; "
                f"{self.limit_bytes:,} is the limit for a file of {self.file_bytes:,} bytes"
            )
